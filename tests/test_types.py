"""Who won: what evaluation, ratings and tables all rest on."""

import pytest

from tests.builders import game


@pytest.mark.parametrize(
    ("outcomes", "forfeit", "standings"),
    [
        ((1, -1), None, ["win", "loss"]),
        ((0, 0), None, ["draw", "draw"]),
        ((-1, 0), 0, ["loss", "win"]),
        ((0, 0), 0, ["loss", "win"]),  # a forfeit that is worth nothing is a loss all the same
        ((0, -1, 0), 1, ["win", "loss", "win"]),
        ((1, 1, -1, -1), None, ["win", "win", "loss", "loss"]),  # teams
        ((1, 0, -1), None, ["win", "loss", "loss"]),
        ((1,), None, ["win"]),
        ((0.4,), None, ["draw"]),
        ((0,), None, ["loss"]),
        ((0.4,), 0, ["loss"]),
    ],
)
def test_standings(outcomes: tuple[float, ...], forfeit: int | None, standings: list[str]) -> None:
    players = [f"policy@{seat}" for seat in range(len(outcomes))]
    result = game(players, outcomes, turns=len(players), forfeit=forfeit)
    assert [result.standing(seat) for seat in range(len(outcomes))] == standings
