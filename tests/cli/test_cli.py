"""The command line as a person meets it: real processes, a tiny model, two updates."""

import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import Context
from typer.main import get_command

from tests.helpers.cli import (
    PATIENCE_S,
    SMALL,
    background,
    command,
    ended,
    in_process,
    no_developers_lines,
    rows,
    run_locally,
    unstable,
    wait_for,
    written,
)
from tests.helpers.mistakes import line_of
from tests.helpers.resume import weights
from unstable.cli import SHORT_FORMS, main, parse_options, run
from unstable.cli.commands import app
from unstable.config import ConfigError, RunConfig, fields
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with a run of two updates, which tests read and do not change."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.yaml").write_text(SMALL.format(model=tiny_folder))
    words = ["--games.0.env", "Nim-v0", "--games.0.args.piles", "[1,2,2]", "--seed", "5"]
    done = unstable(folder, "train", "--config", "small.yaml", "--run_dir", "run", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    assert no_developers_lines(done.stdout + done.stderr)
    assert "update 2/2" in done.stdout
    return folder


@pytest.mark.slow
def test_saved_config_reproduces_the_run(trained: Path) -> None:
    assert [row["version"] for row in read_rows(trained / "run/metrics.jsonl")] == [0, 1, 2]
    assert (trained / "run/checkpoints/000002/adapter_model.safetensors").is_file()
    for component in ("loop", "learner", "actor-0"):
        assert (trained / f"run/logs/{component}.log").is_file()
    saved = yaml.safe_load((trained / "run/config.yaml").read_text())
    assert saved["tracking"]["run_dir"] is None  # runs again in another folder
    run_locally(trained, "train", "--config", "run/config.yaml", "--run_dir", "again")
    first, second = (read_rows(trained / name / "metrics.jsonl") for name in ("run", "again"))
    assert [row["learn/loss"] for row in first[1:]] == [row["learn/loss"] for row in second[1:]]


@pytest.mark.slow
def test_eval_and_exploit_of_a_version(trained: Path) -> None:
    """Against a bot and the versions before it, by chance and greedily, and to the bit."""
    words = ["--eval.opponents", "random", "past", "--games", "4", "--eval.constrained", "true"]
    words += ["--eval.temperature", "[1.0,0.0]", "--eval.exploitability.every", "1"]
    judged = run_locally(trained, "eval", "run@2", *words)
    assert "evaluation of version 2" in judged.stdout
    assert "100 % legal moves" in judged.stdout
    for opponent in ("random", "random, greedy", "past", "past, greedy"):
        line = rf"version 2 · Nim-v0 against {opponent}: score [^·]+ · \d+ won"
        assert re.search(line, judged.stdout), judged.stdout

    assert "exploitability of version 2 · Nim-v0: " in judged.stdout
    assert "26 decisions, 17 prompts" in judged.stdout
    exact = run_locally(trained, "exploit", "run@2", "--past")
    worst = r"worst case of version 2 · Nim-v0: wins \S+( to \S+)? per game against version [01], "
    assert re.search(f"{worst}the least of 2 versions, 0 to 1", exact.stdout)
    same = r"exploitability of version 2 · Nim-v0: [0-9. to]+"
    assert re.findall(same, exact.stdout) == re.findall(same, judged.stdout) != []


@pytest.mark.slow
def test_first_version_has_no_past_opponents(trained: Path) -> None:
    with pytest.raises(ConfigError, match=r"^eval.opponents = \[past\]: no version before 0 has"):
        run(["eval", str(trained / "run@0"), "--eval.opponents", "past"])
    with pytest.raises(ConfigError, match="^--past: no version before 0 has a checkpoint in"):
        run(["exploit", str(trained / "run@0"), "--past"])
    with pytest.raises(ConfigError, match="^--past: conflicts with --average; remove one"):
        run(["exploit", str(trained / "run"), "--past", "--average", "0:2"])
    with pytest.raises(ConfigError, match="^--past: --learn does not solve games exactly"):
        run(["exploit", str(trained / "run"), "--past", "--learn"])


@pytest.mark.tables("loop rotating", 0)
@pytest.mark.slow
def test_interrupted_offline_run_resumes(trained: Path) -> None:
    """With Ray, as a person does it."""
    words = ["--algorithm", "reinforce++", "--run_dir", "offline", "--learn.epochs", "200"]
    words += ["--learn.held_out", "0.3", "--eval.every", "0", "--learner.batch_size", "4"]
    process = background(trained, ["learn", "run", *words])
    metrics = trained / "offline/metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.read_bytes().count(b"\n") > 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, output
    assert "to resume   unstable train --resume offline" in output
    made = read_rows(metrics)[-1]["version"]
    resumed = run_locally(trained, "learn", "--resume", "offline", "--steps", str(made + 2))
    assert no_developers_lines(resumed.stdout + resumed.stderr)
    assert f"update {made + 2}/{made + 2} · epoch " in resumed.stdout
    assert "held-out loss" in resumed.stdout
    found = read_rows(metrics)
    assert [row["version"] for row in found] == list(range(made + 3))


@pytest.mark.slow
def test_fork_starts_from_origin_and_best_response_learns(trained: Path) -> None:
    shutil.copytree(trained / "run", trained / "origin")
    words = ["--fork", "origin@1", "--steps", "1", "--run_dir", "forked"]
    run_locally(trained, "train", *words)
    origin, new = RunFolder(trained / "origin"), RunFolder(trained / "forked")
    assert weights(new, 0) == weights(origin, 1)
    config = yaml.safe_load(new.config.read_text())
    assert config["model"]["init"] == config["learner"]["state"]
    assert config["model"]["init"].endswith("origin/checkpoints/000001")

    options = ["--learn", "--steps", "1", "--eval.every", "1", "--run_dir", "learned"]
    learned = run_locally(trained, "exploit", "forked@1", *options)
    assert "Nim-v0 against target: score" in learned.stdout
    assert weights(RunFolder(trained / "learned"), 0) == weights(new, 1)
    bound = r"learned · Nim-v0: version 1 scores [0-9.() to]+ against target: a lower bound"
    assert re.search(bound, learned.stdout), learned.stdout

    shutil.rmtree(origin.checkpoint(1))
    run_locally(trained, "train", "--resume", "forked", "--steps", "2")
    (origin.checkpoint(2) / "learner.pt").unlink()
    with pytest.raises(ConfigError, match="its optimizer state was deleted"):
        run(["train", "--fork", f"{origin.root}@2", "--run_dir", str(trained / "third")])


BEST_OF = ["--eval.best_of", "{answers: 2, judge: format}"]


def test_eval_parses_versions_like_other_commands(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    (tmp_path / "checkpoints/000001").mkdir(parents=True)
    for arguments, problem in (
        ([f"{tmp_path}@7"], "version = 7: checkpoint not found in "),
        ([f"{tmp_path}", "--version", "7"], "version = 7: checkpoint not found in "),
        ([f"{tmp_path}@best"], f"RUN_DIR = {str(tmp_path)!r}: the best version is not recorded"),
        ([f"{tmp_path}@there/run"], f"RUN_DIR = '{tmp_path}@there/run': "),
        ([f"{tmp_path}@x"], f"RUN_DIR[@VERSION] = '{tmp_path}@x': invalid version; give a number"),
        ([f"{tmp_path}@1", "--version", "1"], "--version = 1: "),
        ([f"{tmp_path}@1", *BEST_OF], "eval.best_of.judge: must score single turns"),
    ):
        assert line_of(run, ["eval", *arguments]).startswith(problem)


USERS_MODULE = '''
"""A game and a bot of a user's own."""

import contextlib
import pathlib
import random
import re
import time

import textarena as ta


class Countdown(ta.Env):
    """Take 1 or 2 from the pile; who takes the last one wins."""

    def __init__(self, pile=5):
        self.pile = pile

    def reset(self, num_players, seed=None):
        self.random = random.Random(seed)
        self.state = ta.TwoPlayerState(num_players=num_players, seed=None)
        pile = self.pile + self.random.randint(0, 1)
        self.state.reset(game_state={"pile": pile}, player_prompt_function=self.prompt)
        self.show()

    def prompt(self, player_id, game_state):
        return f"You are player {player_id}. Take 1 or 2; the last one wins. Answer [1] or [2]."

    def show(self):
        pile = self.state.game_state["pile"]
        self.state.add_observation(f"{pile} left", observation_type=ta.ObservationType.GAME_BOARD)

    def step(self, action):
        found = re.search(r"\\[([12])\\]", action)
        if not found or int(found[1]) > self.state.game_state["pile"]:
            self.state.set_invalid_move(reason="take 1 or 2")
        else:
            self.state.game_state["pile"] -= int(found[1])
            if self.state.game_state["pile"] == 0:
                self.state.set_winner(self.state.current_player_id, reason="took the last one")
            else:
                self.show()
        return self.state.step()


def legal(env):
    return [f"[{n}]" for n in (1, 2) if n <= env.state.game_state["pile"]]


class TakeOne:
    """Blocks once in Countdown, and in the other game as long as there is a file `block`."""

    def __call__(self, observation):
        if "the last one wins" in observation:
            with contextlib.suppress(FileExistsError):
                pathlib.Path("once").touch(exist_ok=False)
                time.sleep(100000)
        elif pathlib.Path("block").exists():
            time.sleep(100000)
        return "[1]"
'''


@pytest.mark.slow
def test_custom_game_and_bot_from_yaml_may_block_actors(
    project: Path,
) -> None:
    """There are two of them; one is started again, and a signal waits for neither.

    It leaves a folder that `eval` reads.
    """
    (project / "mine.py").write_text(USERS_MODULE)
    config = yaml.safe_load((project / "small.yaml").read_text())
    mine = {"env": "mine:Countdown", "name": "Countdown", "args": {"pile": 3}, "turn_timeout": 3}
    tak = {"env": "SimpleTak-v0", "turn_timeout": 100_000}
    config["games"] = [mine | {"legal_moves": "mine:legal"}, tak]
    config["opponents"] = {
        "draw": {"self": 0, "past": 0, "fixed": 1},
        "fixed": [{"kind": "python", "target": "mine:TakeOne"}, {"kind": "random"}],
    }
    config["eval"]["opponents"] = ["python:TakeOne", "random"]
    config["actors"]["num"] = 2
    config["loop"]["steps"] = 100_000
    (project / "mine.yaml").write_text(yaml.safe_dump(config))
    process = background(project, ["train", "--config", "mine.yaml", "--run_dir", "run"])
    blocking = project / "run/blocking_games.txt"
    wait_for(lambda: written(project / "run/metrics.jsonl") > 3, process)
    assert blocking.read_text() == "Countdown\n"
    logs = [path.read_text() for path in (project / "run/logs").glob("actor-*.log")]
    assert any("time.sleep(100000)" in text for text in logs)
    assert "died and is restarted" in (project / "run/logs/loop.log").read_text()

    (project / "block").touch()
    wait_for(lambda: "SimpleTak-v0\n" in blocking.read_text(), process)
    output = ended(process, 143, signal.SIGTERM)
    assert "SIGTERM: the run stops cleanly" in output
    assert "The run ended: interrupted" in output
    assert (project / "run/report.html").is_file()
    train, judged = (
        [game for path in (project / "run/games").glob(f"{purpose}-*.jsonl") for game in rows(path)]
        for purpose in ("train", "eval")
    )
    assert {game["env"] for game in train} == {"Countdown", "SimpleTak-v0"}
    assert {game["actor"] for game in train} == {0, 1}
    assert len(train) == len({game["game"] for game in train}) and all(g["turns"] for g in train)
    own = [game for game in train + judged if game["env"] == "Countdown"]
    players = {player for game in own for player in game["players"]}
    assert {"main@0", "random", "python:TakeOne"} <= players
    bots = [t for game in own for t in game["turns"] if t["player"] == "python:TakeOne"]
    assert bots
    assert all(turn["action"] == "[1]" and not turn["invalid"] for turn in bots)
    (project / "block").unlink()
    done = run_locally(project, "eval", "run", "--games", "2")
    assert "Countdown against python:TakeOne" in done.stdout


MISTAKES = [
    ("--games.0.env TicTacTo-v0", ["games.0.env = 'TicTacTo-v0'", "'TicTacToe-v0'"]),
    ("--learner.steps_per_batch 17", ["learner.steps_per_batch = 17", "lower learner"]),
    ("--run_dir .", ["tracking.run_dir = '.'", "exists"]),
    ("--run_dir /proc/none/run", ["tracking.run_dir = '/proc/none/run'", "give a writable"]),
    ("--model ./nowhere", ["model.name = './nowhere'", "no such folder"]),
    ("--model empty", ["model.name = 'empty'", "no weights"]),
    (
        "--opponents.fixed.1.kind openai --opponents.fixed.1.model m",
        ["opponents.fixed.1.api_key_env = 'OPENAI_API_KEY'", "not set"],
    ),
    ("--games.0.env Chopsticks-v0", ["random", "legal moves"]),
    ("--games.0.env PigDice-v0 --eval.opponents expert", ["expert", "plays only"]),
    ("--model.init empty", ["empty", "adapter_config.json"]),
]


def test_user_mistake_prints_one_line_and_exits_with_2(project: Path) -> None:
    (project / "empty").mkdir()
    (project / "empty/config.json").write_text('{"model_type": "llama"}')
    before, failed = {*project.iterdir()}, []
    for options, words in MISTAKES:
        arguments = ["train", "--config", "small.yaml", *options.split()]
        done = in_process(project, *arguments, OPENAI_API_KEY="")
        *waited, error = done.stderr.splitlines()
        # Shown on a slow machine, or if the mistake is found after the model.
        expected = all(line.startswith(("starting: ", "model  ")) for line in waited)
        expected &= error.startswith("error: ") and all(word in error for word in words)
        if (done.returncode, done.stdout, expected) != (2, "", True):
            failed.append((options, done))
    assert failed == []
    assert {*project.iterdir()} == before


def test_help_shows_fields_meanings_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help", "all"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert "--learner.learning_rateAdamW'speaklearningrate(default:0.0001)" in shown
    options = list(fields(RunConfig))
    assert {"games.N.args", "opponents.fixed.N.base_url", "model.chat_template", "seed"} <= {
        option.path for option in options
    }
    for option in options:
        told = f"--{option.path} {' '.join(option.meaning.split())}"
        assert "".join(told.split()) in shown


def test_closed_output_pipe_is_not_an_error(tmp_path: Path) -> None:
    piped = f"set -o pipefail; (sleep 1; {shlex.join(command(['--help']))}) | true"
    done = subprocess.run(["bash", "-c", piped], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_short_and_lists_fields_per_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) < 75 and "learning_rate" not in short
    assert all(re.search(rf"^ +--{name} +\S", short, re.M) for name in RunConfig.model_fields)
    assert all(form in short for form in SHORT_FORMS)
    for words, fields_shown in (
        (["sft", "--help", "learner"], ["--learner.learning_rate", "--learner.algorithm.name"]),
        (["world", "-h", "games.invalid_moves"], ["--games.N.invalid_moves.allowed"]),
        (["config", "--help", "games.0.env"], ["--games.N.env"]),
        (["learn", "--help", "learn"], ["--learn.epochs"]),
    ):
        assert run(words) == 0
        found = re.findall(r"^ +(--\S+)", capsys.readouterr().out, re.M)
        assert set(fields_shown) <= set(found)
        assert len({re.sub(r"\..*", "", option) for option in found}) == 1
    with pytest.raises(ConfigError, match="--help lerner: unknown section; did you mean 'learner'"):
        run(["train", "--help", "lerner"])


def test_each_command_has_help_and_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    page = capsys.readouterr().out
    assert run([]) == 2 and capsys.readouterr().out == page
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +[A-Z].*\.$", page, re.M), name
        assert run([name, "--help"]) == 0
        shown = capsys.readouterr().out
        for param in entry.params:
            name_shown, told = param.get_help_record(Context(entry)) or ("", "")
            assert name_shown.split(" ")[0].split(",")[0] in shown
            assert len(told.split("  [")[0]) <= 90


def test_shell_completes_commands_options_configs_and_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_UNSTABLE_COMPLETE", "complete_bash")
    for typed, offered in (
        ("unstable tr", "train"),
        ("unstable train --fork", "--fork_state"),
        ("unstable train --config tiny_l", "tiny_leduc"),
        ("unstable learn run --learner.learning", "--learner.learning_rate"),
        ("unstable play --opponent ex", "expert"),
    ):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        with pytest.raises(SystemExit):
            main()
        assert offered in capsys.readouterr().out.split(), typed


def test_version_option_prints_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--version", "-V"):
        assert run([word]) == 0
        assert re.fullmatch(r"unstable \d+\.\d+\S*\n", capsys.readouterr().out), word


def test_options_work_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    module = "unstable.studies.tournament.tournament.tournament"
    monkeypatch.setattr(module, lambda *arguments: given.append(arguments))
    own = "--game Nim-v0 TicTacToe-v0 --deals 4"
    fields = "--steps=3 --eval.opponents random base --tags a b"
    for line in (
        f"random expert {own} {fields}",
        f"random --deals 4 expert --game Nim-v0 TicTacToe-v0 {fields}",
        f"--deals 4 random expert {fields} --game Nim-v0 TicTacToe-v0",
        f"random expert --game=Nim-v0 TicTacToe-v0 --deals=4 {fields}",
    ):
        assert run(["tournament", *line.split()]) == 0
        players, options, found, typed = given.pop()
        assert players == ["random", "expert"] and typed == f"unstable tournament {line}"
        assert (options.game, options.deals) == (["Nim-v0", "TicTacToe-v0"], 4)
        assert list(found.items()) == [
            ("loop.steps", 3),
            ("eval.opponents", ["random", "base"]),
            ("tracking.tags", ["a", "b"]),
        ]


def test_printed_config_reproduces_itself(project: Path) -> None:
    arguments = ["config", "--config", "small.yaml", "--learner.epochs", "3"]
    printed = in_process(project, *arguments).stdout
    assert "auto" not in yaml.safe_load(printed)["loop"].values()
    (project / "printed.yaml").write_text(printed)
    assert in_process(project, "config", "--config", "printed.yaml").stdout == printed


def test_options_are_field_paths_with_yaml_values() -> None:
    arguments = ["--steps=3", "--loop.max-time", "1e3", "--eval.opponents", "random", "base"]
    assert parse_options(arguments, SHORT_FORMS) == {
        "loop.steps": 3,
        "loop.max_time": 1e3,
        "eval.opponents": ["random", "base"],
    }
    texts = {"2026-11-20": "2026-11-20", "007": "007", "12:30": "12:30", "yes": "yes"}
    values = {"null": None, "[a, 1]": ["a", 1], "{a: 1}": {"a": 1}, "2e-5": 2e-5, "true": True}
    for text, value in (texts | values).items():
        assert parse_options(["--x", text], {}) == {"x": value}
    for wrong in (["3"], ["--steps"]):
        line_of(parse_options, wrong, SHORT_FORMS)
    for first, second in (("--steps", "--steps"), ("--loop.steps", "--steps")):
        with pytest.raises(ConfigError, match=r"^--steps is given twice; give it once"):
            parse_options([first, "8", second, "2"], SHORT_FORMS)
