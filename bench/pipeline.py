"""Waiting times on hypothetical machines: the project's own loop on a virtual clock.

Games, schedule, buffer, gate and files are real. Engine and learner only take time: their number is
the plan's, and their speeds are its estimates (docs/memory.md), not measured on a GPU. The tokens
of a thought take time but are not generated.

Run: python -m bench.pipeline [--cases h200-1.7b ...] [--updates 60] [--learners 1] [--batch 1536]
"""

import asyncio
import contextlib
import io
import random
import selectors
import tempfile
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import capacity, parser
from bench.capacity import machine_named, read_bytes, step_s, token_s, typical_length
from bench.orchestration import ScriptedEngine, TextTokenizer, free_cell
from unstable.config import RunConfig, load, parse
from unstable.engines.base import SamplingRequest
from unstable.engines.kinds import NEEDS
from unstable.loop.context import Context
from unstable.loop.protocols import HeldVersion
from unstable.loop.train import train
from unstable.models.shape import read_shape
from unstable.planning.memory import FP32
from unstable.planning.plan import plan
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards
from unstable.runtime.local import LocalActor
from unstable.tracking.tracker import Tracker
from unstable.types import Adapter, Completion, MeanLoss, PackedBatch, PlayerId, TokenSample, Update

T = TypeVar("T")
DISK = 500e6
"""Bytes per second when writing a checkpoint: 79 MB took 0.12 s, and 420 MB 1.0 to 1.5 s, on a
virtual machine's disk (two cores, others busy)."""
COPIED = 3e9
"""Bytes per second when the learner copies a version before it continues, measured there."""
HANDED, HANDING_S = 1e9, 0.05
"""Bytes per second when loading an adapter into an engine, plus constant seconds: an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A machine and a model: the number and speed of each resource."""

    actors: int
    learners: int
    places: int  # games in flight of an actor
    step_s: float  # of an engine for its first request, and increase per further request
    request_step_s: float
    answer_tokens: float  # mean of a geometric distribution
    turn_s: float  # per trained turn, by all learner ranks together
    hold_s: float  # learner's time to copy a version
    save_s: float  # time to write adapter and optimizer
    publish_s: float  # from the learner to an engine, concurrently
    batch_size: int


LARGE: Mapping[str, Any] = {}
SMALL: Mapping[str, Any] = {
    "model.name": "smollm2-135m",
    "model.adapter": {"rank": 16, "alpha": 32},
    "sampling": {"max_tokens": 10, "max_prompt_tokens": 70},
    "learner.batch_size": 1024,
}
"""Changes of `--config qwen3_24gb`: turns of 512 tokens, 205 of them sampled; or of 20 and 4."""
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "h200-smollm2": ("h200", SMALL),
    "h100-1.7b": ("h100", LARGE),
    "h200-1.7b": ("h200", LARGE),
    "4x24gb-1.7b": ("4x24gb", LARGE),
    "8xh100-1.7b": ("8xh100", LARGE),
    "8xh100-8b": ("8xh100", {"model.name": "Qwen/Qwen3-8B"}),
}
"""A machine by its name, and options."""


def case_of(name: str, options: Mapping[str, Any]) -> Case:
    """Return the case as planned, with further options."""
    there, own = CASES[name]
    config = load("qwen3_24gb", {**own, **options, "loop.mode": "async"})
    machine, shape = machine_named(there), read_shape(config.model)
    chosen = plan(config, [machine], NEEDS)
    card = capacity.card_like(machine.gpus[0].name, machine.gpus[0].total_bytes)
    slower = capacity.SHARED if chosen.share == "split" else 1
    length = typical_length(config, shape)
    weights = read_bytes(shape, chosen.dtype, config.model.quantize)
    engines = (chosen.engines_per_gpu,)
    first, second = (
        slower * step_s(shape, chosen.dtype, card, weights, requests, length, *engines)
        for requests in (1, 2)
    )
    ranks, adapter = len(chosen.learners), FP32 * shape.trained_parameters(config.model.adapter)
    return Case(
        actors=len(chosen.actors),
        learners=ranks,
        places=chosen.games_in_flight,
        step_s=first - (second - first),
        request_step_s=second - first,
        answer_tokens=capacity.ANSWER_LENGTH * config.sampling.max_tokens,
        turn_s=slower * length * token_s(shape, card) / ranks,
        hold_s=3 * adapter / COPIED,
        save_s=3 * adapter / DISK,  # with Adam's two moments
        publish_s=HANDING_S + adapter / HANDED,
        batch_size=config.learner.batch_size,
    )


