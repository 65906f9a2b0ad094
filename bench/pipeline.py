"""Who waits for whom on machines that are not here: the project's own loop on a virtual clock.

Games, schedule, buffer, gate and files are the real ones. An engine and a learner only take time,
by the speeds in `CASES`: estimates, until a card has said better. The tokens of a thought take time
and are not made.

Run: python -m bench.pipeline [--cases h200-1.7b ...] [--updates 30]
"""

import argparse
import asyncio
import contextlib
import io
import random
import selectors
import tempfile
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.orchestration import ScriptedEngine, TextTokenizer, free_cell
from unstable.config import RunConfig, parse
from unstable.loop.context import Context
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor
from unstable.tracking.tracker import Tracker
from unstable.types import Adapter, Batch, Completion, PlayerId, TokenSample, Update

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A machine and a model: how many there are of what, and how fast each is."""

    actors: int
    learners: int
    places: int  # games in flight of an actor
    step_s: float  # of an engine for its first request, and for each further one in flight
    request_step_s: float
    answer_tokens: int  # mean; the lengths are geometric
    turn_tokens: (
        int  # that the learner puts through for a turn, prompts that are shared counted once
    )
    learner_tokens_s: float  # of a rank
    save_s: float  # adapter and optimizer to the disk
    publish_s: float  # from the learner into an engine, meanwhile
    batch_size: int

    @property
    def most_tokens_s(self) -> float:
        """Of an engine whose places are all taken."""
        return self.places / (self.step_s + self.places * self.request_step_s)


CASES = {
    "h200-smollm2": Case(
        actors=1,
        learners=1,
        places=384,
        step_s=4e-3,
        request_step_s=33e-6,
        answer_tokens=4,
        turn_tokens=20,
        learner_tokens_s=150_000,
        save_s=0.3,
        publish_s=0.2,
        batch_size=1024,
    ),
    "4x24gb-1.7b": Case(
        actors=3,
        learners=1,
        places=62,
        step_s=9e-3,
        request_step_s=60e-6,
        answer_tokens=200,
        turn_tokens=300,
        learner_tokens_s=9_000,
        save_s=1.0,
        publish_s=0.8,
        batch_size=384,
    ),
    "h200-1.7b": Case(
        actors=1,
        learners=1,
        places=271,
        step_s=6e-3,
        request_step_s=25e-6,
        answer_tokens=200,
        turn_tokens=300,
        learner_tokens_s=15_000,
        save_s=1.0,
        publish_s=0.8,
        batch_size=384,
    ),
    "8xh100-1.7b": Case(
        actors=7,
        learners=1,
        places=296,
        step_s=6e-3,
        request_step_s=25e-6,
        answer_tokens=200,
        turn_tokens=300,
        learner_tokens_s=30_000,
        save_s=1.0,
        publish_s=0.8,
        batch_size=384,
    ),
    "8xh100-8b": Case(
        actors=7,
        learners=1,
        places=128,
        step_s=12e-3,
        request_step_s=50e-6,
        answer_tokens=200,
        turn_tokens=300,
        learner_tokens_s=9_000,
        save_s=2.0,
        publish_s=1.5,
        batch_size=384,
    ),
}

# As the plan has them (docs/memory.md), and with a batch that fills more of the actors' places.
CASES |= {
    "h200-smollm2-planned": replace(CASES["h200-smollm2"], actors=4),
    "4x24gb-1.7b-planned": replace(CASES["4x24gb-1.7b"], actors=1, learners=3, places=194),
    "8xh100-1.7b-planned": replace(CASES["8xh100-1.7b"], actors=5, learners=3, places=384),
    "8xh100-8b-planned": replace(CASES["8xh100-8b"], actors=3, learners=5, places=384),
    "8xh100-1.7b-large-batch": replace(
        CASES["8xh100-1.7b"], actors=5, learners=3, places=384, batch_size=1536
    ),
}


@dataclass(slots=True)
class Spent:
    """Tokens that engines made."""

    tokens: float = 0.0


class PhaseTracker(Tracker):
    """Counts the virtual seconds that the run's learning is in each phase."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        super().__init__(config, folder)
        self.seconds: dict[str, float] = defaultdict(float)
        self._since = ("starting", 0.0)

    def phase(self, name: str, done: float = 0, total: float | None = None) -> None:
        now = asyncio.get_running_loop().time()
        before, since = self._since
        self.seconds[before] += now - since
        self._since = (name, now)
        super().phase(name, done, total)


class TimedEngine(ScriptedEngine):
    """Answers with an empty cell of TicTacToe after the time that an answer takes."""

    CHUNK = 16  # tokens between two looks at how many requests there are

    def __init__(self, case: Case, spent: Spent, tokenizer: Any) -> None:
        super().__init__(free_cell(tokenizer))
        self._case, self._spent = case, spent
        self._running = 0

    async def generate(self, prompt_ids: Sequence[int], *, seed: int, **options: Any) -> Completion:
        mean = self._case.answer_tokens
        left = 1 + int(random.Random(seed).expovariate(1 / (mean - 1)))
        self._running += 1
        try:
            while left > 0:
                tokens = min(left, self.CHUNK)
                step_s = self._case.step_s + self._running * self._case.request_step_s
                await asyncio.sleep(tokens * step_s)
                self._spent.tokens += tokens
                left -= tokens
        finally:
            self._running -= 1
        return await super().generate(prompt_ids, seed=seed, **options)


