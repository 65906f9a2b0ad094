"""A game's line is made where it was played, and is the one that the loop would write itself."""

import json
import math
from dataclasses import replace

import pytest

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from unstable.config import RewardConfig, keep_secret
from unstable.records.files import hide_in_line, json_line
from unstable.records.games import game_record, line_pieces, line_record, whole_line
from unstable.rewards.terms import Rewards
from unstable.types import GameResult

TERMS = [RewardConfig(term="outcome"), RewardConfig(term="format", weight=0.1)]
TEXTS = ["a", "a\nb", 'she said "x"', "\x7f\x1b[2J", "\u2028", "\ud800", "NaN", "Infinity", "é"]


def said(text: str) -> GameResult:
    """A game whose answers hold a text, with figures that notations differ in."""
    played = game(turns=4)
    played.reason = text
    for turn in played.turns:
        turn.answer = replace(turn.answer, text=text)
        turn.seconds = 1e-7
    return played


@every_row("text", TEXTS)
@every_row("terms", [TERMS[:1], TERMS, []])
def test_the_line_is_that_of_the_record_to_the_byte(text: str, terms: list[RewardConfig]) -> None:
    played = said(text)
    trajectories = Rewards(terms).trajectories(played)
    assert bool(trajectories[0].samples[0].rewards) == (len(terms) == 2)
    record = game_record(played, trajectories, 3, 1)
    line = whole_line(line_pieces(played, trajectories), 3, 1)
    assert line == json_line(record)
    if "\ud800" not in text:
        assert line_record(line) == json.loads(json.dumps(record))
    unjudged = json_line(game_record(played, [], 3, None))
    assert whole_line(line_pieces(played), 3, None) == unjudged


def test_a_game_without_a_turn_has_a_line() -> None:
    played = game(turns=0)
    line = whole_line(line_pieces(played), 0, None)
    assert line == json_line(game_record(played, [], 0, None))


def test_a_number_that_is_not_finite_has_no_line() -> None:
    played = game(turns=1)
    played.turns[0].seconds = math.nan
    with pytest.raises(ValueError):
        line_pieces(played)


def test_a_key_of_this_process_is_not_in_a_line_that_another_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = said("it is key-of-a-service")
    pieces = line_pieces(played)
    monkeypatch.setenv("KEY_OF_TEST", "key-of-a-service")
    keep_secret("KEY_OF_TEST")
    assert b"it is <KEY_OF_TEST>" in hide_in_line(whole_line(pieces, 0, None))


def test_pieces_that_are_more_than_a_line_are_refused() -> None:
    played = said("a")
    head, tail = line_pieces(played)
    with pytest.raises(ValueError, match="one line"):
        whole_line((head + b"\n", tail), 0, None)
