"""Kuhn poker as it should be (Kuhn 1950, Contributions to the Theory of Games 1).

TextArena's own game moves no chips when a player bets or calls, and deals once more after the end.
"""

import re

from textarena.envs.KuhnPoker.env import KuhnPokerEnv

_ACTION = re.compile(r"\[(check|bet|fold|call)\]", re.IGNORECASE)


class KuhnPoker(KuhnPokerEnv):
    """Several rounds; whoever has more chips in the end wins. Player 1 opens the odd rounds."""

    def __init__(self, max_rounds: int = 3) -> None:
        super().__init__(max_rounds=max_rounds)

    def step(self, action: str) -> tuple[bool, dict]:
        state = self.state.game_state
        move = _ACTION.search(action)
        if move and move[1].lower() in {"bet", "call"} & state["current_legal_action_tree"].keys():
            state["player_chips"][self.state.current_player_id] -= 1
            state["pot"] += 1
        return super().step(action)

    def _init_round(self) -> None:
        state = self.state.game_state
        if state["current_round"] < self.max_rounds:
            super()._init_round()
            return
        chips = state["player_chips"]
        if chips[0] == chips[1]:
            self.state.set_draw(reason=f"Both have as many chips after {self.max_rounds} rounds.")
            return
        winner = 0 if chips[0] > chips[1] else 1
        self.state.set_winner(
            player_id=winner, reason=f"Player {winner} won {chips[winner]} chips."
        )
