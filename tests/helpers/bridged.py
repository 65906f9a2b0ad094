"""Shared checks of all bridges: games of other libraries, played by random moves."""

import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.loop import KUHN_RUN, make_context
from tests.helpers.mistakes import line_of
from unstable.config import ConfigError, GameConfig
from unstable.games.check import check_game, settled
from unstable.games.game import Game
from unstable.loop.train import train
from unstable.records.reading import read_rows


def turn(game: Game, rng: random.Random) -> tuple[int, list[str], str]:
    """Random move, with its seat, the legal moves and the observation."""
    shown, legal = game.observe(), game.legal_moves()
    assert shown.seat == game.seat
    assert not game.step(rng.choice(legal)).invalid
    return shown.seat, legal, shown.board


def play(game: Game, seed: int) -> tuple[list[tuple[int, list[str], str]], list[float]]:
    """Play a game by random moves; returns its turns and payoffs."""
    rng, turns = random.Random(seed), []
    while not game.done:
        turns.append(turn(game, rng))
    return turns, game.payoffs


def assert_undisturbed(config: GameConfig, seeds: Sequence[int], *, chance: bool = True) -> None:
    """Check that interleaved games equal games played alone, and differ by seed if `chance`."""
    alone = [play(Game(config, seed), 0) for seed in seeds]
    assert len({repr(turns) for turns, _ in alone}) > 1 or not chance
    games = [Game(config, seed) for seed in seeds]
    rngs = [random.Random(0) for _ in games]
    turns: list[list[tuple[int, list[str], str]]] = [[] for _ in games]
    while not all(game.done for game in games):
        for game, rng, own in zip(games, rngs, turns, strict=True):
            if not game.done:
                own.append(turn(game, rng))
    assert [*zip(turns, [game.payoffs for game in games], strict=True)] == alone


def assert_copy_goes_its_own_way(config: GameConfig) -> None:
    """Check that a game and its copy end alike by the same moves, independently of each other."""
    game = Game(config, 3)
    game.step(game.legal_moves()[0])
    if not game.done:
        before = game.observe()
        ended = play(game.copied(), 1)
        assert game.observe() == before and not game.done
        assert play(game, 1) == ended


def assert_refused(said: str, **config: Any) -> None:
    """Check that the game is rejected in one line."""
    assert said in line_of(check_game, GameConfig(**config), "games.0")


def assert_ends_or_is_refused(config: GameConfig, reasons: Collection[str]) -> None:
    """Check that the game ends by itself, or is rejected in a line with one of the reasons."""
    try:
        config = settled(config)
        check_game(config)
    except ConfigError as error:
        assert any(reason in str(error) for reason in reasons) and "\n" not in str(error), error
        return
    game = Game(config, 1)
    play(game, 1)
    assert not game.truncated


async def learned_from(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """Return the rows of a run of one update on a game with the shipped cards model."""
    whole = KUHN_RUN | {"eval": {"every": 0}} | changes | {"loop": {"mode": "sync", "steps": 1}}
    context = make_context(folder, folder / "run", **whole)
    assert await train(context) == "all updates made"
    rows = read_rows(context.folder.metrics)
    assert [row["version"] for row in rows] == [0, 1]
    return rows
