"""The form of answers is taught before self-play, once, and only where it is not known."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.forms import game
from tests.helpers.machines import machine
from unstable.commands import teach
from unstable.commands.prepare import Resolved, prepare
from unstable.commands.sft import fine_tuned
from unstable.config import ConfigError, ModelConfig, load, parse
from unstable.datasets.examples import Example, Lessons
from unstable.datasets.sources import random_positions
from unstable.engines.kinds import NEEDS
from unstable.games.services import prompt_style
from unstable.loop.sft import EPOCH
from unstable.models.base import load_tokenizer
from unstable.planning.plan import plan
from unstable.planning.resolve import resolve
from unstable.prompts import PromptBuilder
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.types import Segment, TokenSample


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/unstable/starts"


def resolved(tiny_folder: Path, *games: Any, init: str = "fresh") -> Resolved:
    data = {
        "model": {"name": str(tiny_folder), "dtype": "float32", "init": init},
        "games": [each.model_dump() for each in games],
    }
    return prepare(parse(data))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the places of requested starts; the stand-in makes each without teaching."""
    places: list[Path] = []

    def make(config: Any, examples: Any, place: Path) -> None:
        places.append(place)
        place.mkdir(parents=True)
        (place / "taught.json").write_text("{}")
        if "bare" in str(config.games[0].args):
            (place / "adapter_config.json").write_text("{}")

    monkeypatch.setattr(teach, "_make", make)
    return places


def test_format_training_plans_its_own_micro_batches() -> None:
    """Teaching plans its own micro-batches, because it also keeps the mean of the weights."""
    config = load("default", {"model.name": "smollm2-135m", "model.init": "fresh"})
    full = 0
    for megabytes in range(16_000, 16_600, 20):
        small = machine(memory_bytes=megabytes * 10**6, free_bytes=megabytes * 10**6)
        planned = resolve(config, plan(config, [small], NEEDS), "fresh")
        try:
            plan(planned.updated({"learner.ema": 0.98}), [small], NEEDS)
        except ConfigError:
            full += 1
        assert plan(teach._teaching(planned, planned.games), [small], NEEDS).learners
    assert full, "the run's own micro-batches always fit"