class TimedActor(LocalActor):
    """An actor that takes a while to serve an adapter."""

    def __init__(self, config: RunConfig, folder: RunFolder, case: Case, spent: Spent) -> None:
        tokenizer: Any = TextTokenizer()
        super().__init__(config, folder, TimedEngine(case, spent, tokenizer), tokenizer)
        self._publish_s = case.publish_s

    async def publish(self, version: PlayerId, adapter: Adapter | None = None) -> None:
        await asyncio.sleep(self._publish_s)
        await super().publish(version, adapter)


class TimedLearner:
    """A learner that learns nothing; all its ranks together."""

    def __init__(self, folder: RunFolder, case: Case) -> None:
        self._folder, self._case = folder, case

    async def update(self, batch: Batch) -> Update:
        samples = len(batch.samples)
        speed = self._case.learners * self._case.learner_tokens_s
        await asyncio.sleep(samples * self._case.turn_tokens / speed)
        return Update(version=batch.version + 1, metrics={}, advantages=[0.0] * samples)

    async def hold(self, version: int) -> None: ...

    async def adapter(self, version: int) -> Adapter:
        return Adapter(name=PlayerId.policy(version).name, weights=b"", config={})

    async def save(self, version: int) -> None:
        await asyncio.sleep(self._case.save_s)
        self._folder.checkpoint(version).mkdir(parents=True)

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        raise NotImplementedError

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        raise NotImplementedError

    async def load(self, version: int) -> None: ...

    async def scale_rate(self, factor: float) -> None: ...

    async def restore(self, version: int) -> None: ...


class _Selector(selectors.DefaultSelector):
    """Does not wait for a timer: moves the clock to it instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualClock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while all of its tasks sleep: hours in seconds."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What a coroutine returns, and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(main), runner.get_loop().time()


def config_of(case: Case, folder: Path, updates: int, every: int) -> RunConfig:
    """Of asynchronous self-play at that machine's size."""
    return parse(
        {
            "games": [{"env": "TicTacToe-v0"}],
            "actors": {"num": case.actors, "games_in_flight": case.places},
            "buffer": {"capacity": 5 * case.batch_size},
            "learner": {"num": case.learners, "batch_size": case.batch_size},
            "eval": {"every": every, "games": 64, "opponents": ["random"]},
            "loop": {"mode": "async", "steps": updates},
            "tracking": {"run_dir": str(folder), "dashboard": "off"},
        }
    )


async def pipeline(case: Case, config: RunConfig, folder: RunFolder, spent: Spent) -> PhaseTracker:
    """A whole run."""
    tracker = PhaseTracker(config, folder)
    actors = [TimedActor(config, folder, case, spent) for _ in range(case.actors)]
    context = Context(
        config=config,
        folder=folder,
        actors=[*actors],
        learner=TimedLearner(folder, case),
        tracker=tracker,
    )
    await train(context)
    tracker.phase("over")
    for actor in actors:
        await actor.close()
    return tracker


def measured(case: Case, updates: int, every: int) -> list[str]:
    """A row of the table: seconds an update, and what shares of the time each phase takes."""
    with tempfile.TemporaryDirectory() as place:
        folder, spent = RunFolder(Path(place) / "run"), Spent()
        config = config_of(case, folder.root, updates, every)
        with contextlib.redirect_stdout(io.StringIO()):  # the run's own lines
            tracker, seconds = run_virtually(pipeline(case, config, folder, spent))
    shares = [tracker.seconds[phase] / seconds for phase in PHASES]
    engines = spent.tokens / (case.actors * case.most_tokens_s) / seconds
    used = {
        "engines": engines,
        "learner": tracker.seconds["updating"] / seconds,
        "publishing": tracker.seconds["publishing"] / seconds,
    }
    return [
        f"{seconds / updates:.2f}",
        *(f"{share:.0%}" for share in shares),
        f"{1 - engines:.0%}",
        max(used, key=lambda name: used[name]),
    ]


PHASES = {
    "updating": "learner learns",
    "playing": "waits for games",
    "publishing": "saves and publishes",
    "evaluating": "waits for evaluations",
}
HEADINGS = ("case", "s an update", *PHASES.values(), "engines idle", "bottleneck")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--updates", type=int, default=30)
    parser.add_argument("--eval-every", type=int, default=5)
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for name in arguments.cases:
        row = measured(CASES[name], arguments.updates, arguments.eval_every)
        print(f"| {' | '.join([name, *row])} |", flush=True)


if __name__ == "__main__":
    main()
