"""`unstable replay`: what a record says is found again, what it does not say is found out."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import asking
from tests.helpers.cli import ran
from tests.helpers.mistakes import line_of, refused
from tests.helpers.records import Record, flat
from tests.helpers.rows import every_row
from tests.helpers.terminals import listing, make_run, run_config, saved, typed
from unstable.cli import run
from unstable.collectors.players.model import seed_after_budget
from unstable.commands.audit.audit import distance, rounding
from unstable.commands.play.found import find
from unstable.config import ConfigError
from unstable.engines.embedded.sampling import uniforms
from unstable.engines.kinds import make_engine
from unstable.engines.probe import BOUNDS
from unstable.records.files import read_lines, write_lines
from unstable.records.folder import RunFolder
from unstable.types import SampledTokens, Segment

TRAIN, EVAL = ("--purpose", "train"), ("--purpose", "eval")


@pytest.fixture(scope="module")
def made(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("project") / "run", tiny_folder)


@pytest.fixture
def copied(made: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Copy the run, to tamper with it, and change to the folder that holds the copy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return RunFolder(shutil.copytree(made.root, tmp_path / "run"))


def rows(folder: RunFolder, purpose: Any) -> list[Record]:
    return [flat(row) for _, row in read_lines(folder.games(purpose, 1))]


def tamper(folder: RunFolder, purpose: Any, game: int, change: Callable[[Record], object]) -> None:
    """Alter the record of a game."""
    records = rows(folder, purpose)
    (record,) = (record for record in records if record["game"] == game)
    change(record)
    write_lines(folder.games(purpose, 1), records)


def test_replays_of_all_games_are_identical(
    copied: RunFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Mirror games, openings, branches, votes and answers held to legal moves, played all at once.

    Alone, in other company, the embedded engine samples the same tokens from them.
    """
    before = listing(copied.root)
    kinds = {"opening": 0, "fork": 0, "votes": 0, "models": 0}
    for purpose in (TRAIN, EVAL):
        for row in rows(copied, purpose[1]):
            assert run(["replay", "run", str(row["game"]), *purpose]) == 0
            shown = capfd.readouterr().out
            models = sum(bool(turn["sampled"]) for turn in row["turns"])
            outcome = ", ".join(f"{o:+g}" if o else "0" for o in row["outcomes"])
            assert f"Identical: {len(row['turns'])} turns, outcome {outcome}" in shown
            if models:
                assert f"{models} of {models} model turns sampled the same tokens" in shown
            assert shown.count("\nturn ") == len(row["turns"])
            scripted = [turn for turn in row["turns"] if turn["player"] in ("random", "expert")]
            assert shown.count("same answer again") == len(scripted)
            kinds["opening"] += row["opening"]
            kinds["fork"] += row["fork"]
            kinds["votes"] += any(turn["votes"] is not None for turn in row["turns"])
            kinds["models"] += models
    assert min(kinds.values()) > 0, kinds
    assert listing(copied.root) == before


def adds(place: str, amount: Any) -> Callable[[Record], None]:
    """Return a function that adds to the value at a place such as `outcomes.0`."""

    def change(record: Record) -> None:
        owner: Any = record
        *way, last = (int(part) if part.isdecimal() else part for part in place.split("."))
        for each in way:
            owner = owner[each]
        owner[last] += amount

    return change


SEGMENT = "turns.0.sampled.segments.0"


def other_action(record: Record) -> None:
    answer = record["turns"][1]["answer"]
    answer["action"] = "[8]" if answer["action"] != "[8]" else "[7]"


def other_reading(record: Record) -> None:
    """Another legal move than the tokens say."""
    turns = record["turns"]
    taken = {turn["action"] for turn in turns}
    turns[0]["answer"]["action"] = next(f"[{c}]" for c in range(9) if f"[{c}]" not in taken)


def accepted(record: Record) -> None:
    record["turns"][0]["invalid"] = not record["turns"][0]["invalid"]


def longer(record: Record) -> None:
    record["turns"].append(dict(record["turns"][-1], index=len(record["turns"])))


