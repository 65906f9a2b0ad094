"""The process that plays a game writes its line, and any content of the line is read back."""

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.helpers.builders import completion, game, sampled
from tests.helpers.rows import every_row
from unstable.config import RewardConfig, keep_secret
from unstable.records.files import hide_in_lines
from unstable.records.games import game_body, game_line
from unstable.records.reading import Skipped, parse_record, read_records
from unstable.rewards.terms import Rewards
from unstable.types import GameResult, RecordedGame, Segment

TERMS = [RewardConfig(term="outcome"), RewardConfig(term="format", weight=0.1)]
TEXTS = [
    *("a", "a\nb", 'she said "x"', "\x7f\x1b[2J", "\u2028", "\ud800"),
    *("NaN", "Infinity", "null", "é"),
]


def said(text: str) -> GameResult:
    """A game whose answers hold a text, with figures that notations differ in."""
    played = game(turns=4)
    played.reason = text
    for turn in played.turns:
        turn.answer = replace(turn.answer, text=text)
        turn.seconds = 1e-7
    return played


@every_row("text", *TEXTS)
@every_row("terms", TERMS[:1], TERMS, [])
def test_line_contains_game_and_rewards(text: str, terms: list[RewardConfig]) -> None:
    played = said(text)
    trajectories = Rewards(terms).trajectories(played)
    assert bool(trajectories[0].samples[0].rewards) == (len(terms) == 2)
    line = game_line(game_body(played, trajectories), 3, 1)
    assert line.startswith(b'{"format":2,"version":3,"actor":1,"spec":{"game":0,')
    assert line.isascii() or "é" in text
    record = parse_record(line, RecordedGame, "a line")
    assert (record.version, record.actor) == (3, 1)
    assert (record.spec, record.turns, record.reason) == (played.spec, played.turns, text)
    (own,) = trajectories
    rewards = {sample.turn: own.rewards | sample.rewards for sample in own.samples}
    assert [turn.rewards for turn in record.turns] == [rewards.get(at) for at in range(4)]


def test_game_without_turns_has_a_line() -> None:
    line = game_line(game_body(game(turns=0)), 0, None)
    record = parse_record(line, RecordedGame, "a line")
    assert (record.turns, record.actor, record.version) == ([], None, 0)


@every_row("number", math.nan, math.inf)
def test_non_finite_number_is_rejected(number: float) -> None:
    played = game(turns=1)
    played.turns[0].seconds = number
    with pytest.raises(ValueError):
        game_body(played)


def test_secrets_are_removed_from_lines_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    body = game_body(said("it is key-of-a-service"))
    monkeypatch.setenv("KEY_OF_TEST", "key-of-a-service")
    keep_secret("KEY_OF_TEST")
    assert b"it is <KEY_OF_TEST>" in hide_in_lines([game_line(body, 0, None)])[0]


@every_row("body", b"", b"[]", b'{"a":1}\n')
def test_body_that_is_not_one_line_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match="a single line"):
        game_line(body, 0, None)


@every_row(
    "old, new, why",
    (b'"seat":1', b'"seat":"x"', "turns.1.seat: expected `int`, got `str`"),
    (b'"action":"[4]",', b"", "turns.0.answer: object missing required field `action`"),
    (b'"scored":false', b'"scores":1', "turns.0.answer.sampled.segments.0: object contains"),
    (b"[-0.5,", b"[0.5,", "turns.0.answer.sampled.segments.1.logprobs: 0.5 is no"),
    (b"[-0.5,", b"[-0.5,-0.5,", "turns.0.answer.sampled.segments.1.logprobs: not one per token"),
    (b'"payoffs":[1.0,', b'"payoffs":[', "payoffs: 1 values for 2 seats"),
    (b'"temperature":1.0', b'"temperature":1e100', "spec.seats.0.temperature: expected"),
)
def test_damaged_field_is_named(tmp_path: Path, old: bytes, new: bytes, why: str) -> None:
    played = game(turns=2)
    segments = (Segment(token_ids=[5], scored=False), completion())
    played.turns[0].answer = replace(
        played.turns[0].answer, sampled=replace(sampled(), segments=segments)
    )
    line = game_line(game_body(played), 0, None)
    assert old in line
    path = tmp_path / "train-000000.jsonl"
    path.write_bytes(line + line.replace(old, new, 1))
    skipped = Skipped()
    assert len([*read_records(path, RecordedGame, skipped)]) == 1
    assert skipped.first.startswith(f"{path}, line 2: {why}"), skipped.first
