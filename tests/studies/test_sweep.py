"""Sweeps: commands, early stopping, and identical results after a kill."""

import contextlib
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.child_runs import METRIC, FakeRun, fake_child
from tests.helpers.mistakes import line_of, refused
from tests.helpers.resume import rows
from unstable.cli import SHORT_FORMS, parse_options, run
from unstable.commands.session import Terminated
from unstable.config import RunConfig, load
from unstable.studies import several
from unstable.studies.league.config import read_league
from unstable.studies.league.members import LeagueFolder
from unstable.studies.sweep.config import Setting, StopConfig, SweepConfig, read_sweep
from unstable.studies.sweep.halving import RungDecision, decide, going, next_rung
from unstable.studies.sweep.report import Outcome
from unstable.studies.sweep.runner import SweepRunner, outcomes
from unstable.studies.sweep.sweep import go_on, show
from unstable.studies.sweep.trials import Sweep, SweepFolder, Trial, trials_of

SWEEP = f"""
config: tiny_nim
common: {{loop.steps: 8, eval.every: 1}}
grid: {{learner.learning_rate: [1e-3, 2e-3, 3e-3]}}
seeds: [1, 2]
metric: {METRIC}
goal: max
"""
STOP = "stop: {rungs: [2, 5], keep: 0.5}\n"

# The commands of runs

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(max_size=12)


@given(PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text("ab", min_size=1), PLAIN))
def test_run_receives_the_fields_of_the_sweep(value: Any) -> None:
    """The command line parses it back to the same value."""
    words = Trial(Setting("a", "tiny", {"x.y": value}), 3, RunConfig()).words
    assert words[:3] == ["train", "--config", "tiny"]
    given = parse_options(words[3:], SHORT_FORMS)
    assert given["seed"] == 3
    assert given["x.y"] == value and type(given["x.y"]) is type(value)


def test_run_command_reproduces_its_config() -> None:
    sweep = read_sweep(
        "config: tiny_nim\n"
        "settings: [{learner.learning_rate: 1e-5, eval.temperature: [0.0, 1e-1]}, {name: b, "
        "'opponents.draw': {self: 1, past: 1e-5, fixed: 0}, learner.algorithm.critic: null}]",
        "a.yaml",
    )
    for trial in trials_of(sweep):
        options = parse_options(trial.words[1:], SHORT_FORMS)
        assert load(options.pop("config"), options) == trial.config
    config = trials_of(sweep)[0].config
    assert config.learner.learning_rate == 1e-5 and config.eval.temperature == [0.0, 0.1]


def test_first_seed_of_every_setting_comes_first() -> None:
    names = [each.name for each in trials_of(read_sweep(SWEEP, "a.yaml"))]
    assert names[:2] == ["learning_rate-0.001-seed1", "learning_rate-0.002-seed1"]
    assert names[3] == "learning_rate-0.001-seed2" and len(names) == 6


