"""`unstable tournament`: resume after a kill, invalid arguments, results and report page."""

import json
import re
import shlex
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import background, rows, run_locally, wait_for
from tests.helpers.mistakes import line_of, refused
from tests.helpers.serving import make_run, served_config
from unstable.cli import run
from unstable.config import ConfigError
from unstable.league.fit import Ranking
from unstable.studies.ratings import rated, ratings
from unstable.studies.tournament.entrants import Entrant, check_runs, with_entrants
from unstable.studies.tournament.report import headline
from unstable.studies.tournament.results import lines
from unstable.studies.tournament.tournament import TournamentOptions, resume, tournament

NIM = "Nim-v0"
FIRST = '''
"""One object of the first pile that has any."""
import re


class First:
    def __call__(self, observation):
        board = observation.rpartition("Current Pile")[2]
        return f"[{re.search('pile ([0-9]): [1-9]', board)[1]} 1]"
'''


def play(words: Sequence[str], place: Path, **options: Any) -> dict[str, Any]:
    fields = {"tracking.run_dir": str(place), **options.pop("fields", {})}
    return tournament(words, TournamentOptions(**{"game": [NIM]} | options), fields)


def games(folder: Path) -> list[dict[str, Any]]:
    """Read the recorded games, without their durations."""
    found = rows(folder / "games/eval-000000.jsonl")
    for each in found:
        del each["seconds"]
        for turn in each["turns"]:
            del turn["seconds"]
    return found


def found_in(folder: Path) -> Any:
    return json.loads((folder / "tournament.json").read_text())["found"]


def test_perfect_player_is_ranked_first(tmp_path: Path) -> None:
    found = play(["random", "expert"], tmp_path / "run", deals=20)
    assert [row["player"] for row in found["players"]] == ["expert", "random"]
    assert found["reference"] == "random" and found["games"] == 40
    (nash,) = [row for row in found["nash"] if row["player"] == "expert"]
    assert nash["share"]["mean"] == pytest.approx(1.0) and nash["alpha_rank"] > 0.95
    assert found["cycles"] == [] and found["least"] == []
    assert found == json.loads(json.dumps(found_in(tmp_path / "run")))
    recorded = games(tmp_path / "run")
    assert [game["game"] for game in recorded] == list(range(40))
    seated = [game["players"] for game in recorded[:2]]
    assert seated == [["random", "expert"], ["expert", "random"]]
    assert recorded[0]["seed"] == recorded[1]["seed"] != recorded[2]["seed"]


def won(games: Sequence[tuple[str, str]]) -> list[Ranking]:
    """Return games that the first of each pair wins, from either side."""
    seats = [Ranking(NIM, pair, (0, 1)) for pair in games]
    other = [Ranking(NIM, (pair[1], pair[0]), (1, 0)) for pair in games]
    return [*seats[::2], *other[1::2]]


def test_headline_depends_on_the_lead_of_the_first_player() -> None:
    """The headline uses the difference of the first two, even if their intervals overlap."""
    few = [("expert", "random")] * 10 + [("base", "random")] * 6 + [("random", "base")]
    direct = [("expert", "base")] * 40 + [("base", "expert")] * 10
    sure = rated(won(few + direct), 1.0)
    first, second = sure["players"][:2]
    assert first["low"] < second["high"] and headline(sure) == "expert is the strongest."
    equal = [("expert", "base")] * 10 + [("base", "expert")] * 10
    others = [(one, "random") for one in ("base", "expert")] * 20
    even = rated(won([*equal, *others, ("random", "base"), ("random", "expert")]), 1.0)
    assert headline(even) == "base is first, but not clearly ahead of expert."
    (zero, *_) = even["players"]
    assert zero["ahead"] == {"mean": 0.0, "low": 0.0, "high": 0.0}