@pytest.mark.parametrize(
    "change, line",
    [
        (other_action, r"turn 2: expert: recorded '\[\d\]', now '\[\d\]'"),
        (
            adds("turns.2.answer.observation", "!"),
            r"turn 3: the observation: recorded '.*!', now '.*'",
        ),
        (adds(f"{SEGMENT}.token_ids.0", 1), r"turn 1: main@1: recorded"),
        (adds("turns.0.sampled.prompt_ids.0", 1), r"turn 1: the prompt's tokens"),
        (accepted, r"turn 1: the env now (accepts|rejects) the action"),
        (other_reading, r"turn 1: the action of these tokens: recorded '\[\d\]', now"),
        (
            adds(f"{SEGMENT}.logprobs.0", 0.5),
            r"turn 1: the log-probabilities of these tokens, by up to 0.5",
        ),
        (adds("outcomes.0", 1), r"the end: outcomes: recorded \["),
        (longer, r"turn \d: number of turns: recorded \d, now \d"),
    ],
)
def test_first_difference_is_reported(
    copied: RunFolder,
    capfd: pytest.CaptureFixture[str],
    change: Callable[[Record], None],
    line: str,
) -> None:
    tamper(copied, "eval", 1, change)  # main@1 against expert, constrained to legal moves
    assert run(["replay", "run", "1", *EVAL]) == 1
    shown = capfd.readouterr().out
    assert re.search(f"differs at {line}", shown)
    assert "Identical" not in shown


