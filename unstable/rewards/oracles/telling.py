"""A turn or a seat's whole trajectory as text or JSON, for oracles.

It includes other seats' actions, never their reasoning.
"""

import re
from collections.abc import Mapping
from typing import Any

from unstable.types import GameResult, Turn


def seat_of(judged: Turn | int) -> int:
    """Return the seat of a turn or trajectory."""
    return judged.seat if isinstance(judged, Turn) else judged


def item(game: GameResult, judged: Turn | int) -> dict[str, Any]:
    """Return the JSON form of a turn or trajectory, see docs/feedback.md for its keys.

    `turns` end at the judged turn, if any. It has no player names, game numbers or times, so that
    equal plays are equal items.
    """
    seat = seat_of(judged)
    own: dict[str, Any] = {"turn": None, "observation": None, "answer": None, "action": None}
    if isinstance(judged, Turn):
        answer = judged.answer
        own = {"turn": judged.index, "observation": answer.observation}
        own |= {"answer": answer.text, "action": answer.action}
    return {
        "env": game.spec.env,
        "seat": seat,
        **own,
        "turns": [_told(turn, seat) for turn in _until(game, judged)],
        "outcome": game.outcomes[seat],
        "forfeit": game.forfeit == seat,
    }


def _until(game: GameResult, judged: Turn | int) -> list[Turn]:
    last = judged.index if isinstance(judged, Turn) else len(game.turns)
    return [turn for turn in game.turns if turn.index <= last]


def _told(turn: Turn, seat: int) -> dict[str, Any]:
    told: dict[str, Any] = {"seat": turn.seat, "action": turn.answer.action}
    told["invalid"] = turn.invalid
    if turn.seat == seat:
        told |= {"observation": turn.answer.observation, "answer": turn.answer.text}
    return told


def places(game: GameResult, judged: Turn | int, most: int) -> dict[str, str]:
    """Return the values of a template's placeholders; long texts are cut to `most` characters."""
    seat = seat_of(judged)
    turns = [turn for turn in game.own_turns if turn.seat == seat] or game.turns
    asked = judged if isinstance(judged, Turn) else turns[-1]
    first = next((turn for turn in game.turns if turn.seat == seat), asked)
    return {
        "env": game.spec.env,
        "seat": str(seat),
        "rules": first.answer.observation[:most],
        "observation": asked.answer.observation[-most:],
        "action": asked.answer.action,
        "answer": asked.answer.text[-most:],
        "transcript": transcript(game, judged, most),
        "outcome": f"{game.outcomes[seat]:g}",
    }


def transcript(game: GameResult, judged: Turn | int, most: int) -> str:
    """Return the last `most` characters of the moves, one per line, with the judged seat marked."""
    seat = seat_of(judged)
    lines = []
    for turn in _until(game, judged):
        who = f"Player {turn.seat}{' (judged)' if turn.seat == seat else ''}"
        text = turn.answer.text if turn.seat == seat else turn.answer.action
        refused = " (refused)" if turn.invalid else ""
        lines.append(f"{who}: {text}{refused}")
    whole = "\n".join(lines)
    return whole if len(whole) <= most else "..." + whole[-most:]


def filled(template: str, words: Mapping[str, str]) -> str:
    """Replace the template's placeholders once; inserted text is not expanded again."""
    return re.sub(r"\{(\w+)\}", lambda found: words[found[1]], template)