def test_disagreement_of_wins_and_payoffs_is_reported() -> None:
    pair = {"player": "a", "opponent": "b", "score": {"mean": 0.6}, "payoff": {"mean": -0.2}}
    back = {"player": "b", "opponent": "a", "score": {"mean": 0.4}, "payoff": {"mean": 0.2}}
    said = "more wins but a lower payoff: a against b; ratings count wins"
    found = {**rated(won([("a", "b")]), 1.0), "worth": "x", "cycles": []}
    assert said in lines({**found, "pairs": [pair, back]})
    even = {**pair, "payoff": {"mean": 0.1}}, {**pair, "payoff": None}
    assert said not in lines({**found, "pairs": list(even)})


def test_killed_tournament_resumes_identically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bots.py").write_text(FIRST)
    monkeypatch.syspath_prepend(tmp_path)
    players, place = ["random", "expert", "bots:First"], tmp_path / "killed"
    found = play(players, tmp_path / "whole", games=600, fields={"seed": 5})
    words = ["tournament", *players, "--game", NIM, "--games", "600", "--seed", "5"]
    process = background(tmp_path, [*words, "--run_dir", "killed"])
    file = place / "games/eval-000000.jsonl"
    wait_for(lambda: file.exists() and len(file.read_bytes().splitlines()) > 100, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(file.read_bytes().splitlines())
    file.write_bytes(file.read_bytes() + b'{"format":2,"version":')  # partial, as after a kill
    assert resume(place) == found == found_in(place)
    assert games(place) == games(tmp_path / "whole")
    assert 100 < before < len(games(place)) == 600
    rated = ratings([place], 1.0, as_json=True)
    assert rated["players"] == found["players"] and rated["games"] == 600
    assert [row["mu"] for row in rated["trueskill"]] == [row["mu"] for row in found["trueskill"]]


def test_resume_deletes_no_games(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run"
    found = play(["random", "expert"], place, deals=20)
    file = place / "games/eval-000000.jsonl"
    whole = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*whole[:10], b"noise\n", *whole[11:]]))
    assert resume(place) == found
    assert "damaged records skipped: 1 in games/eval-000000.jsonl" in capsys.readouterr().err
    lines = file.read_bytes().splitlines(keepends=True)
    assert lines[:40] == [*whole[:10], b"noise\n", *whole[11:]]
    assert [json.loads(line)["spec"]["game"] for line in lines[40:]] == [10]

    config = place / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    refused("has games of another tournament; move it elsewhere", resume, place)
    assert file.read_bytes().splitlines(keepends=True) == lines


def test_cycle_of_equals_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "class {}:\n    def __call__(self, observation):\n        return '[{}]'\n"
    moves = ("rock", "paper", "scissors")
    (tmp_path / "moves.py").write_text("".join(says.format(m.title(), m) for m in moves))
    monkeypatch.syspath_prepend(tmp_path)
    players = [f"moves:{move.title()}" for move in moves]
    found = play(players, tmp_path / "run", deals=12, game=["IteratedRockPaperScissors-v0"])
    assert found["cycles"] == [["python:Paper", "python:Rock", "python:Scissors"]]
    assert [row["share"]["mean"] for row in found["nash"]] == pytest.approx([1 / 3] * 3)
    assert [row["alpha_rank"] for row in found["nash"]] == pytest.approx([1 / 3] * 3)
    assert {round(row["points"], 6) for row in found["players"]} == {0.0}
    assert "python:Paper beats python:Rock" in (tmp_path / "run/report.html").read_text()


def test_ignored_forfeits_leave_their_player_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "silent.py").write_text("def silent(observation):\n    return 'nothing'\n")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["silent:silent", "random", "expert"]
    found = play(words, tmp_path / "run", deals=2, forfeits=0.0)
    assert {row["player"] for row in found["players"]} == {"random", "expert"}
    none = play(words[:2], tmp_path / "none", deals=2, forfeits=0.0)
    assert none["players"] == [] and headline(none) == "No game counts: all were forfeited."
    assert "No game counts" in (tmp_path / "none/report.html").read_text()
    assert "python:silent" in (tmp_path / "run/report.html").read_text()


