"""All games of a small tree as records, with illegal answers and unusual spellings."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from tests.helpers.builders import game, turn
from unstable.config import GameConfig
from unstable.games.chance import noted
from unstable.games.game import Game
from unstable.solving.best_response import Policy
from unstable.solving.tree import Tree, as_key
from unstable.types import GameResult, Turn

Move = tuple[str, str]  # action and text
ILLEGAL, SPELLED = "[pass the salt]", "as the model rarely spells it"


def is_listed(turn: Turn) -> bool:
    assert turn.answer.action != ILLEGAL, "a model's builder cannot encode an arbitrary answer"
    return turn.answer.text != SPELLED


def record(
    config: GameConfig, seed: int, moves: Sequence[tuple[str, str]]
) -> tuple[Game, GameResult]:
    """Play moves; return the game and its record."""
    played, turns = Game(config, seed), list[Turn]()
    for index, (action, text) in enumerate(moves):
        seat = played.observe().seat
        turns.append(turn(seat, index, "random", action=action, text=text))
        played.step(action)
    result = replace(game(("random", "random"), played.payoffs, game_id=seed), turns=turns)
    return played, result


def every_game(
    config: GameConfig, tree: Tree, policy: Policy
) -> Iterator[tuple[float, float, GameResult]]:
    """Yield probability, payoff of seat 0, and record of each game that can be played.

    Half of a decision's illegal mass is the first legal move in another spelling. After an illegal
    answer that does not end the game, legal moves are equally likely.
    """
    seeds: dict[tuple[int, ...], int] = {}
    for seed in range(200):
        with noted() as drawn_by_chance:
            Game(config, seed)
        seeds.setdefault(tuple(drawn_by_chance), seed)
    assert set(seeds) == set(tree.root.draws)

    def after(probability: float, seed: int, moves: list[Move]) -> Iterator[Any]:
        played, result = record(config, seed, moves)
        if played.done:
            forfeit = played.forfeit
            payoffs = played.payoffs if forfeit is None else tree.forfeit(forfeit)
            yield probability, payoffs[0], result
            return
        legal = played.legal_moves()
        key = as_key(played.observe())
        table = policy.get(key, dict.fromkeys(legal, 1 / len(legal)))
        rest = 1 - sum(table.values())
        answers = [((move, move), table[move]) for move in legal]
        if rest > 1e-12:
            answers += [((ILLEGAL, ILLEGAL), rest / 2), ((legal[0], SPELLED), rest / 2)]
        for answer, share in answers:
            yield from after(probability * share, seed, [*moves, answer])

    for draw, probability in zip(tree.root.draws, tree.root.probabilities, strict=True):
        yield from after(probability, seeds[draw], [])