def test_another_seed_is_detected(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    text = copied.config.read_text().replace("\nseed: 11\n", "\nseed: 12\n")
    copied.config.write_text(text)
    assert run(["replay", "run", "0", *TRAIN]) == 1
    assert "The replay differs at turn 1: main@1: recorded" in capfd.readouterr().out


async def test_rounding_explains_only_samples_at_a_boundary(tiny_folder: Path) -> None:
    """A real engine answers by seeds; of one its number is moved to just beyond a boundary."""
    engine, _ = await make_engine(run_config(tiny_folder), tiny_folder / "engine.log")
    options: Any = {"temperature": 0.7, "max_tokens": 8}
    prompt_ids = [7, 8, 9]
    completion = await engine.generate(asking(prompt_ids, seed=1, **options))
    now = SampledTokens(prompt_ids=prompt_ids, segments=(completion,), temperature=0.7, version=0)

    async def explained(token_id: int, dtype: str, place: int = 1) -> float | None:
        changed = [*now.token_ids[:place], token_id, 5, 5]
        then = replace(now, segments=(replace(completion, token_ids=changed),))
        return await rounding(engine, None, then, now, 1, vocabulary=132, dtype=dtype)

    right = now.token_ids[1]
    misses = {each: await explained(each, "bfloat16") for each in (right - 1, right + 1)}
    assert await explained((right + 66) % 132, "bfloat16") is None
    beginning, every_token = [*prompt_ids, now.token_ids[0]], [[t] for t in range(132)]
    scores = [each[0] for each in await engine.score(beginning, every_token, adapter=None)]
    number = float(uniforms(np.array([1], dtype=np.uint64), np.array([1]))[0])
    assert distance(scores, 0.7, right, number) == 0.0  # the sampled token
    for token_id, miss in misses.items():
        assert miss == distance(scores, 0.7, token_id, number) > 0
        assert await explained(token_id, "float32") == (miss if miss <= 0.00025 else None)
    assert await explained(now.token_ids[0], "bfloat16", place=len(now.token_ids)) is None
    await engine.close()


async def test_rounding_uses_the_seed_after_a_forced_end(tiny_folder: Path) -> None:
    engine, _ = await make_engine(run_config(tiny_folder), tiny_folder / "engine.log")
    options: Any = {"temperature": 0.7, "max_tokens": 8}
    begun = await engine.generate(asking([7, 8, 9], seed=1, **options))
    inserted = Segment(token_ids=[5, 6], scored=False)
    before = [7, 8, 9, *begun.token_ids, 5, 6]
    rest = await engine.generate(asking(before, seed=seed_after_budget(1), **options))
    segments = (begun, inserted, rest)
    now = SampledTokens(prompt_ids=[7, 8, 9], segments=segments, temperature=0.7, version=0)
    right = rest.token_ids[1]
    scored = await engine.score(
        [*before, rest.token_ids[0]], [[t] for t in range(132)], adapter=None
    )
    number = float(uniforms(np.array([seed_after_budget(1) % 2**64], np.uint64), np.array([1]))[0])
    for token_id in (right - 1, right + 1):
        changed = replace(rest, token_ids=[rest.token_ids[0], token_id, 5])
        then = replace(now, segments=(begun, inserted, changed))
        found = await rounding(engine, None, then, now, 1, vocabulary=132, dtype="bfloat16")
        miss = distance([each[0] for each in scored], 0.7, token_id, number)
        assert found == (miss if miss <= BOUNDS["bfloat16"].mean / 4 else None)
    other = replace(now, segments=(begun, replace(inserted, token_ids=[5, 7]), rest))
    assert await rounding(engine, None, other, now, 1, vocabulary=132, dtype="bfloat16") is None
    await engine.close()


def test_game_with_truncated_thoughts_is_replayed(
    tiny_folder: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Several segments an answer, and prompts that hold earlier thoughts."""
    monkeypatch.setenv("COLUMNS", "200")
    model = here / "model"
    shutil.copytree(tiny_folder, model)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if add_generation_prompt %}<think>{% endif %}")
    sampling = {"max_tokens": 24, "thoughts": {"budget": 8, "keep": 40, "ending": "Now."}}
    records = rows(make_run(here / "run", model, sampling=sampling), "train")
    segments = [len(t["sampled"]["segments"]) for r in records for t in r["turns"] if t["sampled"]]
    assert segments.count(3) > len(segments) / 2
    for record in records[:2]:
        assert run(["replay", "run", str(record["game"]), *TRAIN]) == 0
        assert "sampled the same tokens again" in capfd.readouterr().out


@given(
    st.lists(st.floats(-8, 0), min_size=1, max_size=9),
    st.floats(0.1, 3),
    st.floats(0, 1, exclude_max=True),
)
def test_distance_from_a_share(logprobs: list[float], temperature: float, number: float) -> None:
    gaps = [distance(logprobs, temperature, at, number) for at in range(len(logprobs))]
    own = gaps.index(min(gaps))
    assert gaps[own] == 0
    shares = np.exp(np.array(logprobs) / temperature - max(logprobs) / temperature)
    shares /= shares.sum()
    for at, gap in enumerate(gaps):  # at least the shares between them
        between = shares[min(at, own) + 1 : max(at, own)].sum()
        assert between - 1e-6 <= gap <= between + shares[own] + 1e-6


def test_why_a_model_is_not_repeated(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(copied.checkpoint(1))
    assert run(["replay", "run", "0", *TRAIN]) == 0
    shown = capfd.readouterr().out
    assert "not repeated: main@1: its checkpoint is no longer in run/checkpoints" in shown
    assert "Identical: " in shown and "model turns" not in shown

    text = copied.config.read_text()
    copied.config.write_text(text.replace("  engine: embedded", "  engine: vllm"))
    assert run(["replay", "run", "2", *EVAL]) == 0
    shown = capfd.readouterr().out
    assert "base: the engine was vllm, which repeats only up to rounding" in shown

    copied.config.write_text(re.sub(r"  name: .*/tiny\n", "  name: ./gone\n", text))
    assert run(["replay", "run", "2", *EVAL]) == 0
    assert "base: model.name = './gone': no such folder" in capfd.readouterr().out


def test_evaluation_without_opponents_is_one_line(copied: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"^eval.opponents = \[\]: no games to play"):
        run(["eval", "run", "--eval.opponents", "[]"])


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_damaged_adapter_is_one_line_in_every_command(
    copied: RunFolder, file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before a model is loaded; `replay` goes on without it."""
    path = copied.checkpoint(1) / file
    path.write_bytes(path.read_bytes()[:100])
    line = rf"^run/checkpoints/000001: its {file} (is invalid JSON|cannot be read)"
    for command in ("eval", "exploit", "export"):
        refused(line, run, [command, "run@1"])
    assert run(["replay", "run", "0", *TRAIN]) == 0
    assert f"not repeated: main@1: run/checkpoints/000001: its {file}" in capfd.readouterr().out


def test_game_of_a_person_is_replayed(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    with typed("?\n0\n1\n2\n3\n4\n5\n6\n7\n8\n" * 3):
        assert run(["play", "run@1", "--game", "TicTacToe-v0", "--seed", "4"]) == 0
    capfd.readouterr()
    folder, result = saved(copied.root.parent)
    assert run(["replay", str(folder.root), "0"]) == 0
    shown = capfd.readouterr().out
    models = sum(turn.answer.sampled is not None for turn in result.turns)
    assert models >= 2
    assert f"{models} of {models} model turns sampled the same tokens again" in shown
    assert "not repeated: person: a person played" in shown
    assert shown.count("in its prompt: ") == models
    assert "in its prompt: 012345678" not in shown  # it has the person's X


def test_another_player_takes_over(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    before = listing(copied.root)
    (record,) = (each for each in rows(copied, "eval") if each["game"] == 1)
    arguments = ["replay", "run", "1", *EVAL, "--from", "3", "--with", "expert", "--seed", "9"]
    assert run(arguments) == 0
    shown = capfd.readouterr().out
    assert "expert at seat 0, expert at seat 1." in shown
    assert "Turns 1 to 2 are replayed from the record." in shown
    assert re.search(r"seat 0, expert: (win|draw|loss), outcome [+-][01]", shown)
    folder, result = saved(copied.root.parent)
    assert result.fork == 2 and result.spec.seed == record["seed"]
    assert [t.answer.action for t in result.turns[:2]] == [t["action"] for t in record["turns"][:2]]
    assert {turn.player.name for turn in result.turns[2:]} == {"expert"}
    assert listing(copied.root) == before
    assert run(["replay", str(folder.root), "0"]) == 0
    assert "turns 1 to 2: played in another game" in capfd.readouterr().out


def test_older_version_takes_over(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", "run", "1", *TRAIN, "--from", "2", "--with", "run@0", "--seat", "1"]
    assert run(arguments) == 0
    assert "run:1 at seat 0, run:0 at seat 1." in capfd.readouterr().out
    _, result = saved(copied.root.parent)
    assert all(turn.answer.sampled is not None for turn in result.turns[1:])
    assert result.spec.opening == 0 and result.fork == 1


def test_person_takes_over(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    (record,) = (each for each in rows(copied, "eval") if each["game"] == 1)
    taken = {turn["action"] for turn in record["turns"][:2]}
    legal = [f"[{cell}]" for cell in range(9) if f"[{cell}]" not in taken]
    with typed(f"?\n{legal[0]}\n!quit\n"):
        assert run(["replay", "run", "1", *EVAL, "--from", "3", "--opponent", "random"]) == 0
    begin, answer, *_ = capfd.readouterr().out.split("your action> ")
    assert "Turns 1 to 2 are replayed from the record." in begin
    assert begin.count("X") >= 1 and begin.count("O") >= 1  # the board of that turn
    assert re.findall(r"\[\d\]", answer.partition("Legal actions:")[2]) == legal
    _, result = saved(copied.root.parent)
    assert result.turns[2].player.name == "person"
    assert result.turns[2].answer.action == legal[0]


MISTAKES = [
    (["nowhere", "0"], "contains no config.yaml; give a run folder"),
    (["run", "first"], "GAME = 'first': input should be a valid integer"),
    (["run", "99"], "GAME = 99: not recorded; use a number from 0 to 8"),
    (["run", "0", "--version", "3"], "--version = 3: no such games in RUN_DIR = 'run'; leave"),
    (["run", "0", "--purpose", "sft"], "--purpose = 'sft': unknown; use train or eval"),
    (["run", "1", *EVAL, "--with", "random"], "--with: requires --from TURN"),
    (["run", "1", *EVAL, "--from", "0"], "--from = 0: out of range; use 1 to"),
    (["run", "1", *EVAL, "--from", "3", "--with", "you"], "--with = 'you': unknown player"),
    (["run", "1", *EVAL, "--from", "3", "--seat", "2"], "--seat = 2: out of range; use 0 to"),
    (["run", "1", *EVAL, "--from", "3", "--with", "rules"], "--with = 'rules' in TicTacToe"),
    (["run", "1", *EVAL, "--from", "3", "--with", "run@5"], "checkpoint not found"),
    (["run", "1", *EVAL, "--from", "3", "--games.0.env", "Nim-v0"], "games.0: a continued game"),
]


def test_game_number_defaults_to_training_games(copied: RunFolder) -> None:
    assert find(copied.root, 0, None, None).result.spec.purpose == "train"
    assert find(copied.root, 0, "eval", None).result.spec.purpose == "eval"


@every_row("arguments, line", *MISTAKES)
def test_mistake_is_one_line(copied: RunFolder, arguments: list[str], line: str) -> None:
    assert line in line_of(run, ["replay", *arguments])
    assert not (copied.root.parent / "outputs").exists()


def test_closed_output_pipe_is_not_an_error(copied: RunFolder) -> None:
    shutil.rmtree(copied.checkpoint(1))  # no model answers; all lines are printed
    replay = shlex.join([sys.executable, "-m", "unstable.cli", "replay", "run", "1", *EVAL])
    done = ran(
        ["bash", "-c", f"set -o pipefail; {replay} | head -c 1"],
        copied.root.parent,
        PYTHONPATH=str(Path(__file__).parent.parent.parent),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_cut_prompt_is_not_compared(copied: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    def cut(record: Record) -> None:
        record["turns"][0]["sampled"]["prompt_cut"] = 5

    tamper(copied, "eval", 1, cut)
    for version in copied.versions():
        shutil.rmtree(copied.checkpoint(version))
    run(["replay", "run", "1", *EVAL])
    assert "turn 1: its prompt was cut to fit, and is not compared" in capfd.readouterr().out