def test_interrupt_prints_the_resume_command(tmp_path: Path) -> None:
    words = ["tournament", "random", "expert", "--game", "TicTacToe-v0", "--deals", "2000"]
    process = background(tmp_path, [*words, "--run_dir", "run"])
    file = tmp_path / "run/games/eval-000000.jsonl"
    wait_for(lambda: file.exists() and len(file.read_bytes()) > 0, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "to resume: unstable tournament --resume run" in said
    assert len(games(tmp_path / "run")) % 256 == 0


def test_resume_of_a_finished_tournament_plays_nothing(tmp_path: Path) -> None:
    found = play(["random", "expert"], tmp_path / "run", deals=2)
    before = games(tmp_path / "run")
    assert resume(tmp_path / "run") == found and games(tmp_path / "run") == before


def test_joint_policy_correlation_is_undefined_in_zero_sum_games(tmp_path: Path) -> None:
    zero_sum = play(["random", "expert"], tmp_path / "nim", deals=2, jpc=True)
    assert zero_sum["together"]["matrix"] is None
    options: Any = {"deals": 4, "jpc": True, "game": ["IteratedPrisonersDilemma-v0"]}
    together = play(["random", "rules"], tmp_path / "dilemma", **options)["together"]
    assert len(together["matrix"]) == 2 and together["own"] != 0


@pytest.mark.parametrize("others", [["random"], ["one@2"], ["two@1", "random"]])
def test_joint_policy_correlation_needs_one_version_per_run(others: list[str]) -> None:
    def entrant(word: str) -> Entrant:
        root, _, version = word.partition("@")
        own: Any = {"root": Path(root), "version": int(version)} if version else {}
        return Entrant(player=word.replace("@", ":"), **own)

    check_runs([entrant("one@1"), entrant("two@1")])
    check_runs([entrant("random"), entrant("expert")])
    with pytest.raises(ConfigError, match="^--jpc: needs one version each of several runs"):
        check_runs([entrant("one@1"), *map(entrant, others)])


def test_adapters_of_equal_folder_names_have_paths_as_names(tmp_path: Path) -> None:
    config = served_config()
    words = []
    for name in ("one", "two@home"):
        make_run(tmp_path / name, config, [1])
        shutil.copytree(tmp_path / name / "checkpoints/000001", tmp_path / f"{name}-sft/adapter")
        words.append(str(tmp_path / f"{name}-sft/adapter"))
    _, found = with_entrants(config, [*words, f"{tmp_path}/two@home@1"])
    assert [each.player for each in found] == [
        "checkpoint:one-sft/adapter",
        "checkpoint:two@home-sft/adapter",
        "two_home:1",
    ]


def test_correlation_rows_are_first_seats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds at 3 and 3, 1 and 1 or 5 and 0, over stakes of 25: 1.2, 0.4 or 1 together.

    One bot always cooperates, one never, and one only in the first seat.
    """
    says = "class {}:\n    def __call__(self, observation):\n        return {}\n"
    by_seat = "'[Cooperate]' if 'You are Player 0' in observation else '[Defect]'"
    bots = {"Kind": "'[Cooperate]'", "Mean": "'[Defect]'", "Sly": by_seat}
    (tmp_path / "partners.py").write_text("".join(says.format(*each) for each in bots.items()))
    monkeypatch.syspath_prepend(tmp_path)
    place, dilemma = tmp_path / "run", "IteratedPrisonersDilemma-v0"
    found = play([f"partners:{name}" for name in bots], place, deals=2, jpc=True, game=[dilemma])
    together = found["together"]
    assert together["players"] == [f"python:{name}" for name in bots]
    assert together["matrix"] == [
        pytest.approx([1.2, 1.0, 1.0]),
        pytest.approx([1.0, 0.4, 0.4]),
        pytest.approx([1.2, 1.0, 1.0]),
    ]
    assert together["own"] == pytest.approx(2.6 / 3)
    assert together["others"] == pytest.approx(5.6 / 6)
    assert together["loss"] == pytest.approx(-1 / 13)
    deals: dict[tuple[str, ...], list[int]] = {}
    for each in games(place):
        deals.setdefault(tuple(each["players"]), []).append(each["seed"])
    assert len(deals) == 9 and len({tuple(seeds) for seeds in deals.values()}) == 1
    page = (place / "report.html").read_text()
    assert "Joint policy correlation" in page
    assert re.search(r"average proportional loss \S8 %", page)


@pytest.mark.parametrize(
    "words, options, line",
    [
        (["random"], {}, "PLAYER = random: fewer than two players; add"),
        (["random", "random"], {}, "PLAYER = 'random': given 2 times; name each player once"),
        (["random", "rnadom"], {}, "PLAYER = 'rnadom': unknown player; did you mean 'rand"),
        (
            ["random", "expert"],
            {"games": 3},
            "--games = 3: too few for two deals per pair; .* 4",
        ),
        (["random", "expert"], {"games": 9, "deals": 2}, "--games = 9: conflicts with --deals"),
        (["random", "expert"], {"games": 9, "jpc": True}, "--games = 9: conflicts with --jpc"),
        (["random", "expert"], {"forfeits": 2.0}, "--forfeits = 2: must be from 0"),
        (["random", "expert"], {"temperature": -1.0}, "--temperature = -1.0: must be >= 0"),
        (["random", "nowhere:Bot"], {}, "nowhere:Bot"),
        (["random", "rules"], {}, "rules.* in Nim-v0"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    words: list[str], options: dict[str, Any], line: str, tmp_path: Path
) -> None:
    assert re.search(line, line_of(play, words, tmp_path / "run", **options))
    assert not (tmp_path / "run").exists()


def test_resume_rejects_folders_without_a_tournament(tmp_path: Path) -> None:
    refused("contains no config.yaml", resume, tmp_path)
    play(["random", "expert"], tmp_path / "run", deals=1)
    damaged = shutil.copytree(tmp_path / "run", tmp_path / "damaged")
    (damaged / "tournament.json").write_text('{"design": 1}')
    refused(": tournament.json is damaged", resume, damaged)
    (damaged / "tournament.json").unlink()
    refused(": tournament.json not found", resume, damaged)


def test_documented_example_is_reproduced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent.parent / "docs/ratings.md").read_text(encoding="utf-8")
    *_, (line, shown) = re.findall(r"```bash\n([^\n]*)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert run(shlex.split(line)[1:]) == 0
    printed = [each.rstrip() for each in capsys.readouterr().out.splitlines()]
    assert printed[: len(shown.splitlines())] == shown.splitlines()


@pytest.mark.slow
def test_versions_of_runs_and_adapters_play_each_other(tmp_path: Path) -> None:
    """Versions of one base model play; a run of another is rejected before a model loads."""
    one, two = (make_run(tmp_path / name, served_config(), [0, 2]) for name in ("one", "two"))
    shutil.copytree(one.checkpoint(0), tmp_path / "adapter")
    players = ["one@0", "one@2", "two", "adapter", "base", "random"]
    done = run_locally(tmp_path, "tournament", *players, "--deals", "2", "--run_dir", "met")
    found = found_in(tmp_path / "met")
    names = {"one:0", "one:2", "two:2", "checkpoint:adapter", "base", "random"}
    assert {row["player"] for row in found["players"]} == names
    assert found["games"] == 15 * 4
    assert "one:2" in done.stdout and (tmp_path / "met/report.html").is_file()
    two.config.write_text(two.config.read_text().replace("name: tiny", "name: tiny_cards"))
    refused("its model.name is 'tiny_cards'", run, ["tournament", str(one.root), str(two.root)])
