"""`unstable sft` whole, in this process: examples, learner, games, files; Ray alone is left out."""

import asyncio
import json
import math
import re
import shutil
import signal
import time
import zipfile
from collections.abc import Sequence
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.builders import asking
from tests.helpers.cli import PATIENCE_S, background, no_developers_lines, run_locally, wait_for
from tests.helpers.datasets import recorded_game
from tests.helpers.loop import lines, make_actor
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import tiny_model, tiny_tokenizer
from tests.helpers.recorded import MortalLearner, processes
from unstable.cli import run
from unstable.commands.diagnosis import condition_of, status_of
from unstable.commands.prepare import settle
from unstable.commands.runs import runs
from unstable.commands.sft import resume, sft
from unstable.commands.watch import Watched
from unstable.config import ConfigError, ModelConfig, SFTRun, dump, load, load_as, parse_as
from unstable.datasets.gather import gather_examples
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.league.evaluation import evaluation_games
from unstable.loop.sft import HELD_OUT_LOSS
from unstable.models.adapters import read_adapter
from unstable.models.archive import describe_base
from unstable.models.base import load_model
from unstable.records.folder import RunFolder
from unstable.records.tables import newest_score
from unstable.report.report import write_report
from unstable.report.run import read_runs
from unstable.report.verdict import verdict
from unstable.types import GameResult, Observation, PlayerId

NIM = {"env": "Nim-v0", "args": {"piles": [3, 2]}, "prompt": f"{__name__}:brief"}


def brief(observation: Observation) -> str:
    """A prompt style whose prompts are a few tokens: the piles alone."""
    return observation.board


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstable.runtime.processes.processes", processes)


@pytest.fixture(scope="session")
def able_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose frozen output layer is loud enough for it to be sure of an answer."""
    folder = tmp_path_factory.mktemp("models") / "able"
    model = tiny_model(hidden=64)
    model.lm_head.weight.data *= 10
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def make_config(base: Path, run_dir: Path, **changes: Any) -> SFTRun:
    data: dict[str, Any] = {
        "model": {"name": str(base), "dtype": "float32", "adapter": {"rank": 4, "alpha": 8}},
        "games": [NIM],
        "sampling": {"max_tokens": 8},
        "actors": {"num": 1, "games_in_flight": 8},
        "learner": {"batch_size": 2, "micro_batch_size": 2, "learning_rate": 3e-3},
        "eval": {"games": 4},
        "sft": {"data": [{"kind": "expert", "number": 30}], "epochs": 2, "held_out": 0.2},
        "tracking": {"run_dir": str(run_dir), "dashboard": "off"},
    }
    return parse_as(SFTRun, data | changes)


def epochs(folder: RunFolder) -> list[dict[str, Any]]:
    return [row for row in lines(folder.metrics) if HELD_OUT_LOSS in row]


def timeless(path: Path) -> list[dict[str, Any]]:
    rows = lines(path)
    for row in rows:
        del row["time"]
        row.pop("learn/tokens_per_second", None)
    return rows


def answered(folder: Path, run: RunFolder, examples: Sequence[dict[str, Any]]) -> list[str]:
    """Return the greedy answers of a run's adapter to examples."""

    async def ask() -> list[str]:
        engine = EmbeddedEngine(load_model(ModelConfig(name=str(folder), dtype="float32")), {0})
        await engine.load(read_adapter(run.adapter, "taught"))
        prompts = [example["tokens"]["prompt_ids"] for example in examples]
        settings: dict[str, Any] = {"adapter": "taught", "temperature": 0.0, "max_tokens": 8}
        answers = [await engine.generate(asking(prompt, **settings)) for prompt in prompts]
        await engine.close()
        tokenizer = tiny_tokenizer()
        ids = (answer.token_ids for answer in answers)
        return [str(tokenizer.decode(each, skip_special_tokens=True)) for each in ids]

    return asyncio.run(ask())


