"""A run that was cut off anywhere and goes on is the run that was not."""

import asyncio
import contextlib
import functools
import json
import re
import shutil
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from examples.loop import loop as own_loop
from tests.helpers.loop import Begin, lines, make_context, played, publish_start
from tests.helpers.mistakes import line_of, refused
from tests.helpers.resume import rows, trained_on, weights
from unstable.commands.resume import MAY_CHANGE, changed, find_point, fork, resume, rewind
from unstable.commands.train import Loop
from unstable.config import ConfigError, RunConfig, fields
from unstable.league.evaluation import evaluation_games
from unstable.league.ratings import Registry
from unstable.loop.context import Context, make_registry
from unstable.loop.evaluating import evaluate
from unstable.loop.state import parse
from unstable.loop.train import play_share, state, train
from unstable.records.folder import RunFolder
from unstable.records.games import read_game
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalActor
from unstable.types import PlayerId


class CutError(BaseException):
    """Simulated end of the process, which nothing may catch."""


def cut_off(context: Context, at: int) -> None:
    """Have the process end at the `at`-th of what it does that is seen from outside.

    Games that end together are as many, of which none is seen where it ends there.
    """
    left = at

    def counting(owner: Any, name: str) -> None:
        own = getattr(owner, name)

        @functools.wraps(own)
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= len(arguments[0]) if name == "add_games" else 1
            if left < 0:
                raise CutError
            return own(*arguments, **named)

        setattr(owner, name, counted)

    for name in ("phase", "add_games", "add_eval_episode", "log_samples", "end_update"):
        counting(context.tracker, name)
    counting(context.learner, "save")
    for actor in context.actors:
        counting(actor, "publish")
        counting(actor, "retire")


async def resumed(
    folder: Path, run_dir: Path, said: list[str] | None = None, **changes: Any
) -> Context:
    """Resume like `commands.resume`, without processes; `said` receives the printed lines."""
    run = RunFolder(run_dir)
    point = find_point(run, "--resume")
    rewind(run, point, is_synchronous=changes["loop"]["mode"] == "sync")
    context = make_context(folder, run_dir, **changes)
    if said is not None:
        context.tracker.print = said.append  # type: ignore[assignment]
    await context.learner.load(point.version)
    await state.restore(context, point.state)
    return context


def settings(mode: str, **more: Any) -> dict[str, Any]:
    return {
        "loop": {"mode": mode, "steps": 4},
        "actors": {"games_in_flight": 6},
        "opponents": {
            "draw": {"self": 1, "past": 2, "fixed": 1},
            "past": [{"rule": "pfsp", "weight": 2}, "quality"],
            "fixed": [{"kind": "random"}],
            "pool_size": 2,
            "pinned": [0, "best"],
        },
        "eval": {"every": 2, "games": 4},
        "groups": {"by": "game", "size": 2},
        **more,
    }


async def broken_off(
    folder: Path, run_dir: Path, cuts: list[int], own: Loop = train, **changes: Any
) -> Context:
    """A run that is cut off at each of `cuts`, counted from where it went on, and then ends."""
    context = make_context(folder, run_dir, **changes)
    for at in cuts:
        cut_off(context, at)
        with pytest.raises(CutError):
            await own(context)
        context.tracker.close()
        try:
            context = await resumed(folder, run_dir, **changes)
        except ConfigError:  # ended before its first complete version
            shutil.rmtree(run_dir)
            context = make_context(folder, run_dir, **changes)
    assert await own(context) == "all updates made"
    return context


