"""Judge recorded games again, without playing: the results follow from the games alone."""

import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import SEATS
from tests.helpers.loop import lines, make_context, train_to_end
from tests.helpers.mistakes import refused
from unstable.cli import run
from unstable.config import ConfigError
from unstable.records.folder import RunFolder
from unstable.records.games import read_games
from unstable.records.judged import read_judged
from unstable.records.reading import Skipped
from unstable.types import GameResult, Reward
from unstable.types.intervals import correlation

TERMS = """
judges:
  worth: {{kind: "examples.service_judge:score", args: {{url: "{url}"}}, cache: memory}}
  each: {{kind: "tests.helpers.judged:score_turns", args: {{url: "{url}"}}, cache: memory}}
rewards:
- {{term: worth, weight: 0.5}}
- {{term: each}}
- term: length
"""


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    loop = {"mode": "sync", "steps": 1}
    place = tmp_path_factory.mktemp("runs") / "run"
    model = {"name": "tiny", "dtype": "float32", "adapter": {"rank": 4}}  # plays legal moves
    return train_to_end(make_context(tiny_folder, place, loop=loop, eval={"every": 0}, model=model))


def recorded(folder: RunFolder) -> list[GameResult]:
    files = [file.path for file in folder.game_files() if file.purpose == "train"]
    return [game for path in files for game in read_games(path, Skipped())]


def outcomes(request: dict[str, Any]) -> dict[str, Any]:
    return {"values": [item["outcome"] for item in request["items"]]}


def test_games_are_judged_only_once(
    trained: RunFolder, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.replies = [Reply(body=outcomes)]
    (tmp_path / "mine.yaml").write_text(TERMS.format(url=server.url))
    command = ["judge", str(trained.root), "--terms", str(tmp_path / "mine.yaml")]
    assert run(command) == 0
    path, asked = trained.judged("mine"), server.asked
    found, games = read_judged(path), recorded(trained)
    seats = [(g, seat) for g in games for seat in {turn.seat for turn in g.trained_turns}]
    assert len(seats) > 4
    for game, seat in seats:
        rewards = found[game.spec.game_id, None, seat]
        assert rewards["worth"] == Reward(game.outcomes[seat], game.outcomes[seat] / 2)
    turns = {(g.spec.game_id, turn.index, turn.seat) for g in games for turn in g.trained_turns}
    assert {place for place in found if place[1] is not None} == turns
    assert all({"each", "length"} == set(found[place]) for place in turns)
    (row,) = re.findall(r"worth +(\d+) .* 1\.00 .*", capsys.readouterr().out)
    assert int(row) == len(seats)

    assert run(command) == 0
    assert server.asked == asked
    assert read_judged(path) == found
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])  # as if killed while writing
    assert run(command) == 0
    assert read_judged(path) == found
    assert len(lines(path)) == 1 + len(games)


def test_file_with_other_terms_is_rejected_unchanged(
    trained: RunFolder, server: Server, tmp_path: Path
) -> None:
    server.replies = [Reply(body=outcomes)]
    own = ["judge", str(trained.root), "--into", "own"]
    assert run(own) == 0  # the run's own term: outcome
    before = trained.judged("own").read_bytes()
    with pytest.raises(ConfigError, match=r"^--into = 'own': .* has other terms; give another"):
        run([*own, "--buffer.rewards.0.weight", "2"])
    assert trained.judged("own").read_bytes() == before
    refused(r"^--terms = '.*none.yaml': file not found", run, [*own, "--terms", "none.yaml"])
    (tmp_path / "list.yaml").write_text("judges: [helpful]")
    terms = ["--terms", str(tmp_path / "list.yaml")]
    refused("judges: not a mapping; write each judge under its name", run, [*own, *terms])


def test_failed_games_are_retried(
    trained: RunFolder, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    def some(request: dict[str, Any]) -> dict[str, Any]:
        asked = [zlib.crc32(repr(item).encode()) % 3 for item in request["items"]]
        return {"values": ["busy" if n == 0 else n for n in asked]}

    options = {"buffer.rewards.0.term": "some", "judges.some.kind": SEATS}
    options["judges.some.args.url"] = server.url
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = ["judge", str(trained.root), "--into", "again", *words]
    server.replies = [Reply(body=some)]
    assert run(command) == 0
    few, games = read_judged(trained.judged("again")), recorded(trained)
    assert 0 < len({game for game, *_ in few}) < len(games)
    assert "games failed" in capsys.readouterr().err
    server.replies = [Reply(body=outcomes)]
    assert run(command) == 0
    every = read_judged(trained.judged("again"))
    assert {game for game, *_ in every} == {game.spec.game_id for game in games}
    assert {place: every[place] for place in few} == few


def test_engine_of_the_run_judges_games(trained: RunFolder) -> None:
    llm = {"kind": "llm", "retries": 0, "on_failure": "zero", "args.engine": "base"}
    llm |= {"args.max_tokens": 2, "args.template": "{action}?"}
    words = [word for name, value in llm.items() for word in (f"--judges.own.{name}", str(value))]
    words += ["--buffer.rewards.0.term", "own", "--into", "engine"]
    assert run(["judge", str(trained.root), *words]) == 0
    found = read_judged(trained.judged("engine"))
    assert {rewards["own"].raw for rewards in found.values()} == {0.0}  # no verdict in two tokens


def test_correlation_and_its_interval() -> None:
    # r = 1 / sqrt(3) of 28 pairs: tanh(atanh(r) ± 1.96 / 5).
    first = [1.0, -1.0, 1.0, -1.0] * 7
    found = correlation(first, [1.0, -1.0, 1.0, 1.0] * 7)
    assert found is not None
    assert found.mean == pytest.approx(0.5774, abs=1e-4)
    assert found.low == pytest.approx(0.2604, abs=1e-4)
    assert found.high == pytest.approx(0.7820, abs=1e-4)
    assert correlation(first, first) == (1.0, 1.0, 1.0)
    assert correlation([1.0] * 9, first[:9]) is None
    assert correlation([1.0, 2.0], [1.0, 2.0]) is None
