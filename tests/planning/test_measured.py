"""What updates took beside what was planned, and the numbers of cards that would balance it."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rows import every_row
from tests.helpers.tracking import make_tracker, printed
from unstable.cli import run
from unstable.config import RunConfig, load
from unstable.engines.needs import NEEDS
from unstable.planning.case import VLLM_GAMES
from unstable.planning.elsewhere import machine_named
from unstable.planning.measured import (
    FEWEST,
    MOST,
    Row,
    filled,
    measured,
    pace_line,
    request_tokens,
)
from unstable.planning.pace import Pace
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve

PLANNED = Pace(
    play_s=2.0, learn_s=2.5, games=240, places=1920, request_tokens=512, cached_tokens=500_000
)


def on_cards(actors: int, ranks: int, **options: Any) -> RunConfig:
    """A config as it is resolved for 8 cards."""
    numbers = {"actors.num": actors, "learner.num": ranks}
    config = load("qwen3_24gb", {"model.name": "Qwen/Qwen3-1.7B"} | numbers | options)
    return resolve(config, plan(config, [machine_named("8xh100")], NEEDS), "fresh")


def rows(play: float, update: float, publish: float = 0.0, count: int = FEWEST) -> list[Row]:
    return [{"time/play": play, "time/update": update, "time/publish": publish}] * count


def test_too_few_updates_say_nothing() -> None:
    assert measured(rows(1, 1, count=FEWEST - 1), sync=False) is None
    assert pace_line(on_cards(7, 1), PLANNED, []) is None


def test_who_waits_tells_what_took_how_long() -> None:
    """By turns each is measured; at once playing takes as long as updates, if it is waited for."""
    assert measured(rows(3, 1, 0.5), sync=True) == (3, 1.5, 4.5)
    assert measured(rows(3, 1, 0.5), sync=False) == (4.5, 1.5, 4.5)
    assert measured(rows(0.1, 3.4, 0.5), sync=False) == (None, 3.9, 4.0)


@every_row(
    ("actors", "mode", "found", "ends"),
    [
        (
            5,
            "async",
            rows(5, 1),
            "learner.num 1 and actors.num 7 would bring an update from 6.0 to",
        ),
        (
            7,
            "async",
            rows(0, 8),
            "learner.num 3 and actors.num 5 would bring an update from 8.0 to",
        ),
        (
            5,
            "sync",
            rows(9, 1),
            "learner.num 2 and actors.num 6 would bring an update from 10.0 to",
        ),
        (5, "async", rows(0, 2.6), "playing less (planned: 2.5 and 2.0 s)"),
    ],
)
def test_the_numbers_that_balance_are_named(
    actors: int, mode: str, found: list[Row], ends: str
) -> None:
    config = on_cards(actors, 8 - actors, **{"loop.mode": mode})
    line = pace_line(config, PLANNED, found)
    assert line is not None and ends in line, line


def test_nothing_is_said_of_cards_that_are_shared_or_not_planned() -> None:
    shared = on_cards(1, 1, **{"actors.share_gpu": "split"})
    assert pace_line(shared, PLANNED, rows(9, 1)) == (
        "learning takes 1.0 s an update, playing 10.0 s (planned: 2.5 and 2.0 s)"
    )
    line = pace_line(on_cards(5, 3), None, rows(9, 1))
    assert line == "learning takes 1.0 s an update, playing 10.0 s"


def with_requests(*lengths: float | None) -> list[Row]:
    """Rows of balanced updates, each with requests of a length; None is a row without any."""
    return [
        {
            **rows(0, 2.6)[0],
            "collect/engine/requests": 0 if length is None else 100 * (index + 1),
            "collect/engine/request_tokens": length,
        }
        for index, length in enumerate(lengths)
    ]


def test_the_mean_length_is_over_requests_and_of_the_newest_rows() -> None:
    assert request_tokens([]) is None
    assert request_tokens(rows(1, 1)) is None
    assert request_tokens(with_requests(None, None)) is None
    assert request_tokens(with_requests(400, None, 100)) == (400 * 100 + 100 * 300) / 400
    assert request_tokens(with_requests(*[9000] * 5, *[70] * MOST)) == 70


@every_row(
    ("games", "batch", "tokens", "better"),
    [
        (100, 4096, 600, 384),  # more than vLLM's front end takes
        (100, 4096, 2000, 250),
        (100, 4096, 5000, None),  # as it is
        (100, 4096, 4700, None),  # nearly
        (100, 4096, 10_000, 50),  # the cache holds fewer
        (100, 4096, 1e9, 1),
        (100, 384, 600, None),  # there are no more games to be played
        (30, 384, 600, 64),
    ],
)
def test_games_in_flight_by_the_measured_length(
    games: int, batch: int, tokens: float, better: int | None
) -> None:
    config = on_cards(
        5, 3, **{"actors.games_in_flight": games, "learner.batch_size": batch, "loop.mode": "async"}
    )
    assert filled(config, PLANNED, tokens) == better
    line = pace_line(config, PLANNED, with_requests(*[tokens] * FEWEST))
    assert line is not None
    said = f"{tokens:,.0f} tokens a request (planned: 512) actors.games_in_flight {better} would"
    assert (said in line) == (better is not None), line


def test_a_plan_of_measured_lengths_has_as_many_games_as_the_cache_holds() -> None:
    config = load("qwen3_24gb", {"model.name": "Qwen/Qwen3-1.7B"})

    def planned(tokens: float | None) -> Plan:
        return plan(config, [machine_named("4x24gb")], NEEDS, request_tokens=tokens)

    usual, long, huge = planned(None), planned(900), planned(1e6)
    assert usual.pace is not None and long.pace is not None
    assert usual.games_in_flight == usual.pace.cached_tokens // usual.pace.request_tokens
    assert long.pace.request_tokens == 900
    assert long.games_in_flight == long.pace.cached_tokens // 900 < usual.games_in_flight
    assert huge.pace is not None and huge.pace.request_tokens == 2048  # no request has more
    assert planned(100).games_in_flight == VLLM_GAMES


def test_a_run_says_it_once_and_keeps_it_for_the_doctor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = make_tracker(tmp_path, on_cards(7, 1), pace=PLANNED)
    tracker.folder.config.write_text("{}")
    for version in range(FEWEST + 3):
        tracker._times |= {"play": 0.0, "update": 8.0 if version > 1 else 80.0}
        tracker.end_update(version)
    tracker.finish("all updates made")
    said = "learner.num 3 and actors.num 5 would bring an update from 8.0 to about 2.8 s"
    assert printed(tracker).replace("\n", " ").count(said) == 1
    run(["doctor", str(tmp_path)])
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("pace")]
    assert line.endswith(said)
