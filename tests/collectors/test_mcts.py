"""Monte Carlo tree search by OpenSpiel, as an opponent."""

from typing import Any

import pytest

from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.collectors.players import player_class
from unstable.collectors.players.programs import RandomPlayer
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, GameConfig, MCTSOpponent, parse
from unstable.games.game import Game
from unstable.types import PlayerId, SeatSpec

TIC_TAC_TOE = GameConfig(env="open_spiel:tic_tac_toe")
PIG = GameConfig(env="open_spiel:pig(winscore=10)", max_turns=200)


def mcts(game: GameConfig, **fields: Any) -> Any:
    opponent = MCTSOpponent(**fields)
    kind = player_class(opponent)
    kind.check(opponent, game, "opponents.fixed.0")
    seat = SeatSpec(player=PlayerId("mcts"), temperature=1.0)
    return kind.make(opponent, game, seat, lambda adapter: pytest.fail("asks for a model"))


async def outcome(game: GameConfig, seed: int, players: list[Any]) -> list[float]:
    play = Game(game, seed)
    while not play.done:
        answer = await players[play.seat].act(play.observe(), play, seed * 100 + play.turns)
        play.step(answer.action)
    return play.outcomes


async def test_mcts_never_loses_tic_tac_toe_to_random_play() -> None:
    strong, random = mcts(TIC_TAC_TOE, simulations=500), RandomPlayer()
    found = [(await outcome(TIC_TAC_TOE, s, [strong, random]))[0] for s in range(15)]
    found += [(await outcome(TIC_TAC_TOE, s, [random, strong]))[1] for s in range(15)]
    assert min(found) >= 0 and sum(found) >= 22


async def test_two_searches_draw_tic_tac_toe() -> None:
    strong = mcts(TIC_TAC_TOE, simulations=2000)
    assert await outcome(TIC_TAC_TOE, 0, [strong, strong]) == [0.0, 0.0]


async def test_few_simulations_choose_by_the_seed() -> None:
    weak, play = mcts(TIC_TAC_TOE, simulations=20), Game(TIC_TAC_TOE, seed=0)
    first = [await weak.mix(play.observe(), play, seed) for seed in range(20)]
    assert first == [await weak.mix(play.observe(), play, seed) for seed in range(20)]
    assert len({next(iter(each)) for each in first}) > 1
    assert play.turns == 0


async def test_game_of_chance_is_searched() -> None:
    found = await outcome(PIG, 1, [mcts(PIG, simulations=100), RandomPlayer()])
    assert sorted(found) == [-1.0, 1.0]


@every_row(
    "env",
    "TicTacToe-v0",
    "open_spiel:kuhn_poker",
    "open_spiel:goofspiel(num_cards=4,imp_info=False)",
)
def test_other_games_are_refused(env: str) -> None:
    config = parse({"games": [{"env": env}], "opponents": {"fixed": [{"kind": "mcts"}]}})
    refused("MCTS plays only OpenSpiel's games of perfect inform", check_games, config)


def test_payoffs_before_the_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="^opponents.fixed.0 = 'mcts' in .*that pay at their end"):
        mcts(GameConfig(env="open_spiel:2048", seats=1))
