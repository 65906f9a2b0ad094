"""Protocols: the interfaces of actors and learner that the loop uses, wherever they run."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from unstable.loop.ended import Ended
from unstable.types import (
    ActorState,
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    KnownPlayer,
    MeanLoss,
    PackedBatch,
    PlayerId,
    SeatSpec,
    Shares,
    TokenSample,
    Trajectory,
    Update,
)

HeldAdapter = Any
"""A version's adapter on its way from the learner to actors, opaque to the loop: an `Adapter`, or a
Ray reference to one if actors and learner are separate processes."""


class RewardTerms(Protocol):
    """The reward terms of a run; implemented by `rewards.terms.Rewards`."""

    @property
    def at_once(self) -> int:
        """Maximum number of concurrent calls of reward terms that wait; 0 if no term waits."""

    def recorded(self, result: GameResult) -> list[Trajectory]:
        """Return the trajectories in a game's record."""


class Actor(Protocol):
    """A process with an engine that plays."""

    def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        """Play games and yield their whole results, as `collectors.collector.Collector.play`."""

    def play_round(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[Ended]:
        """Play training games as `Collector.play_together`, and judge them."""

    def deal(self, specs: Sequence[GameSpec]) -> None:
        """Add training games for `play_on`, after the games that were dealt before."""

    def play_on(self) -> AsyncGenerator[Ended]:
        """Play and judge all dealt games, forever; closing the generator ends games in flight."""

    async def present(self) -> None:
        """Return once the actor can begin games; without a node it waits for another one."""

    async def state(self) -> ActorState:
        """Return the state that games to come depend on."""

    async def restore(self, state: ActorState) -> None:
        """Continue from a state that `state` has returned."""

    async def publish(self, version: PlayerId, adapter: HeldAdapter | None = None) -> None:
        """Make a version playable; if `adapter` is None, it is read from the checkpoint."""

    async def announce(self, version: PlayerId) -> None:
        """Use a version from now on at seats that take the newest version at each turn."""

    async def retire(self, version: PlayerId) -> None:
        """Forget a version that no new game will name."""

    async def stats(self) -> dict[str, float]:
        """Return counters of the engine and of games."""

    async def decide(
        self, game: str, version: PlayerId, part: int, parts: int
    ) -> dict[int, list[float]]:
        """Return probabilities of legal actions at every `parts`-th decision, from `part` on."""

    async def assess(
        self,
        game: str,
        version: int,
        probabilities: Shares,
        began: float,
        past: Mapping[int, Shares],
    ) -> Exploitability:
        """Return how exploitable a version is, and the least that it wins from `past` versions.

        `probabilities` and each value of `past` are the probabilities at all decisions.
        """

    async def luck(
        self,
        results: Sequence[GameResult],
        critic: Mapping[str, Any],
        known: Mapping[SeatSpec, KnownPlayer],
    ) -> dict[int, list[float]]:
        """Return each seat's luck by game number, by a critic that `models.read_critic` has read.

        The moves of the `known` players are its draws.
        """

    async def sleep(self) -> None:
        """Release the memory of a shared GPU; no game may be in flight."""

    async def wake(self) -> None:
        """Allocate the memory of a shared GPU again."""


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
        """Return the loss of a batch without training on it."""

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
        """Load a version that `save` has written, including its number."""

    async def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate of all updates to come."""

    async def restore(self, version: int) -> None:
        """Restore weights, optimizer and algorithm of a version; the version number stays."""