@pytest.fixture(scope="module")
def whole(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run in synchronous mode that nothing cut off."""
    context = make_context(tiny_folder, tmp_path_factory.mktemp("w") / "run", **settings("sync"))
    asyncio.run(train(context))
    return context.folder


def assert_equal(one: RunFolder, other: RunFolder) -> None:
    """Compare the weights after the last update, and the rows."""
    assert weights(one, 4) == weights(other, 4)
    assert rows(one) == rows(other)


async def whole_and_cut(
    folder: Path, root: Path, cuts: list[int], **changes: Any
) -> tuple[Context, Context]:
    """Return a run that nothing cut off and one that was, which are equal."""
    whole = await broken_off(folder, root / "whole", [], **changes)
    cut = await broken_off(folder, root / "cut", cuts, **changes)
    assert_equal(cut.folder, whole.folder)
    assert played(cut.folder) == played(whole.folder)
    return whole, cut


async def test_documented_loop_resumes(tiny_folder: Path, tmp_path: Path, whole: RunFolder) -> None:
    """A resumed run of `examples/loop.py` has the games, weights and rows of an unbroken run."""
    context = await broken_off(tiny_folder, tmp_path / "run", [40], own_loop, **settings("sync"))
    folder = context.folder
    assert trained_on(folder) == trained_on(whole)
    assert_equal(folder, whole)


@pytest.mark.parametrize("cuts", [[6], [30], [33, 1, 2], [70, 40], [75, 3, 50, 9]])
async def test_resumed_sync_run_is_bit_identical(
    tiny_folder: Path, tmp_path: Path, whole: RunFolder, cuts: list[int]
) -> None:
    context = await broken_off(tiny_folder, tmp_path / "run", cuts, **settings("sync"))
    folder = context.folder
    assert_equal(folder, whole)
    assert folder.versions() == whole.versions()
    assert trained_on(folder) == trained_on(whole)
    for purpose in ("train", "eval"):
        assert played(folder, purpose) == played(whole, purpose)
    assert chosen(folder) == chosen(whole)


async def test_resumed_full_weight_run_is_bit_identical(tiny_folder: Path, tmp_path: Path) -> None:
    changes = settings(
        "sync",
        model={"name": "tiny", "init": "fresh", "dtype": "bfloat16", "adapter": "none"},
        learner={
            "batch_size": 16,
            "micro_batch_size": 8,
            "ema": 0.9,
            "algorithm": {"name": "reinforce", "kl_loss": 0.1, "reference": {"every": 2}},
        },
    )
    whole, _ = await whole_and_cut(tiny_folder, tmp_path, [12, 9], **changes)
    assert weights(whole.folder, 4) != weights(whole.folder, 0)
    kept = [path.name for path in whole.folder.checkpoint(0).iterdir()]
    assert kept == ["model.safetensors"]  # an old version kept as an opponent


async def test_resumed_curriculum_is_bit_identical(tiny_folder: Path, tmp_path: Path) -> None:
    changes = settings(
        "sync",
        model={"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 4}},
        games=[{"env": "TicTacToe-v0"}, {"env": "TicTacToe-v0", "name": "again"}],
        curriculum={"rule": "spread"},
        learner={"batch_size": 48, "micro_batch_size": 24, "env_weights": "spread"},
        eval={"every": 0},
    )
    whole, cut = await whole_and_cut(tiny_folder, tmp_path, [9, 6, 4], **changes)
    for context in (cut, whole):
        assert all(each.trajectories for each in context.curriculum.stats())
        assert context.schedule.envs not in ([], [0.5, 0.5])
    assert cut.schedule.state() == whole.schedule.state()
    assert cut.curriculum.state() == whole.curriculum.state()


async def test_resumed_worst_case_metrics_are_bit_identical(
    tiny_folder: Path, tmp_path: Path
) -> None:
    kuhn = {"env": "unstable.games.catalog.kuhn:KuhnPoker", "name": "Kuhn", "prompt": "compact"}
    changes = settings(
        "sync",
        model={"name": "tiny_cards", "init": "fresh", "dtype": "float32", "adapter": {"rank": 4}},
        games=[{**kuhn, "args": {"max_rounds": 1}}],
        sampling={"max_tokens": 6},
        eval={"every": 0, "exploitability": {"every": 1}},
    )
    whole, cut = await whole_and_cut(tiny_folder, tmp_path, [9, 7, 5], **changes)
    found = [pair for row in rows(cut.folder) for pair in row.items() if "/past_" in pair[0]]
    assert len({value for _, value in found}) > 8
    assert cut.folder.measured() == [0, 1, 2, 3, 4]
    for context in (whole, cut):
        for actor in context.actors:
            assert isinstance(actor, LocalActor)
            await actor.close()


def chosen(folder: RunFolder) -> tuple[Any, ...]:
    """Return the past opponents, their probabilities, their payoffs and how often each was met."""
    kept = parse(folder.state(4).read_bytes(), 4)
    assert kept is not None and len(kept.registry.probabilities["main"]) == 3
    registry = kept.registry
    return registry.past, registry.probabilities, registry.payoffs, kept.schedule.met


@pytest.mark.parametrize("done", ["save", "publish"])
async def test_half_published_version_is_made_again(
    begin: Begin, tiny_folder: Path, whole: RunFolder, done: str
) -> None:
    """The process ends when version 2 has its checkpoint, or the actor has it, but not both."""
    context = begin(**settings("sync"))
    folder, owners = context.folder, {"save": context.learner, "publish": context.actors[0]}
    (other,) = owners.keys() - {done}
    own, last = {name: getattr(owner, name) for name, owner in owners.items()}, asyncio.Event()

    async def noted(version: Any, *adapter: Any) -> None:
        await own[done](version, *adapter)
        if version in (2, context.player(2)):
            last.set()

    async def cut(version: Any, *adapter: Any) -> None:
        if version in (2, context.player(2)):
            await last.wait()
            raise CutError
        await own[other](version, *adapter)

    setattr(owners[done], done, noted)
    setattr(owners[other], other, cut)
    with pytest.raises(CutError):
        await train(context)
    assert context.version == 1 and not folder.state(2).exists()
    assert folder.checkpoint(2).exists() == (done == "save")
    context.tracker.close()
    context = await resumed(tiny_folder, folder.root, **settings("sync"))
    assert context.version == 1
    await train(context)
    assert_equal(folder, whole)


@pytest.mark.slow
async def test_resume_after_any_event(tiny_folder: Path, tmp_path: Path, whole: RunFolder) -> None:
    """Each eleventh event of the whole run: rounds are of other lengths, so all kinds are met."""
    for at in range(0, 120, 11):
        context = await broken_off(tiny_folder, tmp_path / str(at), [at], **settings("sync"))
        assert weights(context.folder, 4) == weights(whole, 4), at
        assert rows(context.folder) == rows(whole), at


def recounted(context: Context) -> dict[str, dict[str, int]]:
    """Count the results of the recorded games with a new registry."""
    registry: Registry = make_registry(context.config)
    for version in range(5):
        registry.add(PlayerId.policy(version))
    for purpose in ("train", "eval"):
        for path in sorted((context.folder.root / "games").glob(f"{purpose}-*")):
            for line in lines(path):
                registry.record([read_game("", line)])
    return registry.state().results


@pytest.mark.parametrize("cuts", [[6], [34], [33, 1, 2], [60, 40], [75, 3, 50, 9]])
@pytest.mark.parametrize("size", [1, 3])
async def test_async_resume_keeps_each_finished_game_once(
    tiny_folder: Path, tmp_path: Path, cuts: list[int], size: int
) -> None:
    changes = settings("async", groups={"by": "game", "size": size})
    run_dir, before = tmp_path / "run", Counter[int]()
    context = make_context(tiny_folder, run_dir, **changes)
    for at in [*cuts, 10**6]:
        if context.folder.versions():
            context = await resumed(tiny_folder, run_dir, **changes)
        cut_off(context, at)
        with contextlib.suppress(CutError):
            assert await train(context) == "all updates made"
        context.tracker.close()
        on_file = Counter(game["game"] for game in played(context.folder))
        assert max(on_file.values(), default=1) == 1
        assert before <= on_file, "a finished game was lost"
        before = on_file
    assert [row["version"] for row in read_rows(context.folder.metrics)] == [0, 1, 2, 3, 4]
    trained = Counter(trained_on(context.folder))
    assert max(trained.values()) == 1
    assert {game for game, _ in trained} <= set(before)
    assert sum(row["collect/games"] for row in read_rows(context.folder.metrics)) <= len(before)
    score = "eval/TicTacToe-v0/random/sampled/score"
    scored = [r["version"] for r in read_rows(context.folder.metrics) if r.get(score) is not None]
    assert scored == [0, 2, 4], "each due evaluation is recorded once"
    for version in scored:
        games = lines(context.folder.games("eval", version))
        assert sorted(game["game"] for game in games) == [0, 1, 2, 3]
    assert context.registry.state().results == recounted(context)
    # No game is missing, except the last ones, which were in flight.
    assert set(range(max(before))) - set(before) <= set(context.in_flight) | set(
        spec.game_id for spec in context.schedule.ahead(context.current)
    )


async def test_branches_and_buffer_are_restored(tiny_folder: Path, tmp_path: Path) -> None:
    changes = settings(
        "sync",
        groups={"by": "branch", "size": 3, "fork": "uncertain"},
        learner={"batch_size": 10, "micro_batch_size": 8, "algorithm": {"name": "grpo"}},
    )
    await whole_and_cut(tiny_folder, tmp_path, [22, 13], **changes)


async def test_evaluation_keeps_training_games_in_flight(tiny_folder: Path, tmp_path: Path) -> None:
    """Evaluation, whose games also have the numbers 0, 1, ..., leaves training games in flight."""
    context = make_context(tiny_folder, tmp_path, **settings("async", eval={"games": 12}))
    await publish_start(context)
    dealt = [s for _ in range(4) for s in context.schedule.draw(0, context.current, context.past)]
    context.in_flight = {spec.game_id: spec for spec in dealt}
    await evaluate(context, context.version)
    assert len(played(context.folder, "eval")) == 12 > len(dealt)
    assert [*context.in_flight.values()] == dealt
    await play_share(context, 0, dealt[:2], enough=1000)
    assert [*context.in_flight.values()] == dealt[2:]


@pytest.mark.parametrize(
    "changes, left",
    [
        ({"opponents": "base"}, 8),
        ({"opponents": ["base", "random"]}, 16),
        ({"games": 6}, 16),
        ({"games": 2, "temperature": 0.0}, 4),
        ({"votes": 3}, 8),
        ({"constrained": True}, 0),
    ],
)
async def test_gains_compare_only_games_of_both_evaluations(
    begin: Begin, tiny_folder: Path, tmp_path: Path, changes: dict[str, Any], left: int
) -> None:
    before = {"games": 4, "opponents": ["random", "base"], "temperature": [1.0, 0.0]}
    context = begin(**settings("sync", eval=before))
    await publish_start(context)
    specs = evaluation_games(context.config, 0)
    context.first_scores = {spec.game_id: spec.game_id / 100 for spec in specs}
    state.save(context, await state.actor_states(context))
    context.tracker.close()
    said: list[str] = []
    after = await resumed(
        tiny_folder, tmp_path / "run", said, **settings("sync", eval=before | changes)
    )
    scores = after.first_scores
    played = {spec.game_id: spec for spec in evaluation_games(after.config, 0)}
    assert len(scores) == left
    for number, score in scores.items():
        assert replace(played[number], game_id=round(score * 100)) in specs
    lines = [line for line in said if line.startswith("gains cover")]
    few = f"gains cover {left} of {len(played)} games: version 0 did not play the others"
    assert lines == ([few] if left < len(played) else [])


@pytest.mark.parametrize("name", ["learner.pt", "adapter_model.safetensors", "run_state.json"])
async def test_damaged_checkpoint_is_skipped(
    tiny_folder: Path, tmp_path: Path, whole: RunFolder, name: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole.root, run_dir)
    folder = RunFolder(run_dir)
    part = folder.checkpoint(4) / name
    part.write_bytes(part.read_bytes()[:-100])
    point = find_point(folder, "--resume")
    assert (point.version, point.broken) == (3, (4,))
    await train(await resumed(tiny_folder, run_dir, **settings("sync")))
    assert_equal(folder, whole)


@pytest.mark.parametrize(
    "path, value",
    [
        ("version", "x"),
        ("version", 3),
        ("version", True),
        ("finalized", 1),
        ("marks", 3),
        ("marks", {"metrics.jsonl": 0}),
        ("marks.metrics.jsonl", -1),
        ("marks.metrics.jsonl", 0.5),
        ("marks.../victim.txt", 0),
        ("published", [[]]),
        ("oldest", -(10**12)),
        ("registry", {}),
        ("registry.ratings", {}),
        ("registry.ratings.main@9", [25.0, 8.0]),
        ("schedule.now.random", [3, [1, 2], None]),
        ("schedule.shares", {"friends": 1.0}),
        ("guard.histories", [1]),
        ("buffer.dropped", {}),
        ("in_flight", [-1]),
        ("in_flight", ["1"]),
        ("in_flight", [10**12]),
        ("old_in_flight", [{"game": 1}]),
        ("tracker.play", []),
        ("actors", [{}]),
    ],
)
def test_state_of_another_shape_is_skipped(
    tmp_path: Path, whole: RunFolder, path: str, value: Any
) -> None:
    folder = RunFolder(shutil.copytree(whole.root, tmp_path / "run"))
    state = json.loads(folder.state(4).read_text())
    section, _, name = path.partition(".") if path.startswith("marks.") else path.rpartition(".")
    owner = functools.reduce(dict.__getitem__, section.split(".") if section else [], state)
    if not name:
        owner, name = state, section
    owner[name] = value
    folder.state(4).write_text(json.dumps(state))
    point = find_point(folder, "--resume")
    assert (point.version, point.broken) == (3, (4,))


def test_state_without_a_part_is_invalid(whole: RunFolder) -> None:
    def is_whole() -> bool:
        return parse(json.dumps(state).encode(), 4) is not None

    state = json.loads(whole.state(4).read_text())
    assert is_whole()
    spare = []
    for name, part in [*state.items()]:
        del state[name]
        spare += [name] if is_whole() else []
        state[name] = part
        for each, value in [*part.items()] if isinstance(part, dict) and name != "marks" else []:
            del part[each]
            spare += [f"{name}.{each}"] if is_whole() else []
            part[each] = value
    # Missing in runs of an older release.
    older = {"format", "guard.games", "registry.anchor", "registry.equals", "tracker.beside"}
    assert {*spare} == older


def test_state_of_another_format_is_one_line(tmp_path: Path, whole: RunFolder) -> None:
    folder = RunFolder(shutil.copytree(whole.root, tmp_path / "run"))
    folder.state(4).write_text('{"format": 3, "ratings": {}}')
    refused("format = 3: unsupported; this release of unstable re", find_point, folder, "--resume")
    folder.state(4).write_text("[]")
    assert find_point(folder, "--resume").version == 3


def test_changeable_fields_are_documented_and_exist() -> None:
    text = (Path(__file__).parent.parent.parent / "docs/reliability.md").read_text()
    listed = text.partition("### Fields a resume may change")[2].split("```")[1].split()
    assert sorted(listed) == sorted(MAY_CHANGE)
    paths = [re.sub(r"\bN\b", "0", field.path) for field in fields(RunConfig)]
    assert [may for may in MAY_CHANGE if not any(fnmatch(path, may) for path in paths)] == []


FOUR_UPDATES = json.dumps({"model": {"name": "tiny"}, "loop": {"steps": 4, "mode": "sync"}})


async def test_forbidden_change_is_one_line(tmp_path: Path, whole: RunFolder) -> None:
    whole.config.write_text(FOUR_UPDATES)
    for name, value, problem in (
        ("learner.learning_rate", 1.0, "learner.learning_rate = 1.0: cannot change on resume"),
        ("games.0.env", "Nim-v0", "games.0.env = 'Nim-v0': cannot change on resume (it is"),
        ("actors.policy_refresh", "turn", "actors.policy_refresh = 'turn': cannot change on r"),
        ("seed", 3, "seed = 3: cannot change on resume (it is "),
        ("tracking.run_dir", "x", "tracking.run_dir: a resumed run keeps its folder"),
        ("eval.every", -1, "eval.every = -1"),
        ("loop.steps", 4, "loop.steps = 4: the run has already made 4 updates; set --steps"),
    ):
        assert line_of(resume, whole.root, {name: value}).startswith(problem)
    assert changed(whole, {"loop.steps": 9, "eval.games": 8, "actors.num": 1}).loop.steps == 9
    refused("has no config.yaml; give the folder of a training", resume, tmp_path, {})
    (tmp_path / "config.yaml").write_text("{}")
    refused("nothing to resume from .it ended before its first", resume, tmp_path, {})


@pytest.mark.parametrize(
    "origin, field, value, problem",
    [
        ({}, "kl_loss", 0.2, "the saved state has no reference"),
        ({}, "kl_reward", 0.1, "the saved state has no reference"),
        ({}, "name", "grpo", "the saved state is of 'reinforce'"),
        ({"name": "ppo"}, "critic", None, "the saved state has"),
        ({"name": "ppo", "critic": None}, "critic.kind", "head", "the saved state has critic None"),
        ({"name": "ppo"}, "critic.kind", "adapter", "the saved state has critic 'head'"),
        ({"name": "vrpo"}, "critic.sees", "seat", "the saved critic sees 'state'"),
        ({}, "ema", 0.9, "the saved state has no running mean of the weights"),
    ],
)
def test_fork_with_unfitting_state_is_one_line(
    tmp_path: Path, origin: dict[str, Any], field: str, value: Any, problem: str
) -> None:
    """Before anything is loaded: the model is none."""
    folder = RunFolder(tmp_path)
    algorithm = {"name": "reinforce"} | origin
    config = {"model": {"name": "tiny"}, "learner": {"algorithm": algorithm}}
    folder.config.write_text(json.dumps(config))
    folder.checkpoint(2).mkdir(parents=True)
    (folder.checkpoint(2) / "learner.pt").touch()
    prefix = "learner." if field == "ema" else "learner.algorithm."
    said = line_of(fork, tmp_path, 2, {f"{prefix}{field}": value})
    named = "critic.kind" if field == "critic" else field
    assert said.startswith(f"{prefix}{named} = {value!r}: {problem}")
    assert said.endswith("; add --fork_state false")


def test_resumed_run_is_planned_by_measured_lengths(
    whole: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at is what the plan is given: without cards none depends on it."""
    run = RunFolder(shutil.copytree(whole.root, tmp_path / "run"))
    run.config.write_text(FOUR_UPDATES)
    given = []

    def prepared(config: RunConfig, *, request_tokens: float | None) -> None:
        given.append(request_tokens)
        raise ConfigError("enough")

    monkeypatch.setattr("unstable.commands.resume.prepare", prepared)
    refused("enough", resume, run.root, {"loop.steps": 5})
    asked = [row for row in read_rows(whole.metrics) if row["collect/engine/requests"]]
    requests = sum(row["collect/engine/requests"] for row in asked)
    tokens = sum(r["collect/engine/requests"] * r["collect/engine/request_tokens"] for r in asked)
    assert given == [pytest.approx(tokens / requests)] and tokens > 0