MISTAKES = [
    ("grid: {learner.rate: [1]}", "rate-1: learner: unknown key 'rate'"),
    ("grid: {learner.epochs: [1, -2]}", "epochs--2: learner.epochs = -2: input should be gr"),
    ("grid: {config: [tiny, tinier]}", "config-tinier: --config = 'tinier': no such file or"),
    ("settings: [{}, {name: b, learner.learning_rate: 2e-3}]", "base-seed0 and b-seed0: identica"),
    ("grid: {games.0.env: [Nim-v0, Chess9-v0]}", "env-Chess9-v0: games.0.env = 'Chess9-v0'"),
    ("metric: eval/Nim-v0/randm/sampled/score", "base: metric = 'eval/Nim-v0/randm/sampled/sco"),
    ("common: {games.0.env: Nope-v0}", "games.0.env = 'Nope-v0': unknown TextArena id; did you me"),
    ("metric: worse/main/score", "base: metric = 'worse/main/score': unknown metric; use one of "),
    ("metric: score", "base: metric = 'score': unknown metric; use one of metrics.jsonl, which s"),
    ("common: {eval.every: 0, eval.exploitability.every: 0}", "metric: these runs have no eva"),
    ("stop: {rungs: [100]}", "stop.rungs = [100]: base makes 100 updates; use rungs below 100"),
    ("seeds: [1, true]", "seeds = true: not a number; give a number"),
    ("common: {loop.steps: 3, tracking: {run_dir: x}}", "common.tracking.run_dir: the sweep sets "),
    ("grid: {seed: [1], tracking: [{name: x}]}", "grid.seed: set by seeds; remove it"),
    (
        f"grid: {{{', '.join(f'learner.k{n}: {[*range(99)]}' for n in range(4))}}}",
        "96,059,601 runs",
    ),
    ("random: {count: 100000, draw: {learner.epochs: [1]}}", "100,000 runs exceed the limit of 2"),
    ("at_once: 999", "base: at_once = 999: only "),
    ("common: {openings.moves: [90, 90]}", "base: openings.moves = [90, 90]: games.0.max_turns"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_invalid_sweep_is_reported_before_any_run_starts(
    text: str, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "Child", None)
    config = "" if "config:" in text else "config: tiny_nim\n"
    if "common:" not in text:
        config += "common: {eval.exploitability.every: 0}\n"
    Path("my.yaml").write_text(f"{config}{text}\n")
    assert said in line_of(run, ["sweep", "my.yaml"])
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["none.yaml"], "FILE = 'none.yaml': cannot be read (No such file or directory)"),
        ([], "give the FILE of a sweep, or --resume FOLDER"),
        (["my.yaml", "--retry"], "give the FILE of a sweep, or --resume FOLDER"),
        (["my.yaml", "--table"], "FOLDER = 'my.yaml': sweep.yaml not found; give a folder of u"),
        (["--resume", "folder", "--plan"], "--plan: --resume uses the sweep's own se"),
        (["my.yaml", "--resume", "folder"], "FILE: --resume uses the sweep's own set"),
        (["folder"], "FILE = 'folder': cannot be read (Is a directory); give a readable file"),
        (["--resume", "folder"], "FOLDER = 'folder': sweep.yaml not found"),
        (["my.yaml", "--out", "folder"], "folder exists; to resume: unstable sweep --resume fold"),
    ],
)
def test_invalid_arguments_are_rejected(words: list[str], said: str, here: Path) -> None:
    Path("my.yaml").write_text(SWEEP)
    Path("folder").mkdir()
    assert line_of(run, ["sweep", *words]).startswith(said)