class Busy:
    """Usage of a resource over time, with its number of users."""

    def __init__(self) -> None:
        self.seconds = 0.0  # in use
        self.total = 0.0  # summed over users
        self._users = 0
        self._since = 0.0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Count one more user during the block."""
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    @property
    def users(self) -> int:
        """Current number of users."""
        return self._users

    def _change(self, by: int) -> None:
        now = asyncio.get_running_loop().time()
        self.seconds += (now - self._since) * (self._users > 0)
        self.total += (now - self._since) * self._users
        self._users, self._since = self._users + by, now


class PhaseTracker(Tracker):
    """A tracker of the virtual seconds in each phase of learning."""

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
    """An engine that answers with an empty cell of TicTacToe after an answer's typical time."""

    CHUNK = 16  # tokens between updates of the number of requests

    def __init__(self, case: Case, tokenizer: Any) -> None:
        super().__init__(free_cell(tokenizer))
        self._case = case
        self.busy = Busy()

    async def generate(self, request: SamplingRequest) -> Completion:
        mean = self._case.answer_tokens
        left = 1 + int(random.Random(request.seed).expovariate(1 / (mean - 1)))
        with self.busy.used():
            while left > 0:
                tokens = min(left, self.CHUNK)
                step_s = self._case.step_s + self.busy.users * self._case.request_step_s
                await asyncio.sleep(tokens * step_s)
                left -= tokens
        return await super().generate(request)


class TimedActor(LocalActor):
    """An actor that takes time to serve an adapter."""

    def __init__(self, config: RunConfig, folder: RunFolder, case: Case) -> None:
        tokenizer: Any = TextTokenizer()
        engine = TimedEngine(case, tokenizer)
        super().__init__(config, folder, engine, tokenizer)
        self.busy = engine.busy
        self._publish_s = case.publish_s

    async def publish(self, version: PlayerId, adapter: Adapter | None = None) -> None:
        await asyncio.sleep(self._publish_s)
        await super().publish(version, adapter)


class TimedLearner:
    """A learner that only takes time; it represents all ranks."""

    def __init__(self, folder: RunFolder, case: Case) -> None:
        self._folder, self._case = folder, case
        self.busy, self.disk = Busy(), Busy()
        self._version = 0

    async def update(self, batch: PackedBatch) -> Update:
        samples = batch.num_samples
        with self.busy.used():
            await asyncio.sleep(samples * self._case.turn_s)
        self._version = batch.version + 1
        return Update(version=self._version, metrics={}, advantages=[0.0] * samples)

    async def hold(self) -> HeldVersion:
        with self.busy.used():
            await asyncio.sleep(self._case.hold_s)
        return HeldVersion(self._version, self)

    async def adapter(self, version: int) -> Adapter:
        return Adapter(name=PlayerId.policy(version).name, weights=b"", config={})

    async def save(self, version: int) -> None:
        with self.disk.used():
            await asyncio.sleep(self._case.save_s)
        self._folder.checkpoint(version).mkdir(parents=True)

    async def loss_on(self, batch: PackedBatch) -> MeanLoss:
        raise NotImplementedError

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        raise NotImplementedError

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        raise NotImplementedError

    async def load(self, version: int) -> None: ...

    async def scale_rate(self, factor: float) -> None: ...

    async def restore(self, version: int) -> None: ...


