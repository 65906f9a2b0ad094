"""An equilibrium of Kuhn poker (Kuhn 1950, Contributions to the Theory of Games 1).

Of the family in alpha, from 0 to 1/3, it is the one with alpha = 1/3, where a king always bets. It
is that of a round, in chips; a match of several rounds pays for having more chips in the end.
"""

from typing import Any

_ALPHA = 1 / 3  # how often the opener bluffs with a jack
_BET = {True: (_ALPHA, 0.0, 3 * _ALPHA), False: (1 / 3, 0.0, 1.0)}  # opener or not: of J, Q, K
_CALL = {True: (0.0, _ALPHA + 1 / 3, 1.0), False: (0.0, 1 / 3, 1.0)}
_WHY = {
    "bet": (
        "A jack loses every showdown, so a bet can only win by making the other fold.",
        "A queen beats only a jack, so a bet wins more only if a jack calls it.",
        "A king wins every showdown, so a bet wins more if it is called.",
    ),
    "check": (
        "A jack loses every showdown, so a check risks no more chips.",
        "A queen beats a jack and loses to a king, so a check keeps the pot small.",
        "A king wins every showdown, so a check gives up the chip that a call would add.",
    ),
    "call": (
        "A jack loses every showdown, so a call only adds a chip to the loss.",
        "A queen beats a jack that bluffs, so a call wins the pot from a bluff.",
        "A king wins every showdown, so a call wins the pot.",
    ),
    "fold": (
        "A jack loses every showdown, so a fold saves a chip.",
        "A queen loses to a king that bets, so a fold saves a chip against a king.",
        "A king wins every showdown, so a fold gives the pot away.",
    ),
}


def moves(env: Any) -> dict[str, float]:
    """The equilibrium's mix by the seat's own card, who opened, and whether there is a bet."""
    state = env.state.game_state
    seat = env.state.current_player_id
    card, opener = state["player_cards"][seat], seat == state["starting_player"]
    if "bet" in state["current_legal_action_tree"]:
        active, passive, share = "[bet]", "[check]", _BET[opener][card]
    else:
        active, passive, share = "[call]", "[fold]", _CALL[opener][card]
    mix = {active: share, passive: 1 - share}
    return {action: share for action, share in mix.items() if share > 0}


def reason(env: Any, action: str) -> str:
    """What the seat's own card makes of the action."""
    card = env.state.game_state["player_cards"][env.state.current_player_id]
    return _WHY[action.strip("[]")][card]
