"""Actor and learner in the current process, where they do the work that the loop requests.

Tests, `unstable play` and `unstable world` use them directly; `actors.py` and `learner_ranks.py`
run each in its own process and call it there.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from unstable.collectors.collector import Collector
from unstable.config import RunConfig
from unstable.engines.base import Engine, SamplingRequest
from unstable.engines.kinds import make_engine
from unstable.engines.probe import ProbeAnswer, Probes, ask_probe, probes
from unstable.loop import protocols
from unstable.loop.ended import Ended, Judged
from unstable.models.adapters import read_adapter
from unstable.processes.worker import Worker
from unstable.records.folder import RunFolder
from unstable.records.games import sample_lines
from unstable.rewards.oracles.base import OracleReply
from unstable.rewards.terms import Rewards
from unstable.runtime.candidates import Candidates
from unstable.runtime.luck import MoveLuck
from unstable.solving.exploiter import Exploiter
from unstable.solving.solver import answering
from unstable.types import (
    BASE,
    ActorState,
    Adapter,
    Batch,
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
    Unwritable,
    Update,
)
from unstable.types.tallies import TermCalls

if TYPE_CHECKING:
    from unstable.learners.ranks import Ranks
    from unstable.models.checkpoint import Snapshot


_REPLAYED_AT_ONCE = 64  # games whose moves are scored


class EngineAnswers:
    """Chat function of an engine: answers with the base model or one of the engine's adapters."""

    def __init__(self, engine: Engine, prompts: Mapping[str, Any], name: str) -> None:
        """Initialize with the games' prompt builders, any of which can encode a chat."""
        self.name = name
        self._engine = engine
        self._prompts = prompts

    async def __call__(
        self,
        messages: list[dict[str, str]],
        *,
        adapter: str | None,
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> OracleReply:
        """Return the answer to a chat; raise `ValueError` if it is too long for the engine."""
        prompts = next(iter(self._prompts.values()))
        ids = prompts.template.encode(messages)
        request = SamplingRequest(
            prompt_ids=ids,
            adapter=adapter,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
        completion = await self._engine.generate(request)
        text = prompts.decode(completion.token_ids)
        return OracleReply(text, len(ids), len(completion.token_ids))


class LocalActor(protocols.Actor):
    """One engine and the games that it plays."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        engine: Engine,
        tokenizer: Any,
        rewards: Rewards | None = None,
    ) -> None:
        """Initialize with reward terms; None evaluates the config's terms in this process only."""
        self._config = config
        self._folder = folder
        self._rewards = rewards or Rewards(
            config.buffer.rewards, config.judges, cache=folder.answers
        )
        self.engine = engine
        self._candidates = Candidates(config, folder.answers)
        self.collector = Collector(config, engine, tokenizer, self._candidates.judges())
        answers = EngineAnswers(engine, self.collector.prompts, config.model.name)
        self._rewards.serve(answers)
        self._candidates.serve(answers)
        self._exploiters: dict[str, Exploiter] = {}

    @classmethod
    async def start(
        cls, config: RunConfig, folder: RunFolder, log: Path, rewards: Rewards | None = None
    ) -> Self:
        """Start an actor with the engine of a resolved config, which prints to the file `log`.

        Raises `ConfigError` if the model cannot be served.
        """
        actor = cls(config, folder, *await make_engine(config, log), rewards)
        async with AsyncExitStack() as undo:
            undo.push_async_callback(actor.close)
            await actor.collector.start()
            await actor.load_adapters()
            undo.pop_all()
        return actor

    async def load_adapters(self) -> None:
        """Load the adapters of fixed opponents and of judges into the engine."""
        judges = {name: folder for name, (_, folder) in self._config.judge_adapters.items()}
        for name, folder in (self._config.opponent_adapters | judges).items():
            await self.engine.load(read_adapter(folder, name))

    def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        return self.collector.play(specs)

    async def play_round(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[Ended]:
        async with aclosing(self.judged(self.collector.play_together(specs, enough))) as lists:
            async for judged in lists:
                yield Ended.of(judged)

    def deal(self, specs: Sequence[GameSpec]) -> None:
        self.collector.deal(specs)

    async def play_on(self) -> AsyncGenerator[Ended]:
        async with aclosing(self.judged(self.collector.play_on())) as lists:
            async for judged in lists:
                yield Ended.of(judged)

    async def judged(
        self, played: AsyncGenerator[list[GameResult | GameFailure]]
    ) -> AsyncGenerator[list[Judged | GameFailure | TermCalls]]:
        """Yield played games with their rewards, and tallies of the calls to reward terms."""
        async with aclosing(played), aclosing(self._rewards.judge(played)) as lists:
            async for judged in lists:
                if asked := self._rewards.take_asked().plus(self._candidates.take_asked()):
                    yield [*judged, asked]
                else:
                    yield [*judged]

    async def present(self) -> None:
        """Return at once: a local actor can always begin games."""

    async def state(self) -> ActorState:
        return self.collector.state()

    async def restore(self, state: ActorState) -> None:
        self.collector.restore(state)

    async def publish(self, version: PlayerId, adapter: Adapter | None = None) -> None:
        assert version.version is not None
        place = self._folder.checkpoint(version.version, version.label)
        await self.engine.load(adapter or read_adapter(place, version.name))

    async def announce(self, version: PlayerId) -> None:
        self.collector.announce(version)

    async def retire(self, version: PlayerId) -> None:
        await self.collector.retire(version)

    async def stats(self) -> dict[str, float]:
        return self.collector.stats()

    async def probe(self, adapters: Sequence[Adapter], vocabulary: int) -> list[ProbeAnswer]:
        """Return the engine's answers to the start-up probe, also after a wake if it sleeps."""
        sleeps = self._config.actors.share_gpu == "sleep"
        return await ask_probe(self.engine, adapters, vocabulary, sleeps=sleeps)

    async def decide(
        self, game: str, version: PlayerId, part: int, parts: int
    ) -> dict[int, list[float]]:
        adapter = None if version == BASE else version.name
        return await self._exploiter(game).decide(adapter, part, parts)

    async def assess(
        self,
        game: str,
        version: int,
        probabilities: Shares,
        began: float,
        past: Mapping[int, Shares],
    ) -> Exploitability:
        return await self._exploiter(game).assess(version, probabilities, began, past)

    def _exploiter(self, game: str) -> Exploiter:
        if game not in self._exploiters:
            asked, config = self._config.eval.exploitability, self._config.game_by_key[game]
            name = f"games = {game}: the solver process"
            solver = Worker(name, partial(answering, config, asked.nodes))
            model = self.collector.players.asked(game)
            self._exploiters[game] = Exploiter(config, model, solver, asked.samples)
        return self._exploiters[game]

    async def luck(
        self,
        results: Sequence[GameResult],
        critic: Mapping[str, Any],
        known: Mapping[SeatSpec, KnownPlayer],
    ) -> dict[int, list[float]]:
        from unstable.learners.saved_critic import SavedCritic  # imports torch

        values, games = SavedCritic(critic), self._config.game_by_key
        limit = asyncio.Semaphore(_REPLAYED_AT_ONCE)

        async def of(result: GameResult) -> list[float]:
            model = self.collector.players.asked(result.spec.env)
            async with limit:
                return await MoveLuck(games[result.spec.env], values, model).of(result, known)

        found = await asyncio.gather(*map(of, results))
        return {each.spec.game_id: luck for each, luck in zip(results, found, strict=True)}

    async def sleep(self) -> None:
        await self.engine.sleep()

    async def wake(self) -> None:
        await self.engine.wake()

    async def close(self) -> None:
        """Close the engine and the processes of games and solvers; no game may be in flight."""
        for exploiter in self._exploiters.values():
            exploiter.close()
        await self.collector.close()
        await self._rewards.close()
        await self._candidates.close()
        await self.engine.close()


class LocalLearner(protocols.Learner):
    """One learner rank, or the whole learner, with the checkpoints of `folder`.

    Raises `ConfigError` if the LoRA settings or the starting adapter do not fit the model.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, ranks: "Ranks | None" = None) -> None:
        from unstable.learners.learner import PolicyLearner
        from unstable.learners.ranks import ALONE

        self._shares_gpu_by_turns = config.actors.share_gpu == "sleep"
        self._model, self._folder = config.model, folder
        self._held: dict[int, Snapshot] = {}  # by version
        start = None if config.model.init == "fresh" else Path(config.model.init).expanduser()
        self.learner = PolicyLearner(
            config.model,
            config.learner,
            updates=config.loop.steps,
            max_tokens=config.sampling.max_tokens,
            seed=config.seed,
            adapter=None if start is None else read_adapter(start, "start"),
            ranks=ALONE if ranks is None else ranks,
        )
        self._writes = ranks is None or ranks.index == 0
        if config.learner.state is not None:
            self.learner.restore(Path(config.learner.state).expanduser())

    @staticmethod
    def check(config: RunConfig) -> None:
        """Raise `ConfigError` if the algorithm's target is not a valid algorithm class."""
        from unstable.learners.algorithms import algorithm_class

        algorithm_class(config.learner.algorithm)

    async def probes(self) -> Probes | None:
        """Return the weights that the start-up probe compares; None from later ranks."""
        return probes(self._model) if self._writes else None

    async def update(self, batch: PackedBatch) -> Update:
        opened = batch.opened()
        with self._leaving_room():
            update = self.learner.update(opened)
        if self._writes and not batch.recorded:  # recorded samples have been written already
            return replace(update, lines=_sample_lines(opened, update.advantages))
        return update

    async def loss_on(self, batch: PackedBatch) -> MeanLoss:
        with self._leaving_room():
            return self.learner.loss_on(batch.opened())

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        with self._leaving_room():
            return self.learner.imitate(samples)

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        with self._leaving_room():
            return self.learner.logprobs(samples)

    async def logprobs_under(
        self, adapter: Adapter, samples: Sequence[TokenSample]
    ) -> list[list[float]]:
        """Return the log-probabilities of the samples' tokens, in nats, under an adapter."""
        with self._leaving_room():
            return self.learner.logprobs_under(adapter, samples)

    async def hold(self) -> protocols.HeldVersion:
        return protocols.HeldVersion(await self.keep(), self)

    async def keep(self) -> int:
        """Keep a copy of the current version until `save`, and return its number."""
        with self._leaving_room():
            snapshot = self.learner.snapshot()
        if self._writes:
            self._held[self.learner.version] = snapshot
        return self.learner.version

    async def adapter(self, version: int) -> Adapter:
        return self._held[version].adapter

    async def save(self, version: int) -> None:
        self._held.pop(version).write(self._folder.checkpoint(version))

    async def load(self, version: int) -> None:
        with self._leaving_room():
            self.learner.load(self._folder.checkpoint(version))

    async def restore(self, version: int) -> None:
        with self._leaving_room():
            self.learner.restore(self._folder.checkpoint(version))

    async def scale_rate(self, factor: float) -> None:
        self.learner.scale_rate(factor)

    @contextlib.contextmanager
    def _leaving_room(self) -> Iterator[None]:
        """Free torch's cache after the block if an engine alternates with it on the GPU."""
        import torch

        yield
        if self._shares_gpu_by_turns:
            torch.cuda.empty_cache()


def _sample_lines(batch: Batch, advantages: Sequence[float]) -> bytes | Unwritable:
    """Return the samples' lines; `Unwritable` if a number is not finite, so no update is lost."""
    try:
        return sample_lines(batch, advantages)
    except ValueError as error:
        return Unwritable(f"ValueError: {error}")
