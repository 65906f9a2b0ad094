"""Last trick, a game of three seats with hidden cards: see docs/adding_a_game.md."""

import random

import textarena as ta


class LastTrick(ta.Env):
    """Three players hold three cards of 0 to 8 each; the highest card of the last trick wins."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        cards = random.sample(range(9), 9)
        hands = [sorted(cards[seat::3]) for seat in range(3)]
        start = {"hands": hands, "trick": []}
        self.state.reset(game_state=start, player_prompt_function=self._rules)
        self._show()

    def _rules(self, player_id: int, game_state: dict) -> str:
        return (
            f"You are player {player_id} of 3. Each holds three cards of 0 to 8 and plays one in "
            "each of three tricks. The highest card of the last trick wins the game. Answer with "
            "a card of your hand, such as [5]."
        )

    def _show(self) -> None:
        seat, played = self.state.current_player_id, self.state.game_state["trick"]
        text = (
            f"Played: {' '.join(map(str, played)) or 'none'}. Your hand: {' '.join(legal(self))}."
        )
        board = ta.ObservationType.GAME_BOARD
        self.state.add_observation(text, to_id=seat, observation_type=board)

    def step(self, action: str) -> tuple[bool, dict]:
        if action not in legal(self):
            self.state.set_invalid_move(reason="Play a card of your hand, such as [5].")
            return self.state.step()
        hands, trick = self.state.game_state["hands"], self.state.game_state["trick"]
        hands[self.state.current_player_id].remove(int(action[1]))
        trick.append(int(action[1]))
        if not any(hands):
            winner = trick.index(max(trick))
            rewards = {seat: 1 if seat == winner else -1 for seat in range(3)}
            reason = f"Player {winner} has the last trick."
            self.state.set_game_outcome(rewards, reason=reason)
        elif len(trick) == 3:
            trick.clear()
        done = self.state.step()
        self._show()
        return done


def legal(env: LastTrick) -> list[str]:
    return [f"[{card}]" for card in env.state.game_state["hands"][env.state.current_player_id]]