def test_start_is_trained_once_per_model_and_games(
    tiny_folder: Path, made: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one = resolved(tiny_folder, game("bare", forms="bare"))
    first = teach.taught(one)
    assert first.config.model.init == str(made[0])
    again = teach.taught(one)
    assert again.config == first.config and len(made) == 1
    line = capsys.readouterr().err
    assert "the model starts from" in line and "trained on the answer format of" in line
    teach.taught(resolved(tiny_folder, game("bare", forms="bare", text="Other rules.")))
    assert len(made) == 2


def test_model_that_knows_the_format_is_unchanged(tiny_folder: Path, made: list[Path]) -> None:
    whole = resolved(tiny_folder, game("bracketed", forms="brackets"))
    assert [teach.taught(whole), teach.taught(whole)] == [whole, whole] and len(made) == 1


def test_some_games_are_not_tested(tiny_folder: Path, made: list[Path], tmp_path: Path) -> None:
    unlisted = game(forms="bare")
    reasoned = game("bare", "think", forms="bare")
    whole = resolved(tiny_folder, unlisted, reasoned.model_copy(update={"name": "reasoned"}))
    assert teach.taught(whole) == whole and not made
    start = tmp_path / "start"
    start.mkdir()
    (start / "base.json").write_text(json.dumps({"games": [unlisted.env]}))
    known = resolved(tiny_folder, game("bare", forms="bare"), init=str(start))
    assert teach.taught(known) == known and not made


def row(epoch: int, *shares: float) -> dict[str, float | None]:
    return {"sft/epoch": epoch} | {f"legal/{number}": each for number, each in enumerate(shares)}


@pytest.mark.parametrize(
    "rows, is_enough",
    [
        ([row(0, 0.9, 0.97)], True),
        ([row(0, 0.5, 0.97)], False),
        ([row(0, 0.1), row(1, 0.95)], False),
        ([row(0, 0.1), row(1, 0.97)], True),
    ],
)
def test_format_training_ends_when_moves_are_legal(rows: Any, is_enough: bool) -> None:
    assert teach._is_enough(rows) is is_enough


def example(prompt: int, move: int = 0) -> Example:
    tokens = TokenSample(prompt_ids=[prompt], segments=(Segment(token_ids=[move]),))
    return Example(env="", seat=0, prompt="", answer="", tokens=tokens)


def lessons_of(epochs: int, **own: Any) -> Lessons:
    shared: Any = {"train": [example(0)], "held_out": [], "seed": 0}
    return Lessons(epochs=epochs, patience=epochs, **shared, **own)


def test_each_lesson_has_new_positions() -> None:
    """Each lesson draws new positions, since a model learns repeated ones by heart."""
    drawn: list[tuple[int, int]] = []

    def draw(lesson: int, times: int) -> list[list[Example]]:
        drawn.append((lesson, times))
        return [
            [example(100 * lesson + each, move) for move in range(each % 3 + 1)]
            for each in range(3 * times)
        ]

    task = lessons_of(30, batch_size=2, positions=3, draw=draw)
    lessons = [task.batches(epoch) for epoch in range(1, 8)]
    assert drawn == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 4), (6, 4), (7, 4)]
    assert [len(each) for each in lessons] == [2, 2, 2, 3, 6, 6, 6]
    for lesson, batches in enumerate(lessons, start=1):
        for batch in batches:  # all moves of a position are in one batch
            moves = Counter(each.prompt_ids[0] for each in batch)
            assert all(count == prompt % 100 % 3 + 1 for prompt, count in moves.items())
            assert all(prompt // 100 == lesson for prompt in moves)
        assert sum(map(len, batches)) == 2 * 3 * drawn[lesson - 1][1]
    versions = [task.version(epoch) for epoch in range(30)]
    made = [len(task.batches(epoch)) for epoch in range(1, 30)]
    assert versions == [sum(made[:epoch]) for epoch in range(30)]
    assert [task.epoch(version) for version in versions] == list(range(30))


def test_position_has_examples_of_all_its_moves() -> None:
    """Or with some of them, where they are many; all sets of moves come up about as often."""
    asked = game("bracketed", forms="brackets", text="Answer.")
    asked = asked.model_copy(update={"legal_moves": f"{__name__}:fewer", "max_turns": 8})
    tokenizer = load_tokenizer(ModelConfig(name="tiny"))
    prompts = PromptBuilder(tokenizer, prompt_style(asked), {}, 512)
    positions = random_positions(asked, prompts, number=20, most=2, seed=0)
    assert len(positions) == 20
    shown = Counter(tuple(sorted(each.answer for each in position)) for position in positions)
    assert all(len({each.prompt for each in position}) == 1 for position in positions)
    assert {len(answers) for answers in shown} == {1, 2}
    again = random_positions(asked, prompts, number=20, most=2, seed=0)
    assert again == positions != random_positions(asked, prompts, number=20, most=2, seed=1)


def fewer(env: Any) -> list[str]:
    return ["[1]", "[2]", "[go home]"][: 1 + 2 * (env.state.game_state["count"] % 2)]


def numbers(env: Any) -> list[str]:
    return ["[1]", "[2]"]


@pytest.mark.slow
async def test_tiny_model_learns_the_format_in_an_epoch(tmp_path: Path) -> None:
    asked = game("bracketed", forms="brackets", text="Answer [1] or [2].")
    asked = asked.model_copy(update={"legal_moves": f"{__name__}:numbers", "max_turns": 8})
    model = {"name": "tiny", "dtype": "float32", "init": "fresh"}
    whole = prepare(parse({"model": model, "games": [asked.model_dump()]})).config
    teaching = teach._teaching(whole, whole.games)
    own = {"batch_size": teaching.learner.batch_size, "positions": teach.POSITIONS}
    task = lessons_of(9, draw=partial(teach._positions, teaching), **own)
    config = prepare(fine_tuned(teaching, task)).config
    folder = RunFolder(tmp_path)
    learner = LocalLearner(config, folder)
    actor = await LocalActor.start(config, folder, tmp_path / "engine.log")
    shares: list[float] = []
    for epoch in range(3):
        for batch in task.batches(epoch) if epoch else []:
            await learner.imitate(batch)
        version = learner.learner.version
        await (await learner.hold()).save()
        shares += teach._legal(await teach._ask(config, [actor], version)).values()
    await actor.close()
    assert shares[0] < teach.KNOWN and max(shares) >= teach.TAUGHT


def test_stuck_format_training_warns_once(capsys: pytest.CaptureFixture[str]) -> None:
    lesson = teach._Lesson(load("tiny"))
    for step, legal in ((100, 0.2), (200, 0.35), (500, 0.36), (600, 0.36), (800, 0.36), (900, 0.3)):
        lesson.log_epoch({"version": step, EPOCH: step // 100, "legal/Nim-v0": legal})
    said = [line for line in capsys.readouterr().err.splitlines() if "have not risen" in line]
    assert len(said) == 1 and "above 35 % in 500 steps" in said[0] and "unstable world" in said[0]