def test_plan_prints_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yaml").write_text(SWEEP)
    assert run(["sweep", "my.yaml", "--plan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and not Path("outputs").exists()
    assert lines[-1] == (
        "unstable train --config tiny_nim --loop.steps 8 --eval.every 1 "
        "--learner.learning_rate 0.003 --seed 2"
    )


# Successive halving

VALUES = st.dictionaries(st.sampled_from("abcd"), st.lists(st.floats(0, 1), max_size=3), min_size=1)


def test_share_of_settings_is_not_rounded_up_by_float_error() -> None:
    values = {str(number): [float(number)] for number in range(25)}
    assert len(decide(1, StopConfig(rungs=[1], keep=0.28), values, 1, 1).kept) == 7


@given(values=VALUES, keep=st.integers(1, 6) | st.floats(0.1, 0.9), sign=st.sampled_from([1, -1]))
def test_best_settings_continue(values: dict[str, list[float]], keep: float, sign: int) -> None:
    found = decide(4, StopConfig(rungs=[4], keep=keep), values, 3, sign)
    ranked = {name for name, own in values.items() if len(own) >= 2}  # a majority of three seeds
    assert found.values.keys() == ranked and set(found.kept) <= ranked
    most = keep if isinstance(keep, int) else math.ceil(round(keep * len(values), 9))
    assert len(found.kept) == min(most, len(ranked))
    for name in found.kept:
        others = ranked - set(found.kept)
        assert all(sign * found.values[name] >= sign * found.values[other] for other in others)


def test_consecutive_rungs_narrow_the_settings() -> None:
    stop = StopConfig(rungs=[2, 5], keep=0.5, needs=1)
    first = decide(2, stop, {"a": [0.1], "b": [0.9, 0.7], "c": [0.8], "d": []}, 2, 1)
    means = {"b": 0.8, "c": 0.8, "a": 0.1}
    assert first == RungDecision(rung=2, values=means, kept=("b", "c"))  # ties keep file order
    assert next_rung(stop, []) == 2 and next_rung(stop, [first]) == 5
    assert going("abcd", [first]) == ["b", "c"] and going("ab", []) == ["a", "b"]
    second = decide(5, stop, {"b": [0.1], "c": [0.2]}, 2, -1)  # lower is better
    assert second.kept == ("b",) and next_rung(stop, [first, second]) is None
    assert next_rung(None, []) is None


# The runner, on fake runs


@cache
def known(text: str) -> tuple[SweepConfig, list[Trial]]:
    sweep = read_sweep(text, "a.yaml")
    return sweep, trials_of(sweep)


class Scene:
    """A sweep of fake runs in its own folder."""

    def __init__(self, root: Path, text: str) -> None:
        config, self.trials = known(text)
        self.folder = SweepFolder(root)
        self.sweep = Sweep(self.folder, config, self.trials)
        if not self.folder.file.exists():
            self.folder.make(config, [trial.record(self.folder) for trial in self.trials])

    def go(self, slots: int = 2) -> None:
        SweepRunner(self.sweep, [None] * slots, lambda: None).run()

    def outcomes(self) -> list[Outcome]:
        return outcomes(self.sweep)

    def figures(self) -> list[tuple[Any, ...]]:
        """Return everything that must not depend on kills."""
        return [
            (each.name, each.state, each.values(METRIC), each.total("collect/games"), each.line)
            for each in self.outcomes()
        ]


def test_all_runs_are_started_in_order(fake: type[FakeRun], tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s", SWEEP)
    scene.go(slots=1)
    assert fake.begun == [trial.name for trial in scene.trials]
    assert {each.state for each in scene.outcomes()} == {"done"}
    scene.go()  # nothing is left to run
    assert len(fake.begun) == 6


def test_losing_settings_stop_at_their_rung(fake: type[FakeRun], tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s", SWEEP + STOP)
    scene.go()
    first, second = scene.folder.decisions()
    assert (first.rung, len(first.kept)) == (2, 2) and (second.rung, len(second.kept)) == (5, 1)
    for outcome in scene.outcomes():
        stopped = [d.rung for d in (first, second) if outcome.setting not in d.kept]
        version = outcome.rows[-1]["version"]
        assert (outcome.state, version) == (("stopped", stopped[0]) if stopped else ("done", 8))
        # Stopped runs make at most the update beyond the rung that had started.
        assert scene.folder.run(outcome.name).versions()[-1] <= version + 2
        values = {each.name: dict(each.values(METRIC)) for each in scene.outcomes()}
    names = [trial.name for trial in scene.trials if trial.setting.name == first.kept[0]]
    assert first.values[first.kept[0]] == sum(values[name][2] for name in names) / 2


@pytest.mark.parametrize("stop", ["", STOP])
def test_unknown_metric_is_reported(fake: type[FakeRun], tmp_path: Path, stop: str) -> None:
    text = SWEEP.replace(f"metric: {METRIC}", "metric: collect/game") + stop
    for _ in range(2):  # a resume reports it again
        scene = Scene(tmp_path / "s", text)
        said = line_of(scene.go, slots=1)
        assert said == (
            "metric = 'collect/game': missing in learning_rate-0.001-seed1, which is complete; "
            "did you mean 'collect/games'?"
        )
    assert fake.begun == ["learning_rate-0.001-seed1"] and not scene.folder.decisions()


def test_metric_missing_in_one_setting_stops_nothing(fake: type[FakeRun], tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s", SWEEP)
    scene.go()
    first, second = (scene.folder.run(each.name).metrics for each in scene.trials[:2])
    second.write_text(second.read_text().replace(METRIC, "collect/other"))
    scene.go()
    first.write_text(first.read_text().replace(METRIC, "collect/other"))
    refused("missing in learning_rate-0.001-seed1, which is complete", scene.go)


def test_partial_records_are_skipped_and_damaged_ones_reported(
    fake: type[FakeRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(tmp_path / "s", SWEEP + STOP)
    scene.go()
    whole, files = scene.figures(), [*tmp_path.glob("s/*.jsonl")]
    assert {each.name for each in files} == {"trials.jsonl", "decisions.jsonl"}
    (tmp_path / "s/failures.jsonl").touch()
    for file in [*files, tmp_path / "s/failures.jsonl"]:
        content = file.read_bytes()
        file.write_bytes(content + b'{"run": "learning_rate-0.001-seed1", "li')
        Scene(tmp_path / "s", SWEEP + STOP).go()
        assert scene.figures() == whole
        file.write_bytes(content + b"{}\n")
        refused(rf"s/{file.name}, line \d: .* required field `\w+`; fix", go_on, tmp_path / "s")
        file.write_bytes(content)
    run = scene.folder.run(whole[0][0])
    run.metrics.write_bytes(b"\xff\x00{}\n" + run.metrics.read_bytes())
    show(tmp_path / "s")
    said = f"{whole[0][1]}: {whole[0][0]}: damaged records skipped: 1 in {run.root.name}"
    assert said in capsys.readouterr().out


def test_rungs_can_count_games(fake: type[FakeRun], tmp_path: Path) -> None:
    text = SWEEP + "stop: {rungs: [35, 10000], by: games, keep: 2}\n"  # ten games per version
    scene = Scene(tmp_path / "s", text)
    scene.go()
    ends = {each.rows[-1]["version"] for each in scene.outcomes() if each.state == "stopped"}
    assert ends == {3}
    assert len(scene.folder.decisions()[1].kept) == 2  # by the last values: no run reached the rung


def killed_and_whole(place: Path, text: str, kills: list[int], slots: int) -> list["Scene"]:
    """Return a sweep killed at these looks and then completed, and an uninterrupted one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(several, "Child", fake_child)
        patch.setattr(several, "LOOK_S", 0.0)
        patch.setattr(FakeRun, "fails", {"learning_rate-0.001-seed2": 4})
        whole = Scene(place / "whole", text)
        whole.go(slots)
        for looks in kills:
            patch.setattr(FakeRun, "looks", 0)
            patch.setattr(FakeRun, "killed_at", looks)
            with contextlib.suppress(SystemError):
                Scene(place / "killed", text).go(slots)
        patch.setattr(FakeRun, "killed_at", None)
        scene = Scene(place / "killed", text)
        scene.go(slots)
    return [scene, whole]


@settings(max_examples=25)
@given(kills=st.lists(st.integers(1, 60), max_size=4), slots=st.integers(1, 4))
def test_killed_sweep_ends_identically(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], slots: int
) -> None:
    scene, whole = killed_and_whole(tmp_path_factory.mktemp("a"), SWEEP + STOP, kills, slots)
    assert scene.figures() == whole.figures()
    assert scene.folder.decisions() == whole.folder.decisions()
    assert [len(each.values) for each in whole.folder.decisions()] == [3, 2]


def test_failed_run_is_reported_and_retried(fake: type[FakeRun], tmp_path: Path) -> None:
    scene, name = Scene(tmp_path / "s", SWEEP), "learning_rate-0.002-seed1"
    fake.fails = {name: 3}
    scene.go()
    states = {each.name: (each.state, each.line) for each in scene.outcomes()}
    assert states.pop(name) == ("failed", "exit code 1: error: no space left")
    assert set(states.values()) == {("done", "")}
    scene.go()
    assert fake.begun.count(name) == 1
    fake.fails = {}
    scene.folder.forget_failures()
    scene.go()
    assert fake.begun.count(name) == 2
    assert {each.state for each in scene.outcomes()} == {"done"}


def test_ctrl_c_is_forwarded_and_the_sweep_resumes(
    fake: type[FakeRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, scene = Scene(tmp_path / "w", SWEEP), Scene(tmp_path / "s", SWEEP)
    whole.go()
    fake.looks, fake.signal_at = 0, 5
    with pytest.raises(KeyboardInterrupt) as caught:
        scene.go()
    assert not isinstance(caught.value, Terminated)
    states = [each.state for each in scene.outcomes()]
    assert set(states) == {"waiting"} and not scene.folder.failures()
    assert [len(each.rows) for each in scene.outcomes()[:3]] != [0, 0, 0]
    scene.go()
    assert scene.figures() == whole.figures()


# Leagues as settings

LEAGUES = f"""
config: tiny_nim
common: {{eval.every: 1, eval.exploitability.every: 0}}
settings:
  - {{name: alone, loop.steps: 8}}
  - name: rivals
    learner.learning_rate: 3e-3
    league:
      members: {{scout: {{role: league_exploiter}}, main: {{fields: {{learner.epochs: 2}}}}}}
      generations: 2
      updates: 3
seeds: [1, 2]
metric: {METRIC}
goal: max
"""


def test_league_is_measured_by_its_main_member(fake: type[FakeRun], tmp_path: Path) -> None:
    scene = Scene(tmp_path / "s", LEAGUES)
    scene.go(slots=1)
    alone, rivals, *_ = scene.outcomes()
    assert [each.state for each in scene.outcomes()] == ["done"] * 4
    assert alone.total("collect/games") == 90
    assert rivals.total("collect/games") == 40 * 3  # the scout has no opponent in generation 1
    folder = LeagueFolder(scene.folder.run("rivals-seed1").root)
    own = [
        (row["version"] + made, row[METRIC])
        for generation, made in ((1, 0), (2, 3))
        for row in rows(folder.run(f"main-{generation}"))
        if (made, row["version"]) != (3, 0)  # repeats the end of generation 1
    ]
    assert rivals.values(METRIC) == own and [version for version, _ in own] == list(range(7))
    options = fake.commands["main-2"]
    assert options["learner.learning_rate"] == 3e-3 and options["learner.epochs"] == 2


@settings(max_examples=8)
@given(kills=st.lists(st.integers(1, 40), max_size=3), slots=st.integers(1, 4))
def test_killed_sweep_with_a_league_ends_identically(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], slots: int
) -> None:
    scene, whole = killed_and_whole(tmp_path_factory.mktemp("a"), LEAGUES, kills, slots)
    assert scene.figures() == whole.figures()


def test_documented_league_setting_is_valid() -> None:
    page = (Path(__file__).parent.parent.parent / "docs/sweep.md").read_text(encoding="utf-8")
    (text,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.S) if "league:" in each)
    mirror, exploiter = trials_of(read_sweep(f"config: tiny_nim\n{text}", "docs"))
    assert mirror.league is None and exploiter.league is not None
    assert [*exploiter.league.members] == ["main", "exploiter"]


def test_changed_base_config_changes_a_leagues_digest(tmp_path: Path) -> None:
    trials = [
        next(each for each in known(text)[1] if each.league is not None)
        for text in (LEAGUES, LEAGUES.replace("tiny_nim", "tiny"))
    ]
    changed = trials[0]._replace(config=trials[1].config)
    folder = SweepFolder(tmp_path)
    assert changed.record(folder)["digest"] != trials[0].record(folder)["digest"]


def test_league_command_reproduces_its_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.yaml").write_text(LEAGUES)
    assert run(["sweep", "my.yaml", "--plan"]) == 0
    line = capsys.readouterr().out.splitlines()[3]
    file = "outputs/my/runs/rivals-seed2/league.yaml"
    assert line == f"unstable league {file} --out outputs/rivals-seed2"
    trial = known(LEAGUES)[1][3]
    assert trial.job(SweepFolder(Path("outputs/my"))).words() == [
        *("league", "--resume", "outputs/my/runs/rivals-seed2", "--retry")
    ]
    assert read_league(Path(file).read_text(), file) == trial.league
    assert trial.league is not None and trial.league.seed == 2


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("updates: 3", "updates: 0", "rivals: league: updates = 0: input should be greater than"),
        ("eval.every: 1", "loop.steps: 9", "rivals: league: common.loop.steps: set by the leag"),
        ("seeds: [1, 2]", "stop: {rungs: [2]}", "stop: conflicts with the league rivals; remove o"),
        ("learner.epochs: 2", "learner.epoch: 2", "rivals: main: learner: unknown key 'epoch'"),
        ("name: rivals", "name: rivals\n    league: 3", "rivals: league = 3: not a mapping; use "),
    ],
)
def test_invalid_league_setting_is_reported_in_one_line(
    old: str, new: str, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "Child", None)
    text = LEAGUES.replace(old, new)
    if "league: 3" in new:
        text = text[: text.index("    league:\n")] + "seeds: [1]\n"
    Path("my.yaml").write_text(text)
    assert said in line_of(run, ["sweep", "my.yaml"])
    assert not Path("outputs").exists()
