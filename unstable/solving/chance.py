"""Checks before a tree is grown: all chance is enumerated, and an open game hides nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numpy.random import default_rng

from unstable.config import ConfigError, GameConfig
from unstable.games.chance import answered
from unstable.games.game import Game
from unstable.games.other_draws import OtherDrawError, refused

_PAIRS = 200  # pairs of games with different seeds, but equal draws and moves
_GAMES = 60  # random games in which positions with equal observations are compared
_REMEDY = (
    "draw with randrange, randint, choice, shuffle or sample of Python's module random, which is "
    "seeded for each game, so that all outcomes can be enumerated"
)


@contextmanager
def all_chance_enumerated(config: GameConfig) -> Iterator[None]:
    """Raise `ConfigError` for a draw within the context that `all_draws` does not answer.

    Some generators cannot be watched. So pairs of games are played first, with different seeds but
    equal draws of `random` and equal moves: any difference comes from another generator.
    """
    place = f"games = {config.key}"
    try:
        with refused() as made:
            rng = default_rng(0)
            for pair in range(_PAIRS):
                if _differ(config, 2 * pair + 1, rng):
                    what = ", ".join(dict.fromkeys(made)) or "another generator or the clock"
                    raise ConfigError(
                        f"{place}: cannot be solved exactly, because not all chance comes from the "
                        f"module random ({what}); {_REMEDY}"
                    )
            yield
    except OtherDrawError as call:
        raise ConfigError(
            f"{place}: cannot be solved exactly, because it draws with {call}; {_REMEDY}"
        ) from None


def check_open(config: GameConfig) -> None:
    """Raise `ConfigError` if positions with equal observations diverge in random play.

    Both positions get equal moves and draws. For OpenSpiel, see `games/bridges/sizes.py`.
    """
    rng, met = default_rng(0), dict[str, Callable[[], Game]]()

    def draw(size: int) -> int:
        return int(rng.integers(size))

    for seed in range(_GAMES):
        with answered(draw):
            game = Game(config, seed)
        while not game.done:
            key = repr((game.turns, _seen(game)))
            if key in met and _part(met[key](), game.copied(), int(rng.integers(2**31))):
                raise ConfigError(
                    f"games = {config.key}: small_tree.is_open = True: positions with equal "
                    "observations develop differently, so the game hides something; set it to False"
                )
            met.setdefault(key, game.copies())
            moves = game.legal_moves()
            move = moves[draw(len(moves))]
            with answered(draw):
                game.step(move)


def _part(one: Game, other: Game, seed: int) -> bool:
    """Return whether two games come to differ under equal random moves and draws."""
    moving = default_rng(seed)
    while _seen(one) == _seen(other):
        if one.done:
            return False
        moves, draws = one.legal_moves(), int(moving.integers(2**31))
        move = moves[int(moving.integers(len(moves)))]
        for game in (one, other):
            drawing = default_rng(draws)
            with answered(lambda size, drawing=drawing: int(drawing.integers(size))):  # type: ignore[misc]
                game.step(move)
    return True


def _differ(config: GameConfig, seed: int, rng: Any) -> bool:
    """Return whether two games with this seed and the next one differ under equal draws."""
    sizes, asked, answers = list[int](), list[int](), list[int]()

    def draw(size: int) -> int:
        sizes.append(size)
        answers.append(int(rng.integers(size)))
        return answers[-1]

    def draw_again(size: int) -> int:
        place = len(asked)
        asked.append(size)
        return answers[place] if place < len(answers) and sizes[place] == size else 0

    with answered(draw):
        first = Game(config, seed)
    with answered(draw_again):
        second = Game(config, seed + 1)
    while sizes == asked and _seen(first) == _seen(second):
        if first.done:
            return False
        moves = first.legal_moves()
        move = moves[int(rng.integers(len(moves)))]
        with answered(draw):
            first.step(move)
        with answered(draw_again):
            second.step(move)
    return True


def _seen(game: Game) -> tuple[object, ...]:
    """Return everything that a tree takes from a game at a position."""
    return (True, *game.payoffs) if game.done else (game.observe(), sorted(game.legal_moves()))
