"""Random games of the installed TextArena, to compare 0.7 with 1.x.

`python -m tests.helpers.textarena1` prints them as JSON.
"""

import json
import random
from typing import Any

from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.games.services import rule_bot
from unstable.games.textarena import known_ids

KUHN = "unstable.games.catalog.kuhn:KuhnPoker"
SAME: dict[str, dict[str, Any]] = {
    "TicTacToe": {},
    "WildTicTacToe": {},
    "ThreePlayerTicTacToe": {"seats": 3},
    "ConnectFour": {},
    "Nim": {},
    "SimpleTak": {"args": {"board_size": 4}},
    KUHN: {},
    "unstable.games.catalog.leduc:Leduc": {"args": {"max_rounds": 2}},
}
"""Games whose rules and chance are the same in both versions, with their settings.

The catalog also knows TowerOfHanoi, which allows one more move in 0.7 than `max_turns`.
"""
_GAMES = 20


def trace(name: str) -> list[Any]:
    """Play random games; return positions, legal moves, metadata and results, without brackets."""
    env = next(
        env for env in (name, f"{name}-v0", f"{name}-v1") if ":" in env or env in known_ids()
    )
    config = GameConfig(env=env, **SAME[name])
    return [part for seed in range(_GAMES) for part in _game(Game(config, seed), seed)]


def _game(game: Game, seed: int) -> list[Any]:
    rng, parts = random.Random(seed), list[Any]()
    while not game.done:
        seen, moves = game.observe(), game.legal_moves()
        parts.append([seen.seat, seen.position, game.whole_state(), [*map(_bare, moves)]])
        parts.append(_by_move(game.action_values()))
        parts.append(_by_move(game.expert_moves()) if game.info.expert else None)
        parts.append(_by_move(game.rule_moves()) if rule_bot(game.info) else None)
        game.step(rng.choice(moves))
    return [*parts, [game.turns, game.payoffs, game.outcomes, game.forfeit]]


def _by_move(values: dict[str, float] | None) -> dict[str, float] | None:
    return None if values is None else {_bare(move): each for move, each in values.items()}


def _bare(move: str) -> str:
    return move.removeprefix("[").removesuffix("]")


if __name__ == "__main__":
    print(json.dumps({name: trace(name) for name in SAME}))
