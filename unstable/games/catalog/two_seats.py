"""State of the catalog's own envs of two seats under TextArena 1.x."""

from collections.abc import Callable
from typing import Any

from textarena import GAME_ID, ObservationType

from unstable.games.chance import seed_draws

_EVERYONE = -1


class TwoSeatState:
    """The part of TextArena 0.7's `TwoPlayerState` that the catalog uses; 1.x has no such class."""

    def __init__(self, num_players: int, seed: int | None = None) -> None:
        assert num_players == 2, f"the game needs 2 seats, not {num_players}"
        seed_draws(seed)
        self.current_player_id = self.error_count = 0
        self.error_allowance = 1
        self.done = self.is_refused = False
        self.rewards: dict[int, float] | None = None
        self.game_state: dict[str, Any] = {}
        self.observations: dict[int, list[tuple[int, str, ObservationType]]] = {0: [], 1: []}
        self.game_info: dict[int, dict[str, Any]] = {
            seat: {"role": f"Player {seat}", "invalid_move": False} for seat in range(2)
        }

    def reset(self, game_state: dict[str, Any], player_prompt_function: Callable[..., str]) -> None:
        """Set the game's own state, and send each seat the rules."""
        self.game_state = game_state
        for seat in range(2):
            rules = player_prompt_function(player_id=seat, game_state=game_state)
            self.add_observation(rules, ObservationType.PROMPT, to_id=seat)

    def add_observation(
        self,
        message: str,
        observation_type: ObservationType,
        from_id: int = GAME_ID,
        to_id: int = _EVERYONE,
    ) -> None:
        """Send a message to a seat, or to both."""
        for seat in range(2) if to_id == _EVERYONE else [to_id]:
            self.observations[seat].append((from_id, message, observation_type))

    def get_current_player_observation(self) -> list[tuple[int, str, ObservationType]]:
        """Return and remove the mover's messages."""
        seat = self.current_player_id
        seen, self.observations[seat] = self.observations[seat], []
        return seen

    def step(self, *, rotate_player: bool = True) -> tuple[bool, dict[str, Any]]:
        """End a turn; the other seat moves next, unless the move was refused."""
        if not self.is_refused:
            self.error_count = 0
            if rotate_player and not self.done:
                self.current_player_id = 1 - self.current_player_id
        self.is_refused = False
        return self.done, {}

    def manually_set_current_player_id(self, new_player_id: int) -> None:
        """Set the mover."""
        self.current_player_id = new_player_id

    def set_winner(self, player_id: int, reason: str) -> None:
        """End the game with a winner."""
        self._end({player_id: 1.0, 1 - player_id: -1.0}, reason)

    def set_draw(self, reason: str) -> None:
        """End the game without a winner."""
        self._end({0: 0.0, 1: 0.0}, reason)

    def set_invalid_move(self, reason: str) -> None:
        """Refuse a move; the mover loses at more than `error_allowance` of them in a row."""
        seat = self.current_player_id
        self.error_count += 1
        if self.error_count > self.error_allowance:
            self.game_info[seat]["invalid_move"] = True
            self.set_winner(1 - seat, reason)
            return
        self.is_refused = True
        text = f"Player {seat} attempted an invalid move. Reason: {reason} Please resubmit a move."
        self.add_observation(text, ObservationType.GAME_ADMIN, to_id=seat)

    def _end(self, rewards: dict[int, float], reason: str) -> None:
        self.rewards, self.done = rewards, True
        for info in self.game_info.values():
            info["reason"] = reason
