"""Table of the catalog: every game with metadata."""

from unstable.games.catalog import (
    bargaining,
    codenames,
    connect_four,
    guessing,
    hanoi,
    kuhn,
    leduc,
    nim,
    secret_mafia,
    tic_tac_toe,
    without_expert,
)
from unstable.games.catalog.bare import GAME_ENV, bare
from unstable.games.info import GameInfo

_THEIRS = "textarena"
GAMES: tuple[GameInfo, ...] = (
    tic_tac_toe.INFO,
    tic_tac_toe.WILD,
    connect_four.INFO,
    nim.INFO,
    hanoi.INFO,
    kuhn.INFO,
    kuhn.TEXTARENA,
    leduc.INFO,
    *without_expert.GAMES,
    guessing.MASTERMIND,
    guessing.NUMBER,
    bargaining.NEGOTIATION,
    bargaining.DILEMMA,
    codenames.INFO,
    secret_mafia.INFO,
)
_BY_ENV = {
    (info.name.partition(":")[0] if ":" in info.name else _THEIRS, info.env): info for info in GAMES
}
"""Games by module and class: the module of a class of ours, or TextArena's package."""
_NOTHING = GameInfo()
EXPERT_GAMES = ", ".join(info.name for info in GAMES if info.expert is not None)
"""The games with an expert, for messages."""
EXACT_GAMES = ", ".join(info.name for info in GAMES if info.small_tree is not None)
"""The games that can be solved exactly, some only in small variants, for messages."""


def info_of(env: type) -> GameInfo:
    """Return the metadata of an env's class, or of the nearest base class that has any.

    A class of another module does not match, even if its name does.
    """
    found = next((_BY_ENV[key] for key in map(_place, env.__mro__) if key in _BY_ENV), _NOTHING)
    return bare(found) if issubclass(env, GAME_ENV) else found


def _place(cls: type) -> tuple[str, str]:
    module = cls.__module__
    return _THEIRS if module.startswith(f"{_THEIRS}.") else module, cls.__name__
