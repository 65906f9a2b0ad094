"""Advice to the user if almost none of the policy's first answers are legal."""

from tests.helpers import builders
from tests.helpers.tracking import make_config
from unstable.tracking.advice import LOOKED_AT, Illegal
from unstable.types import GameResult


def forfeited(text: str, **answer: object) -> GameResult:
    """A game that the policy has lost by its first answer."""
    game = builders.game(turns=1, forfeit=0)
    observation = "The rules.\n\nAnswer with only your action."
    first = builders.answering(game.turns[0], text=text, observation=observation, **answer)
    game.turns[:] = [first]
    return game


def said(illegal: Illegal, texts: list[str], **answer: object) -> list[str]:
    lines = [illegal.add(forfeited(text, **answer)) for text in texts]
    return [line for line in lines if line is not None]


def test_unparsed_answers_are_reported_once_with_a_remedy() -> None:
    illegal = Illegal(make_config())
    texts = ["3"] * 40 + ["I take three"] * (LOOKED_AT - 40)
    (line,) = said(illegal, texts + texts, action="", formatted=False)
    assert line == (
        "TicTacToe-v0: 64 of the policy's first 64 answers are illegal, most often '3' (40 times), "
        "in which the parser finds no action; the prompt asks for 'Answer with only your action.'. "
        "The game expects actions in square brackets, such as [3] (games.0.action_form); set "
        "games.0.legal_moves for a warm start on legal moves, or set games.0.parser to read the "
        "model's answers; without a list of legal moves, train on examples with `unstable sft`"
    )


def test_rejected_actions_are_reported_as_the_game_received_them() -> None:
    game = {"env": "a:B", "name": "TicTacToe-v0", "legal_moves": "a:b", "action_form": "bare"}
    fresh = make_config(games=[game], model={"init": "fresh"})
    (line,) = said(Illegal(fresh), ["9"] * LOOKED_AT, action="9")
    assert "most often '9' (64 times), which the game rejects as '9'." in line
    assert "expects actions without brackets, such as 3 (games.0.action_form); start with" in line
    started = make_config(games=[game], model={"init": "/taught"})
    (line,) = said(Illegal(started), ["9"] * LOOKED_AT, action="9")
    assert "start with" not in line and line.endswith("with a custom prompt style (games.0.prompt)")


def test_no_advice_for_mostly_legal_answers() -> None:
    illegal = Illegal(make_config())
    assert not [
        line for _ in range(LOOKED_AT) if (line := illegal.add(builders.game())) is not None
    ]
    illegal = Illegal(make_config())
    assert not said(illegal, ["3"] * (LOOKED_AT - 1), action="")