def is_right(prompt: str, answer: str) -> bool:
    """Return True if a legal answer leaves piles whose xor is 0, or the xor was 0 before it."""
    piles = [int(size) for size in re.findall(r"pile \d+: (\d+)", prompt)]
    move = re.fullmatch(r"\[(\d) (\d)\]", answer)
    if move is None:
        return False
    pile, number = int(move[1]), int(move[2])
    before = reduce(xor, piles)
    if pile >= len(piles) or not 0 < number <= piles[pile]:
        return False
    piles[pile] -= number
    return before == 0 or reduce(xor, piles) == 0


@pytest.mark.slow
def test_tiny_model_learns_expert_moves(able_folder: Path, tmp_path: Path) -> None:
    config = make_config(
        able_folder,
        tmp_path / "run",
        games=[NIM | {"args": {"piles": [3, 2, 1]}}],
        model={"name": str(able_folder), "dtype": "float32", "adapter": {"rank": 16}},
        learner={
            "batch_size": 4,
            "micro_batch_size": 4,
            "learning_rate": 4e-3,
            "schedule": "linear",
        },
        eval={"games": 2},
        sft={"data": [{"kind": "expert", "number": 14}], "epochs": 120, "held_out": 0},
    )
    folder = sft(config)
    examples = lines(folder.examples)
    assert len(examples) == 14
    answers = answered(able_folder, folder, examples)
    right = [is_right(e["prompt"], a) for e, a in zip(examples, answers, strict=True)]
    assert sum(right) >= 0.9 * len(examples)
    first, last = epochs(folder)[0], epochs(folder)[-1]
    assert first["eval/Nim-v0/random/greedy/legal_moves"] == 0
    assert last["eval/Nim-v0/random/greedy/legal_moves"] > 0.5  # lost positions have no examples


def test_files_of_an_sft_run(tiny_folder: Path, tmp_path: Path) -> None:
    config = make_config(tiny_folder, tmp_path / "run")
    folder = sft(config, "unstable sft --config mine.yaml")
    assert lines(folder.environment)[0]["command"] == "unstable sft --config mine.yaml"
    examples = lines(folder.examples)
    steps = math.ceil(sum(not example["held_out"] for example in examples) / 2)
    rows = lines(folder.metrics)
    versions = [row["version"] for row in rows]
    assert versions == sorted([*range(2 * steps + 1), steps, 2 * steps])
    assert folder.versions() == [0, steps, 2 * steps]
    assert [row["sft/epoch"] for row in epochs(folder)] == [0, 1, 2]
    for mode in ("greedy", "sampled"):
        for opponent in ("random", "expert"):  # the game has an expert
            assert epochs(folder)[-1][f"eval/Nim-v0/{opponent}/{mode}/games"] == 4
    (run,) = read_runs([folder.root])
    assert {key.mode for _, key, _ in run.summary.latest} == {"greedy", "sampled"}
    assert {each.version for each in run.summary.latest} == {2 * steps}
    assert newest_score(run.summary).endswith("against random, greedy")
    found = verdict(run)
    assert found.answer.startswith("Fine-tuned on examples: held-out loss from ")
    assert found.reasons[0].startswith("Score against random, greedy: ")
    assert write_report([folder.root], tmp_path / "page.html", "") > 1000
    text = (tmp_path / "page.html").read_text()
    assert "unstable sft --config" in text and "training games" not in text
    assert condition_of(folder, status_of(folder), time.time()).word == "ended"
    watched = Watched(folder).view
    assert watched.summary.newest[0].version == 2 * steps and watched.phase.name == "ended"
    (listed,) = runs(tmp_path)
    assert (listed.state, listed.version, listed.versions) == ("ended", 2 * steps, 2 * steps)
    chosen = min(epochs(folder), key=lambda row: row[HELD_OUT_LOSS])
    best_one = read_adapter(folder.checkpoint(chosen["version"]), "best")
    assert read_adapter(folder.adapter, "result").weights == best_one.weights


