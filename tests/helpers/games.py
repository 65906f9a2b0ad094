"""Small games with hand-computed results, and settings of other games."""

import random

import numpy as np
import textarena as ta

from unstable.config import GameConfig

KUHN = "unstable.games.catalog.kuhn:KuhnPoker"


LEDUC = "unstable.games.catalog.leduc:Leduc"


class CountUp(ta.Env):
    """One to many players add 1 to 3, until 10; draws from both global random states."""

    def __init__(self, goal: int = 10):
        self.goal = goal

    def reset(self, num_players, seed=None):
        assert num_players <= 3, "at most 3"
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        np.random.seed(seed % 2**32)
        self.state.reset(game_state={"total": 0}, player_prompt_function=self._prompt)

    def _prompt(self, player_id, game_state):
        return f"You are Player {player_id}. Count to {self.goal}."

    def step(self, action):
        seat, state = self.state.current_player_id, self.state
        state.add_observation(
            from_id=seat, message=action, observation_type=ta.ObservationType.PLAYER_ACTION
        )
        if action not in ("[1]", "[2]", "[3]"):
            if state.set_invalid_move(reason="add 1 to 3"):
                raise AssertionError("the env must never count invalid moves itself")
        else:
            state.game_state["total"] += int(action[1])
            chance = f"{random.random()} {np.random.random()} {np.random.normal()}"
            state.add_observation(
                f"total {state.game_state['total']}, chance {chance}",
                observation_type=ta.ObservationType.GAME_MESSAGE,
            )
            if state.game_state["total"] >= self.goal:
                state.set_game_outcome({seat: 5.0}, reason="counted")
        return state.step()


COUNT_UP = f"{__name__}:CountUp"


def count_up_moves(env):
    return ["[1]", "[2]", "[3]"]


MIXED = [
    GameConfig(env=KUHN, max_turns=60),
    GameConfig(env="PigDice-v0-short", max_turns=60),
    GameConfig(env="TicTacToe-v0"),
    GameConfig(env="LiarsDice-v0-small", seats=3, max_turns=60),
    GameConfig(env=COUNT_UP, seats=3, legal_moves=f"{__name__}:count_up_moves"),
]


_FOR_TWO = f"""
TicTacToe-v0 SimpleTak-v0 ConnectFour-v0 ConnectFour-v0-large Nim-v0 Nim-v0-large KuhnPoker-v0
{KUHN} {LEDUC} PigDice-v0 LiarsDice-v0 Othello-v0 WildTicTacToe-v0 Crusade-v0 SpiteAndMalice-v0
Stratego-v0 Briscola-v0 Golf-v0 Golf-v0-medium SimpleNegotiation-v0 IteratedPrisonersDilemma-v0
"""
_ALONE = "FifteenPuzzle-v0 TowerOfHanoi-v0 Mastermind-v0 Mastermind-v0-hard GuessTheNumber-v0"
LISTED = [
    *((env, 2) for env in _FOR_TWO.split()),
    *((env, 1) for env in _ALONE.split()),
    *(("ThreePlayerTicTacToe-v0", 3), ("LiarsDice-v0-small", 4), ("Codenames-v0", 4)),
    ("SecretMafia-v0", 6),
]
"""Games that list their moves, with a number of seats."""
