"""What the loop asks of an actor and of a learner, wherever they run."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from unstable.loop.ended import Ended
from unstable.types import (
    ActorState,
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    MeanLoss,
    PackedBatch,
    PlayerId,
    Shares,
    TokenSample,
    Trajectory,
    Update,
)

HeldAdapter = Any
"""A version's adapter on its way from the learner to actors, which the loop does not look at: the
`Adapter`, or what stands for it where they are processes of their own."""


class RewardTerms(Protocol):
    """The reward terms of a run, `rewards.terms.Rewards`."""

    @property
    def at_once(self) -> int:
        """Most calls in flight of terms that wait; 0 where none waits."""

    def recorded(self, result: GameResult) -> list[Trajectory]:
        """Return the trajectories that a game's record holds."""


class Actor(Protocol):
    """A process with an engine that plays."""

    def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        """Play games, as `collectors.collector.Collector.play` says; their whole results."""

    def play_round(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[Ended]:
        """Play training games, as `Collector.play_together` says, and judge them."""

    def deal(self, specs: Sequence[GameSpec]) -> None:
        """Have `play_on` play these training games too, after those that it was dealt before."""

    def play_on(self) -> AsyncGenerator[Ended]:
        """Play all that is dealt and judge it, for ever; closing it ends what is in flight."""

    async def present(self) -> None:
        """Return once it can begin games: an actor whose node has gone waits for another one."""

    async def state(self) -> ActorState:
        """Return what play so far has to do with play to come."""

    async def restore(self, state: ActorState) -> None:
        """Continue from what `state` returned."""

    async def publish(self, version: PlayerId, adapter: HeldAdapter | None = None) -> None:
        """Let games name a version of a policy; None is the adapter of its checkpoint."""

    async def announce(self, version: PlayerId) -> None:
        """Have seats that take the newest version at each turn take this one from now on."""

    async def retire(self, version: PlayerId) -> None:
        """Forget a version that no new game will ask for."""

    async def stats(self) -> dict[str, float]:
        """The engine's counters, and those of games."""

    async def decide(
        self, game: str, version: PlayerId, part: int, parts: int
    ) -> dict[int, list[float]]:
        """Probabilities of the legal actions at every `parts`-th decision of a small game."""

    async def assess(
        self,
        game: str,
        version: int,
        probabilities: Shares,
        began: float,
        past: Mapping[int, Shares],
    ) -> Exploitability:
        """Return how exploitable these probabilities are, and what they win from the `past`."""

    async def sleep(self) -> None:
        """Give the memory of a shared GPU back; no game may be in flight."""

    async def wake(self) -> None:
        """Take the memory of a shared GPU again."""


class HeldVersion(NamedTuple):
    """A version that the learner keeps a copy of until `save`; updates may follow meanwhile."""

    version: int
    learner: "Learner"

    async def adapter(self) -> HeldAdapter:
        """Return the version's adapter, for `Actor.publish`."""
        return await self.learner.adapter(self.version)

    async def save(self) -> None:
        """Write the version's checkpoint and drop the copy."""
        await self.learner.save(self.version)


class Learner(Protocol):
    """The owner of weights and optimizer."""

    async def update(self, batch: PackedBatch) -> Update:
        """Train on a batch, which makes the next version."""

    async def loss_on(self, batch: PackedBatch) -> MeanLoss:
        """Return the loss of a batch of which nothing is learned."""

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        """Make one supervised step, which makes the next version."""

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Return the log-probabilities of the samples' tokens, in nats, under the policy."""

    async def hold(self) -> HeldVersion:
        """Keep a copy of the current version until it is saved; updates may follow meanwhile."""

    async def adapter(self, version: int) -> HeldAdapter:
        """Return the adapter of a held version."""

    async def save(self, version: int) -> None:
        """Write the checkpoint of a held version."""

    async def load(self, version: int) -> None:
        """Become what `save` wrote as a version."""

    async def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate of all updates to come."""

    async def restore(self, version: int) -> None:
        """Take back weights, optimizer and algorithm of a version; the number stays."""