def test_example_ids_equal_ids_of_play(tiny_folder: Path, tmp_path: Path) -> None:
    changes = {"games": [{"env": "Nim-v0", "args": {"piles": [2, 1]}}]}
    config = make_config(tiny_folder, tmp_path / "run", **changes)
    folder = sft(config)
    taught = {each["prompt"]: each["tokens"]["prompt_ids"] for each in lines(folder.examples)}

    async def played() -> list[GameResult]:
        actor = make_actor(load(str(folder.config)), folder)
        version = folder.versions()[-1]
        await actor.publish(PlayerId.policy(version))
        specs = evaluation_games(config, version)
        results = [result async for result in actor.play(specs)]
        return [result for result in results if isinstance(result, GameResult)]

    turns = [turn for each in asyncio.run(played()) for turn in each.turns if turn.answer.sampled]
    compared = [turn for turn in turns if turn.answer.observation in taught]
    assert compared
    for turn in compared:
        assert turn.answer.sampled is not None
        assert turn.answer.sampled.prompt_ids == taught[turn.answer.observation]


@pytest.mark.parametrize("dies_at", [0, 3, 5])
def test_resumed_run_equals_an_uninterrupted_one(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    whole = sft(make_config(tiny_folder, tmp_path / "whole"))
    assert folder_steps(whole) >= 6
    monkeypatch.setattr(MortalLearner, "dies_at", dies_at)
    with pytest.raises(KeyboardInterrupt):
        sft(make_config(tiny_folder, tmp_path / "halved"))
    halved = RunFolder(tmp_path / "halved")
    assert folder_steps(halved) == dies_at
    with halved.metrics.open("a") as metrics:
        metrics.write('{"version": 9, "half a l')  # what a kill may leave
    monkeypatch.setattr(MortalLearner, "dies_at", None)
    resume(halved.root)
    assert timeless(halved.metrics) == timeless(whole.metrics)
    for version in whole.versions():
        one, two = (read_adapter(run.checkpoint(version), "x") for run in (whole, halved))
        assert one.weights == two.weights
    assert read_adapter(halved.adapter, "x").weights == read_adapter(whole.adapter, "x").weights


def test_damaged_checkpoint_is_made_again(tiny_folder: Path, tmp_path: Path) -> None:
    whole = sft(make_config(tiny_folder, tmp_path / "whole", eval={"games": 2}))
    shutil.copytree(whole.root, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    (folder.checkpoint(folder.versions()[-1]) / "learner.pt").write_bytes(b"{}")
    resume(folder.root)
    assert folder.versions() == whole.versions()
    assert timeless(folder.metrics) == timeless(whole.metrics)
    rows = folder.metrics.read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(["{}\n", *rows[1:]]))
    refused("the row of an epoch is damaged or missing; start", resume, folder.root)


def test_run_resumes_on_another_machine(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MortalLearner, "dies_at", 1)
    with pytest.raises(KeyboardInterrupt):
        sft(make_config(tiny_folder, tmp_path / "run", sft={"epochs": 1}))
    monkeypatch.setattr(MortalLearner, "dies_at", None)
    folder = RunFolder(tmp_path / "run")
    elsewhere = {"actors.num": 64, "actors.engine": "vllm", "actors.gpu_memory": 0.9}
    elsewhere |= {"learner.micro_batch_tokens": 10**9}
    folder.config.write_text(dump(load_as(SFTRun, str(folder.config), elsewhere)), encoding="utf-8")
    resume(folder.root)
    assert [row["sft/epoch"] for row in epochs(folder)] == [0, 1]


def test_late_mistake(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MortalLearner, "dies_at", 2)
    monkeypatch.setattr(MortalLearner, "dies_of", ConfigError)
    line_of(sft, make_config(tiny_folder, tmp_path / "run"))
    assert RunFolder(tmp_path / "run").versions() == [0]


def folder_steps(folder: RunFolder) -> int:
    return sum("learn/loss" in row for row in lines(folder.metrics))


def test_resuming_a_finished_run_only_packs_it(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "start.zip"
    config = make_config(tiny_folder, tmp_path / "run", sft={"epochs": 1, "zip": str(path)})
    folder = sft(config, "unstable sft --config own.yaml --games.0.name 'two\nlines ö\x07'")
    packed, rows = path.read_bytes(), lines(folder.metrics)
    path.unlink()
    with folder.held("another"):
        refused("--resume = .*: another process is using the run", resume, folder.root)
    resume(folder.root)
    assert path.read_bytes() == packed
    assert lines(folder.metrics) == rows
    with zipfile.ZipFile(path) as archive:
        card = archive.read("README.md").decode("utf-8")
        base = json.loads(archive.read("base.json"))
    assert "made by `unstable sft --config own.yaml --games.0.name 'two lines ö '`." in card
    assert "| Nim-v0 | random, greedy | " in card and "| Nim-v0 | random | " in card
    assert base == describe_base(config.model, ["Nim-v0"])


def test_turns_of_recorded_winners_are_examples(tiny_folder: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded/games"
    recorded.mkdir(parents=True)
    rows = asyncio.run(recorded_games())
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (recorded / "train-000003.jsonl").write_text(text)
    data = {"kind": "recorded", "files": str(recorded.parent)}
    config = make_config(
        tiny_folder,
        tmp_path / "run",
        games=[{"env": "TicTacToe-v0"}],
        sampling={"max_tokens": 16},
        sft={"data": [data], "epochs": 1, "held_out": 0},
        eval={"games": 2},
    )
    folder = sft(config)
    examples = lines(folder.examples)
    assert [example["answer"] for example in examples] == ["[4]", "I say [1]", "[7]"]
    assert epochs(folder)[-1][HELD_OUT_LOSS] is None
    losses = [row["learn/loss"] for row in lines(folder.metrics) if "learn/loss" in row]
    assert len(losses) == 2 and min(losses) > 0


async def recorded_games() -> list[dict[str, Any]]:
    won = await recorded_game("[4]", "[0]", "I say [1]", "[8]", "[7]")
    return [won, await recorded_game("[0]", "[4]", "[1]", "[2]", "[8]", "[6]")]


def test_custom_file_provides_examples(tiny_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{"observation": f"pile {i}", "action": "[0 1]"} for i in (1, 2, 2)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = [{"kind": "jsonl", "path": str(path)}, {"kind": "expert", "number": 4}]
    changes = {"sft": {"data": data, "epochs": 1, "held_out": 0}, "games": [{"env": "Nim-v0"}]}
    folder = sft(make_config(tiny_folder, tmp_path / "run", **changes))
    prompts = [example["prompt"] for example in lines(folder.examples)]
    assert [prompt.partition("\n")[0] for prompt in prompts[:2]] == ["pile 1", "pile 2"]
    assert len(prompts) == 6


def test_legal_moves_are_a_source_of_examples(tiny_folder: Path, tmp_path: Path) -> None:
    def answers(moves: int) -> dict[str, set[str]]:
        data = {"kind": "legal_moves", "number": 40, "moves": moves}
        config = settle(make_config(tiny_folder, tmp_path, sft={"data": [data]}))
        found: dict[str, set[str]] = {}
        for each in gather_examples(config, tiny_tokenizer()):
            found.setdefault(each.prompt, set()).add(each.answer)
        return found

    whole = answers(8)
    assert len(whole) > 5
    for prompt, moves in whole.items():
        piles = [int(size) for size in re.findall(r"pile \d+: (\d+)", prompt)]
        assert moves == {f"[{i} {n}]" for i, size in enumerate(piles) for n in range(1, size + 1)}
    one = answers(1)
    assert all(moves <= whole[prompt] for prompt, moves in one.items()) and one != whole


@pytest.mark.tables("loop rotating", 2)
@pytest.mark.slow
def test_interrupted_run_resumes(tiny_folder: Path, project: Path) -> None:
    """With Ray, as a person does it."""
    changes: dict[str, Any] = {
        "sft": {"data": [{"kind": "expert", "number": 11}], "epochs": 12, "patience": 12},
        "games": [{"env": "Nim-v0", "args": {"piles": [3, 2]}}],
        "eval": {"games": 2},
    }
    config = make_config(tiny_folder, project / "run", **changes)
    (project / "own.yaml").write_text(dump(config))
    arguments = ["sft", "--config", "own.yaml", "--run_dir", "run"]
    folder = RunFolder(project / "run")
    process = background(project, arguments)
    # Count complete lines only, as the file is still being written.
    wait_for(
        lambda: (
            folder.metrics.is_file()
            and folder.metrics.read_text().rpartition("\n")[0].count(HELD_OUT_LOSS) > 1
        ),
        process,
    )
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert f"interrupted; to resume: unstable sft --resume {folder.root.name}" in output
    done = len(epochs(folder))
    assert 1 < done < 13
    resumed = run_locally(project, "sft", "--resume", "run")
    assert no_developers_lines(resumed.stdout + resumed.stderr)
    assert f"epoch {done}/12" in resumed.stdout and "before training" not in resumed.stdout
    assert [row["sft/epoch"] for row in epochs(folder)] == list(range(13))
    assert read_adapter(folder.adapter, "taught").weights


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"sft": {"data": [{"kind": "expert", "game": "Nim"}]}}, "sft.data.0.game = 'Nim': unkno"),
        (
            {"games": [{"env": "PigDice-v0"}]},
            "sft.data.0: PigDice-v0 has no expert; games with an expert: TicTacToe,",
        ),
        (
            {
                "sft": {"data": [{"kind": "expert", "rationale": True}]},
                "games": [{"env": "Nim-v0"}],
            },
            "rationale = true: the prompt style 'compact' of Nim-v0",
        ),
        (
            {
                "games": [{"env": "Chopsticks-v0"}],
                "eval": {"opponents": ["base"]},
                "opponents": {"draw": {"fixed": 0}, "fixed": []},
                "sft": {"data": [{"kind": "legal_moves"}]},
            },
            "sft.data.0: Chopsticks-v0 does not list legal moves; set games.0.legal_moves",
        ),
        (
            {"sft": {"data": [{"kind": "recorded", "files": "nowhere"}]}},
            "sft.data.0.files.0 = 'nowhere': no training games found; use a run's folder",
        ),
        (
            {"sft": {"data": [{"kind": "jsonl", "path": "nowhere"}]}},
            "sft.data.0.path = 'nowhere': no such file; give a JSONL file",
        ),
        (
            {
                "games": [NIM, {"env": "TicTacToe-v0"}],
                "sft": {"data": [{"kind": "jsonl", "path": "nowhere"}]},
            },
            "sft.data.0.game: missing; set it to one of Nim-v0, TicTacToe-v0",
        ),
        (
            {"sampling": {"max_tokens": 4}},
            "sampling.max_tokens = 4: 7 of 7 examples are longer and would be truncated in play; "
            "set it to 6",
        ),
        ({"sampling": {"max_prompt_tokens": 8}}, "sampling.max_prompt_tokens = 8: the prompt has"),
        ({"sft": {"zip": "no/such/a.zip"}}, "sft.zip = 'no/such/a.zip': folder not found"),
        (
            {"eval": {"opponents": ["expert"]}, "games": [{"env": "PigDice-v0"}]},
            "eval.opponents = 'expert' in PigDice-v0: it plays only TicTacToe,",
        ),
    ],
)
def test_mistake_is_one_line_before_a_model_is_loaded(
    changes: dict[str, Any],
    words: str,
    tiny_folder: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.helpers.loop.load_model", lambda _: pytest.fail("a model is loaded"))
    assert words in line_of(lambda: sft(make_config(tiny_folder, here / "run", **changes)))
    assert not (here / "run").exists()


def test_resume_requires_an_sft_run(tmp_path: Path) -> None:
    refused(r"--resume = '.*': no examples.jsonl; give the fol", resume, tmp_path)
    words = ["sft", "--resume", str(tmp_path), "--seed", "1"]
    refused("^--seed: --resume uses the run's own settings; leave it out", run, words)
