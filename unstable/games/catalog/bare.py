"""Metadata of TextArena 1.x's games, whose moves have no brackets."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import textarena

from unstable.config.plugins import registered
from unstable.games.info import Expert, GameInfo, RuleBot

T = TypeVar("T")
GAME_ENV: Any = getattr(textarena, "GameEnv", ())
"""Base class of TextArena 1.x's games; under 0.7 a tuple, of which no class is a subclass."""
SAME_RULES = frozenset(
    {
        "TicTacToeEnv",
        "WildTicTacToeEnv",
        "ThreePlayerTicTacToeEnv",
        "ConnectFourEnv",
        "NimEnv",
        "SimpleTakEnv",
        "TowerOfHanoiEnv",
        "KuhnPokerEnv",
        "KuhnPoker",
    }
)
"""Classes whose rules and state equal those in the catalog."""
_SAME_SEATS = {"CodenamesEnv", "SecretMafiaEnv", "TabooEnv"}
"""Classes of which only legal moves and teams apply: the rule bot reads votes in brackets."""


@cache
def bare(info: GameInfo) -> GameInfo:
    """Return the metadata that applies to TextArena 1.x, with bare moves; empty if none does."""
    moves, values, expert = info.legal_moves, info.action_values, info.expert
    legal_moves = moves and (lambda env: [*map(_bare, moves(env))])
    if info.env in _SAME_SEATS:
        return GameInfo(env=info.env, legal_moves=legal_moves, teams=info.teams)
    if info.env not in SAME_RULES:
        return GameInfo()
    return replace(
        info,
        legal_moves=legal_moves,
        action_values=values and _keyed(values),
        expert=expert and Expert(_keyed(expert.moves), expert.reason),
        rules=_rules(info),
    )


def _rules(info: GameInfo) -> RuleBot | None:
    """Return the game's rule bot, its own or the one installed under its name, with bare moves."""
    if info.rules is None and info.name not in registered("rules"):
        return None
    bot: RuleBot = info.rules or registered("rules")[info.name].load()
    return lambda env, events: {_bare(move): p for move, p in bot(env, events).items()}


def _keyed(values: Callable[[Any], dict[str, T]]) -> Callable[[Any], dict[str, T]]:
    return lambda env: {_bare(move): value for move, value in values(env).items()}


def _bare(move: str) -> str:
    return move.removeprefix("[").removesuffix("]")
