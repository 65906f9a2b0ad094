"""A game of two teams whose roles are dealt: each seat says a number, the larger sum wins."""

import random
import re
from typing import Any

import textarena as ta

TEAMS = ((0, 1), (2, 3))
ROLES = ["red caller", "red runner", "blue caller", "blue runner"]
"""By seat."""


class Relay(ta.Env):
    """Red caller, blue caller, red runner, blue runner: in this order, each once."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = ta.TeamMultiPlayerState(num_players=num_players, seed=seed)
        self.roles = random.sample(ROLES, k=num_players)  # by player
        self.state.reset(game_state={"said": {}}, player_prompt_function=self._rules)
        self._pass_on()

    def _rules(self, player_id: int, game_state: dict[str, Any]) -> str:
        return f"You are Player {player_id}, the {self.roles[player_id]}. Say [0], [1], [2] or [3]."

    def _pass_on(self) -> None:
        order = [seating(self)[seat] for seat in (0, 2, 1, 3)]
        self.state.manually_set_current_player_id(order[len(self.state.game_state["said"])])

    def step(self, action: str) -> tuple[bool, dict]:
        number, said = self.state.current_player_id, self.state.game_state["said"]
        self.state.add_observation(action, ta.ObservationType.PLAYER_ACTION, from_id=number)
        if re.fullmatch(r"\[[0-3]\]", action) is None:
            self.state.set_invalid_move(reason="Say 0 to 3.")
            return self.state.step()
        said[self.roles[number]] = int(action[1])
        if len(said) == len(ROLES):
            self._end(said)
        else:
            self._pass_on()
        return self.state.step()

    def _end(self, said: dict[str, int]) -> None:
        red, blue = (said[f"{c} caller"] + said[f"{c} runner"] for c in ("red", "blue"))
        if red == blue:
            self.state.set_draw(reason="as many")
        else:
            won = TEAMS[red < blue]
            self.state.set_winners([seating(self)[seat] for seat in won], reason="more")


def seating(env: Relay) -> list[int]:
    """The numbers in the order of the roles."""
    return [env.roles.index(role) for role in ROLES]


def moves(env: Relay) -> list[str]:
    """0 to 3."""
    return [f"[{n}]" for n in range(4)]


def apart(env: Relay) -> list[float]:
    """Payoffs by player number, each the digit that its role said, so that teammates may differ."""
    said = env.state.game_state["said"]
    return [float(said[role]) for role in env.roles]


def twice(env: Relay) -> list[int]:
    """No seating: a number is there twice."""
    return [0, 0, 1, 2]


GAME = {
    **{"env": f"{__name__}:Relay", "name": "Relay", "seats": 4, "teams": [[0, 1], [2, 3]]},
    **{"seating": f"{__name__}:seating", "legal_moves": f"{__name__}:moves", "prompt": "answer"},
}

"""Its entry in a config."""
