"""Leagues: fields of their runs, resume after a kill, and results."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.child_runs import FakeRun
from tests.helpers.mistakes import line_of
from tests.helpers.records import game_record
from unstable.cli import SHORT_FORMS, parse_options, run
from unstable.config import dump, load
from unstable.engines.kinds import NEEDS
from unstable.planning.machine import this_machine
from unstable.planning.plan import plan
from unstable.records.files import write_lines
from unstable.studies import several
from unstable.studies.league.config import read_league
from unstable.studies.league.league import largest
from unstable.studies.league.members import League, LeagueFolder, Runner, league_of
from unstable.studies.league.population import MemberTurn
from unstable.studies.league.summary import summaries

LEAGUE = """
config: tiny_nim
common: {eval.exploitability.every: 0, learner.algorithm.reference.every: 2}
members:
  main: {fields: {learner.learning_rate: 1e-3}}
  exploiter: {role: exploiter, restart: won}
  scout: {role: league_exploiter, restart: never}
generations: 3
updates: 2
seed: 5
"""


def made(root: Path, text: str = LEAGUE) -> League:
    config = read_league(text, "a.yaml")
    league = league_of(LeagueFolder(root), config)
    if not league.folder.file.exists():
        league.folder.make(config, [])
    return league


def go(league: League, slots: int = 1) -> None:
    Runner(league, [None] * slots).run()


# Fields of runs


def test_run_starts_from_the_last_version_with_its_roles_opponents(tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    first, second = league.fields(MemberTurn("main", 1)), league.fields(MemberTurn("main", 2))
    assert first["opponents.draw"] == {"self": 0.35, "past": 0.0, "fixed": 0.0}
    assert first["opponents.fixed"] == [] and "model.init" not in first
    own = (tmp_path / "out/members/main/generation-1/checkpoints/000002").resolve()
    assert second["model.init"] == second["learner.state"] == str(own)
    assert [e["name"] for e in second["opponents.fixed"]] == [*("main-1", "exploiter-1", "scout-1")]
    assert second["opponents.fixed"][0]["path"] == str(own)
    assert second["eval.opponents"] == ["random", "expert", "main-1", "exploiter-1", "scout-1"]
    exploiter = league.fields(MemberTurn("exploiter", 3))
    assert [each["name"] for each in exploiter["opponents.fixed"]] == ["main-3"]
    assert exploiter["opponents.draw"] == {"self": 0.0, "past": 0.0, "fixed": 1.0}
    seeds = {league.fields(turn)["seed"] for turn in league.turns}
    other = made(tmp_path / "other", LEAGUE.replace("seed: 5", "seed: 6"))
    assert len(seeds | {other.fields(turn)["seed"] for turn in other.turns}) == 18


def test_run_command_reproduces_its_config(tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    for turn in league.turns:
        options = parse_options(league.words(turn)[1:], SHORT_FORMS)
        config = load(options.pop("config"), options)
        assert config == load("tiny_nim", league.fields(turn))
        assert config.learner.learning_rate == (1e-3 if turn.member == "main" else 2e-3)
        assert config.loop.steps == 2


def played(
    league: League, turn: MemberTurn, kind: Any, version: int, scores: dict[str, str]
) -> None:
    """Write games of a run: for each opponent, one letter per game, won, drawn or lost."""
    run, values = league.folder.run(turn.name), {"w": 1.0, "d": 0.0, "l": -1.0}
    if not run.config.is_file():
        run.checkpoint(2).mkdir(parents=True)
        run.config.write_text(dump(load("tiny_nim", league.fields(turn))))
    results = [
        game((f"main@{version}", name), (values[each], -values[each]), purpose=kind)
        for name, letters in scores.items()
        for each in letters
    ]
    if kind == "eval":  # greedy play, which is not rated
        for name in scores:
            lost = game((f"main@{version}", name), (-1.0, 1.0), purpose=kind)
            seats = tuple(replace(seat, temperature=0.0) for seat in lost.spec.seats)
            results += [replace(lost, spec=replace(lost.spec, seats=seats))] * 9
    path = run.games(kind, version)
    path.parent.mkdir(exist_ok=True)
    write_lines(path, [game_record(each, [], version, 0) for each in results])


def test_schedules_span_generations_since_the_last_restart(tmp_path: Path) -> None:
    league = made(tmp_path / "out", LEAGUE.replace("restart: won", "restart: each"))

    def parts(member: str) -> list[tuple[int, int]]:
        found = [league.fields(each) for each in league.turns if each.member == member]
        return [(f.get("learner.updates_before", 0), f["learner.updates_after"]) for f in found]

    assert parts("main") == [(0, 4), (2, 2), (4, 0)]
    assert parts("exploiter") == [(0, 0), (0, 0), (0, 0)]
    anew = made(tmp_path / "anew", LEAGUE.replace("restart: never", "restart: won"))
    played(anew, MemberTurn("scout", 1), "train", 1, {"main-1": "wwww", "exploiter-1": "wwww"})
    fields = anew.fields(MemberTurn("scout", 2))
    assert "model.init" not in fields and fields["learner.updates_after"] == 2
    assert "learner.updates_before" not in fields


def often(league: League, turn: MemberTurn) -> dict[str, float]:
    return {each["name"]: each["weight"] for each in league.fields(turn)["opponents.fixed"]}


def test_opponent_weights_follow_from_recorded_games(tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    assert set(often(league, MemberTurn("main", 2)).values()) == {1.0}
    played(league, MemberTurn("main", 2), "train", 1, {"main-1": "wwww", "exploiter-1": "llll"})
    played(league, MemberTurn("main", 2), "eval", 2, {"scout-1": "wwdd", "random": "llll"})
    found = often(league, MemberTurn("main", 3))
    hard = {"main-1": (2 / 8) ** 2, "exploiter-1": (6 / 8) ** 2, "scout-1": (3 / 8) ** 2}
    known = {**hard, **dict.fromkeys(("main-2", "exploiter-2", "scout-2"), 0.5**2)}
    mean = sum(known.values()) / 6
    assert found == {name: float(f"{each / mean:.4g}") for name, each in known.items()}
    scouts = often(league, MemberTurn("scout", 3))  # games of main do not count
    assert set(scouts.values()) == {1.0}


@pytest.mark.parametrize(("result", "is_anew"), [("wwwl", True), ("wwll", False)])
def test_winning_exploiter_restarts(result: str, is_anew: bool, tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    played(league, MemberTurn("exploiter", 1), "train", 1, {"main-1": "wdwd"})
    played(league, MemberTurn("exploiter", 1), "eval", 2, {"main-1": result, "random": "wwww"})
    assert ("model.init" not in league.fields(MemberTurn("exploiter", 2))) is is_anew


def test_games_before_a_restart_are_ignored(tmp_path: Path) -> None:
    league = made(tmp_path / "out", LEAGUE.replace("restart: never", "restart: won"))
    played(league, MemberTurn("scout", 1), "train", 1, {"main-1": "wwww", "exploiter-1": "llll"})
    played(league, MemberTurn("scout", 1), "eval", 2, {"main-1": "wwww", "exploiter-1": "wwww"})
    assert "model.init" not in league.fields(MemberTurn("scout", 2))
    assert set(often(league, MemberTurn("scout", 2)).values()) != {1.0}  # by its last games
    played(league, MemberTurn("scout", 2), "train", 1, {})
    assert set(often(league, MemberTurn("scout", 3)).values()) == {1.0}


def test_plan_counts_all_future_frozen_versions(tmp_path: Path) -> None:
    league, machine = made(tmp_path / "out"), this_machine()
    for name, config in largest(league).items():
        last = load("tiny_nim", league.fields(MemberTurn(name, 3)))
        held = [plan(each, [machine], NEEDS).max_cpu_loras for each in (config, last)]
        assert held[0] == held[1] == 35 + {"main": 6, "exploiter": 1, "scout": 8}[name]


# Results


def test_summary_reports_a_members_results(tmp_path: Path) -> None:
    league, turn = made(tmp_path / "out"), MemberTurn("main", 3)
    played(league, MemberTurn("main", 1), "train", 1, {})
    played(league, MemberTurn("main", 2), "train", 1, {})
    games = {"main-1": "wwwwwwww", "main-2": "wwwwdddd", "exploiter-1": "wwwwllll"}
    played(league, turn, "train", 1, {**games, "exploiter-2": "l"})
    played(league, turn, "eval", 2, {"exploiter-2": "wl", "main-2": "wd"})
    row = {"version": 2, "exploit/Nim-v0/high": 0.25, "collect/games": 64}
    write_lines(league.folder.run(turn.name).metrics, [row])
    (found,) = [each for each in summaries(league) if each.turn == turn]
    assert found.against["exploiter"] == (1, 0, 1)  # in evaluation
    assert found.against["main"] == (1, 1, 0) and found.against["scout"].games == 0
    assert found.own_past == (13, 5, 0)
    assert found.least is not None
    assert (found.least.opponent, found.least.score.mean) == ("exploiter-1", 0.5)
    assert found.exploitability == {"Nim-v0": 0.25} and not found.is_anew


# The runner, on fake runs


def test_members_train_in_order(fake: type[FakeRun], tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    go(league, slots=3)  # alternate: one at a time despite three slots
    assert fake.begun == [turn.name for turn in league.turns]
    go(league)
    assert len(fake.begun) == 9


def test_members_wait_for_the_previous_generation(fake: type[FakeRun], tmp_path: Path) -> None:
    league = made(tmp_path / "out", f"{LEAGUE}turns: together\n")
    go(league, slots=3)
    assert fake.begun[0] == "main-1" and len(fake.begun) == 7
    assert set(fake.begun[1:4]) == {"main-2", "exploiter-2", "scout-2"}


def test_runs_that_depend_on_a_failed_run_wait(fake: type[FakeRun], tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    fake.fails = {"exploiter-2": 1}
    go(league)
    assert fake.begun[-1] == "exploiter-2"
    states = {each.turn.name: (each.state, each.line) for each in summaries(league)}
    assert states["main-2"] == ("done", "") and states["scout-2"] == ("waiting", "")
    assert states["exploiter-2"] == ("failed", "exit code 1: error: no space left")
    fake.fails = {}
    league.folder.forget_failures()
    go(league)
    assert fake.begun.count("exploiter-2") == 2
    assert {each.state for each in summaries(league)} == {"done"}


@settings(max_examples=10)
@given(kills=st.lists(st.integers(1, 25), max_size=3), order=st.sampled_from(["alternate", "tog"]))
def test_killed_league_starts_its_runs_with_the_same_commands(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], order: str
) -> None:
    text = LEAGUE + ("turns: together\n" if order == "tog" else "")
    root = tmp_path_factory.mktemp("league") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(several, "Child", FakeRun)
        patch.setattr(several, "LOOK_S", 0.0)
        patch.setattr(FakeRun, "commands", {})
        go(made(root, text), slots=2)
        whole = FakeRun.commands
        shutil.rmtree(root)
        patch.setattr(FakeRun, "commands", {})
        for looks in [*kills, None]:
            patch.setattr(FakeRun, "looks", 0)
            patch.setattr(FakeRun, "killed_at", looks)
            try:
                go(made(root, text), slots=2)
            except SystemError:
                continue
        assert FakeRun.commands == whole and len(whole) == (7 if order == "tog" else 9)
    assert {each.state for each in summaries(made(root, text))} == {"done"}


# The command line


def test_plan_prints_commands_and_starts_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(several, "Child", None)
    Path("my.yaml").write_text(LEAGUE.replace("generations: 3", "generations: 2"))
    assert run(["league", "my.yaml", "--plan", "--seed", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and not Path("outputs").exists()
    assert lines[0].startswith("unstable train --config tiny_nim --eval.exploitability.every 0")
    assert "name: main-1" in lines[1] and "--learner.state" in lines[3]


MISTAKES = [
    ("learning_rate: 1e-3", "learning_rat: 1e-3", "main: learner: unknown key 'learning_rat'"),
    ("config: tiny_nim", "config: tiny_nin", "main: --config = 'tiny_nin': no such file or ship"),
    ("updates: 2", "updates: none", "FILE = 'my.yaml': updates = 'none': input should be a va"),
    (
        "fields: {",
        "fields: {model.name: tiny_cards, ",
        "exploiter: model.name = 'tiny': main has '",
    ),
    ("generations: 3", "generations: 1000", "FILE = 'my.yaml': generations = 1000: 3,000 runs e"),
    (
        "common: {",
        "common: {loop: {steps: 2}, ",
        "FILE = 'my.yaml': common.loop.steps: set by the ",
    ),
    ("seed: 5", "turns: together\nat_once: 999", "main: at_once = 999: only "),
]


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES)
def test_invalid_league_is_reported_before_any_run_starts(
    old: str, new: str, said: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "Child", None)
    Path("my.yaml").write_text(LEAGUE.replace(old, new))
    assert line_of(run, ["league", "my.yaml"]).startswith(said)
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    "words, said",
    [
        (["none.yaml"], "FILE = 'none.yaml': cannot be read (No such file or directory)"),
        ([], "give the FILE of a league, or --resume FOLDER"),
        (["my.yaml", "--retry"], "give the FILE of a league, or --resume FOLDER"),
        (["my.yaml", "--table"], "FOLDER = 'my.yaml': league.yaml not found; give a folder of u"),
        (["--resume", "folder", "--seed", "3"], "--seed: --resume uses the league's own"),
        (["--resume", "folder"], "FOLDER = 'folder': league.yaml not found"),
        (["my.yaml", "--out", "folder"], "folder exists; to resume: unstable league --resume fol"),
    ],
)
def test_invalid_arguments_are_rejected(words: list[str], said: str, here: Path) -> None:
    Path("my.yaml").write_text(LEAGUE)
    Path("folder").mkdir()
    assert line_of(run, ["league", *words]).startswith(said)


def test_resume_rejects_a_changed_config(tmp_path: Path) -> None:
    league = made(tmp_path / "out")
    write_lines(league.folder.configs, [{"member": "main", "digest": "0"}])
    said = line_of(run, ["league", "--resume", str(league.folder.root)])
    assert said.startswith("main: config changed since the league started; restore ")
