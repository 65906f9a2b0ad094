"""Known defects of TextArena 0.7.4's envs that can be played, by the env's class: each a warning.

What cannot be played at all is found by playing it (`screen.py`) and needs no entry.
"""

from unstable.config import GameConfig
from unstable.games.textarena import env_class

_SIGN = "pays only who is ahead, +1 or -1, however large the difference"
_RANK = "ranks players in even steps from -1 to 1, whatever the difference"
_NUMBER = "gives a number, its score, as the reason of a refused move"

DEFECTS = {
    "KuhnPokerEnv": (
        "moves no chips when a player bets or calls, so that to fold never pays; "
        "play unstable.games.catalog.kuhn:KuhnPoker"
    ),
    "IndianPokerEnv": _SIGN,
    "PokerEnv": f"{_RANK}, and equal stacks by seat",
    "LiarsDiceEnv": "accepts bids of more dice than there are; the next seat starts after a call",
    "SimpleNegotiationEnv": "a seat may accept its own offer, and [Deny] leaves an offer open",
    "IteratedStagHuntEnv": _SIGN,
    "IteratedUltimatumGameEnv": _SIGN,
    "TwoDollarEnv": _SIGN,
    "HighSocietyEnv": _SIGN,
    "SnakeEnv": _RANK,
    "SurroundEnv": _RANK,
    "SecretMafiaEnv": (
        "shows a vote such as [Player 3] to the others as an empty text; vote with [3]"
    ),
    "CodenamesEnv": (
        "flags no move as invalid: a text without a clue or a guess passes the turn, and a clue "
        "that holds a word of the board loses at once"
    ),
    "SettlersOfCatanEnv": "does not flag some moves that it refuses",
    "StrategoEnv": (
        "does not notice that player 0 has won, nor that a flag is taken, and raises TypeError "
        "after several hundred turns"
    ),
    "TakEnv": "raises TypeError at a road that wins, so that games that are won fail",
    "UltimateTicTacToeEnv": (
        "does not notice a draw with a full small board; such games end by an invalid move"
    ),
    "BreakthroughEnv": "does not end where a player has no move",
    "QuantumTicTacToeEnv": "does not end where fewer than two squares are open",
    "CheckersEnv": "does not end where a player has no move",
    "CountdownEnv": f"{_NUMBER}, and draws its numbers before the seed is set",
    "CryptarithmEnv": _NUMBER,
    "SlitherlinkEnv": _NUMBER,
    "ThreeCardMonteEnv": _NUMBER,
    "TowerOfHanoiEnv": "carries out several moves of one action, [A C] [A B]",
    "TabooEnv": "accepts any text as a turn",
    "LogicPuzzleEnv": "prints while it plays",
    "NewRecruitEnv": "prints while it plays",
    "RushHourEnv": "prints while it is set up",
    "WordSearchEnv": "prints while it plays",
}
"""What is wrong, as the rest of a sentence that begins with the game's name."""


def known_defect(config: GameConfig) -> str | None:
    """What is known to be wrong with a game that a config names, or None.

    An env that extends one of TextArena's is not meant: it may have mended it.
    """
    cls = env_class(config)
    return DEFECTS.get(cls.__name__) if cls.__module__.startswith("textarena.") else None
