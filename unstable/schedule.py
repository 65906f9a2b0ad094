"""The schedule: who plays what next. Draws games, opponents and seats from its own random state."""

import random
from collections.abc import Sequence
from typing import Any

from unstable.config import RunConfig
from unstable.seeds import derive_seed
from unstable.types import GameSpec, SeatSpec, policy_player


class Schedule:
    """An endless series of training games; the same seed gives the same series."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._random = random.Random(derive_seed(config.seed, "schedule"))
        self._next_game = 0
        self._next_group = 0

    def draw(self, current: int, past: Sequence[int]) -> GameSpec:
        """The next game for version `current`; opponents come from the config and from `past`.

        One kind of opponent (self, past, fixed) is drawn for a game, one opponent of that kind for
        each other seat. Against itself the policy is trained in every seat, else in one.
        """
        games = self._config.games
        game = self._random.choices(games, [game.weight for game in games])[0]
        kind = self._kind(past)
        policy = policy_player(current)
        if kind == "self":
            seats = [self._trained(policy) for _ in range(game.seats)]
        else:
            seats = [self._opponent(kind, past) for _ in range(game.seats - 1)]
            seats.insert(self._random.randrange(game.seats), self._trained(policy))
        spec = GameSpec(
            game_id=self._next_game,
            purpose="train",
            env=game.key,
            seed=derive_seed(self._config.seed, "game", self._next_game),
            seats=tuple(seats),
        )
        self._next_game += 1
        return spec

    def _kind(self, past: Sequence[int]) -> str:
        """self, past or fixed, by their shares; past has none before there is a past version."""
        draw = self._config.opponents.draw
        weights = {"self": draw.self, "past": draw.past if past else 0.0, "fixed": draw.fixed}
        if not any(weights.values()):
            return "self"
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _trained(self, policy: str) -> SeatSpec:
        group_id = self._next_group
        self._next_group += 1
        temperature = self._config.sampling.temperature
        return SeatSpec(player=policy, temperature=temperature, group_id=group_id)

    def _opponent(self, kind: str, past: Sequence[int]) -> SeatSpec:
        temperature = self._config.sampling.temperature
        if kind == "past":
            version = self._random.choice(past)
            return SeatSpec(player=policy_player(version), temperature=temperature)
        opponent = self._random.choice(self._config.opponents.fixed)
        own = getattr(opponent, "temperature", None)  # only models have one
        return SeatSpec(player=opponent.key, temperature=temperature if own is None else own)

    def state(self) -> dict[str, Any]:
        """Counters and random state, as JSON holds them."""
        version, numbers, gauss = self._random.getstate()
        return {
            "next_game": self._next_game,
            "next_group": self._next_group,
            "random": [version, list(numbers), gauss],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the series where `state` was taken."""
        self._next_game = state["next_game"]
        self._next_group = state["next_group"]
        version, numbers, gauss = state["random"]
        self._random.setstate((version, tuple(numbers), gauss))
