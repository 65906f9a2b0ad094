"""Game that accepts actions in a configured form."""

from typing import Any

import textarena as ta

from unstable.config import GameConfig


class Taking(ta.Env):
    """Takes three actions of two words or a number, in the forms that it is made with."""

    def __init__(
        self, forms: str = "bare", text: str = "Answer with a number from 1 to 3."
    ) -> None:
        self.forms, self.text = forms, text

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.FFAMultiPlayerState(num_players=num_players, seed=seed)
        self.state.reset(
            game_state={"count": 0}, player_prompt_function=lambda player_id, game_state: self.text
        )

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        is_bracketed = action.startswith("[")
        form = "brackets" if is_bracketed else "bare"
        if action.strip("[]") not in ("1", "2", "go home") or self.forms not in (form, "both"):
            self.state.set_invalid_move(reason="no")
            return self.state.step()
        self.state.game_state["count"] += 1
        if self.state.game_state["count"] == 30:
            self.state.set_winners(player_ids=[0], reason="thirty")
        return self.state.step()


def bare(env: Taking) -> list[str]:
    return ["1", "2", "go home"]


def bracketed(env: Taking) -> list[str]:
    return ["[1]", "[2]", "[go home]"]


def game(moves: str | None = None, prompt: str = "compact", **args: str) -> GameConfig:
    listed = None if moves is None else f"{__name__}:{moves}"
    return GameConfig(env=f"{__name__}:Taking", args=args, legal_moves=listed, prompt=prompt)