class _Selector(selectors.DefaultSelector):
    """A selector that moves the clock to the next timer instead of waiting."""

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
    """Return a coroutine's result, and the virtual seconds that it took."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        return runner.run(main), runner.get_loop().time()


def config_of(case: Case, folder: Path, updates: int, every: int) -> RunConfig:
    """Return a config of asynchronous self-play with that machine's size."""
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


class Ran:
    """A whole run, with the usage of its resources."""

    def __init__(self, case: Case, config: RunConfig, folder: RunFolder) -> None:
        self.tracker = PhaseTracker(config, folder)
        self.actors = [TimedActor(config, folder, case) for _ in range(case.actors)]
        self.learner = TimedLearner(folder, case)
        self._context = Context(
            config=config,
            folder=folder,
            actors=[*self.actors],
            learner=self.learner,
            tracker=self.tracker,
            rewards=Rewards(config.buffer.rewards),
        )

    async def run(self) -> None:
        """Run from the first game to the last evaluation."""
        await train(self._context)
        self.tracker.phase("over")
        for actor in self.actors:
            await actor.close()

    def used(self, seconds: float) -> dict[str, float]:
        """Return the share of time that each resource is in use; an engine is with any request."""
        engines = sum(actor.busy.seconds for actor in self.actors) / len(self.actors)
        learner = self.learner
        spent = {"engines": engines, "learner": learner.busy.seconds, "disk": learner.disk.seconds}
        return {name: each / seconds for name, each in spent.items()}

    def full(self, case: Case, seconds: float) -> float:
        """Return the mean share of the engines' places that have a request."""
        return sum(actor.busy.total for actor in self.actors) / seconds / case.actors / case.places


def measured(case: Case, updates: int, every: int) -> list[str]:
    """Return one row of the table: seconds per update, and the share of time of each phase."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        config = config_of(case, folder.root, updates, every)
        ran = Ran(case, config, folder)
        with contextlib.redirect_stdout(io.StringIO()):  # the run's own lines
            _, seconds = run_virtually(ran.run())
    shares = [ran.tracker.seconds[phase] / seconds for phase in PHASES]
    used, full = ran.used(seconds), ran.full(case, seconds)
    most = max(used, key=lambda name: used[name])
    why = " (too few games)" if most == "engines" and full < FULL else ""
    return [
        f"{case.actors}, {case.learners}",
        str(case.batch_size),
        f"{seconds / updates:.2f}",
        *(f"{share:.0%}" for share in shares),
        f"{1 - used['engines']:.0%}",
        f"{full:.0%}",
        f"{most}{why}: idle {1 - used[most]:.0%}",
    ]


FULL = 0.5
"""Share of taken places below which engines lack games."""
PHASES = {
    "updating": "learns",
    "playing": "waits for games",
    "publishing": "waits for a version's files",
    "evaluating": "waits for evaluations",
}
HEADINGS = (
    *("case", "actors, learners", "batch", "s per update", *PHASES.values()),
    *("engines without a request", "places taken", "bottleneck"),
)


def main(argv: Sequence[str] | None = None) -> None:
    parsed = parser(__doc__, updates=60, eval_every=5)
    parsed.add_argument("--cases", nargs="+", choices=CASES, default=[*CASES])
    parsed.add_argument("--learners", type=int, help="learner ranks; default: as planned")
    parsed.add_argument("--batch", type=int, help="turns per update; default: the config's")
    arguments = parsed.parse_args(argv)
    given = {"learner.num": arguments.learners, "learner.batch_size": arguments.batch}
    options = {path: value for path, value in given.items() if value is not None}
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for name in arguments.cases:
        row = measured(case_of(name, options), arguments.updates, arguments.eval_every)
        print(f"| {' | '.join([name, *row])} |", flush=True)


if __name__ == "__main__":
    main()
