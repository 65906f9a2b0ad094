"""Test Gymnasium's games as single-seat envs, move by move against Gymnasium."""

import random
from pathlib import Path
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="pip install -e '.[gymnasium]'")
import numpy as np  # noqa: E402

from tests.helpers.bridged import (  # noqa: E402
    assert_copy_goes_its_own_way,
    assert_ends_or_is_refused,
    assert_refused,
    assert_undisturbed,
    learned_from,
)
from tests.helpers.rows import every_row  # noqa: E402
from tests.helpers.tables import table  # noqa: E402
from unstable.config import GameConfig  # noqa: E402
from unstable.contrib.environments.readable import marked, readable  # noqa: E402
from unstable.games.check import settled  # noqa: E402
from unstable.games.game import Game  # noqa: E402
from unstable.games.services import can_be_solved  # noqa: E402
from unstable.types.seeds import derive_seed  # noqa: E402

PLAYED: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake-v1", {}),
    ("FrozenLake8x8-v1", {"is_slippery": False}),
    ("Taxi-v4", {}),
    ("Blackjack-v1", {"natural": True, "sab": False}),
    ("CartPole-v1", {}),
    ("MountainCar-v0", {"max_episode_steps": 30}),
    ("CliffWalking-v1", {"max_episode_steps": 50}),
]
RANDOM = ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CartPole-v1"]


def config_of(name: str, **changes: Any) -> GameConfig:
    chosen = {"env": f"gymnasium:{name}", "seats": 1, "max_turns": 10_000, **changes}
    return GameConfig.model_validate(chosen)


@pytest.mark.parametrize("name", RANDOM)
def test_seed_determines_game_and_games_are_independent(name: str) -> None:
    assert_undisturbed(config_of(name), range(4))


@pytest.mark.parametrize(("name", "args"), PLAYED)
def test_copy_is_independent(name: str, args: dict[str, Any]) -> None:
    assert_copy_goes_its_own_way(config_of(name, args=args))


@every_row(
    "env, changes, said",
    ("FrozenLak-v1", {}, "unknown Gymnasium game; did you mean 'FrozenLake"),
    ("no_such:Game-v0", {}, "cannot import no_such (No module named 'no_such')"),
    ("Pendulum-v1", {}, "unsupported action space Box; choose a game with a Dis"),
    ("LunarLander-v3", {}, "Box2D is not installed"),
    ("Taxi-v4", {"seats": 2}, "games.0.seats = 2: Taxi-v4 of Gymnasium has 1"),
    ("Blackjack-v1", {"args": {"decks": 4}}, "games.0.args = {'decks': 4}: "),
    ("Taxi-v4", {"args": {"text": "no_such:seen"}}, "cannot import no_such"),
)
def test_unplayable_config_is_rejected_in_one_line(
    env: str, changes: dict[str, Any], said: str
) -> None:
    assert_refused(said, **{"env": f"gymnasium:{env}", "seats": 1} | changes)


@pytest.mark.parametrize(("name", "args"), PLAYED)
def test_play_matches_gymnasium(name: str, args: dict[str, Any]) -> None:
    """Each board is the library's own rendering, or its numbers; moves and payoffs match too."""
    shows = name.startswith(("Frozen", "Taxi", "Cliff"))
    for seed in range(5):
        game, rng = Game(config_of(name, args=args), seed), random.Random(seed)
        env = gymnasium.make(name, render_mode="ansi" if shows else None, **args)
        observation, info = env.reset(seed=derive_seed(seed, "env") % 2**31)
        total, over = 0.0, False
        while not game.done:
            mask = info.get("action_mask", [1] * env.action_space.n)
            numbers = [*np.flatnonzero(mask).tolist()]
            names = game.legal_moves()
            assert names == [str(number) for number in numbers]
            said = marked(env.render()) if shows else readable(observation)
            assert game.observe().board.startswith(said.strip())
            place = rng.randrange(len(numbers))
            observation, reward, terminated, truncated, info = env.step(numbers[place])
            total, over = total + float(reward), terminated or truncated
            assert not game.step(names[place]).invalid
        assert over and game.payoffs == pytest.approx([total])
        assert not game.truncated and game.outcomes == game.payoffs


def test_blackjack_hides_dealers_second_card() -> None:
    for seed in range(20):
        game = Game(config_of("Blackjack-v1"), seed)
        env: Any = game.env
        hands = env.env.unwrapped
        own = sum(hands.player) + 10 * (1 in hands.player)
        shown = f"{own} {hands.dealer[0]} {int(1 in hands.player)}\nLegal actions: 0 | 1"
        assert game.observe().board == shown
        assert "Blackjack-v1 of Gymnasium. Actions: 0 stick, 1 hit." in game.observe().rules
        assert game.observe().brief.startswith("Blackjack-v1. Actions: 0 stick, 1 hit.")


def test_taxi_legal_moves_follow_its_mask() -> None:
    found = set[str]()
    for seed in range(20):
        game = Game(config_of("Taxi-v4"), seed)
        found.add(" ".join(game.legal_moves()))
        assert "blue(" in game.board and "\x1b" not in game.board
    assert len(found) > 1


def seen(env: Any, seat: int, observation: Any) -> str:
    return f"You are on field {observation} of {env.observation_space.n}."


def named(env: Any, seat: int, number: int) -> str:
    return f"[{'WSEN'[number]}]"


def test_custom_text_and_action_names_replace_defaults() -> None:
    args = {"text": f"{__name__}:seen", "actions": f"{__name__}:named", "rules": "Find G."}
    config = settled(config_of("FrozenLake-v1", args=args | {"is_slippery": False}))
    game = Game(config, 0)
    assert config.action_form == "brackets"
    assert game.observe().rules == "Find G. Answer with one of the legal actions."
    assert game.observe().brief == "Find G. Answer with an action."
    game.step("[E]")
    assert game.board == "You are on field 1 of 16."
    assert not can_be_solved(config)


class Corridor(gymnasium.Env):  # type: ignore[name-defined]
    """Three steps to the right; its observation is a dict, with a mask, and actions begin at 1."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Discrete(4),
            "walls": gymnasium.spaces.Box(0, 1, (2, 2)),
            "action_mask": gymnasium.spaces.MultiBinary(2),
        }
    )
    action_space = gymnasium.spaces.Discrete(2, start=1)

    def _seen(self) -> dict[str, Any]:
        walls = np.array([[0, 1], [1, 0.5]])
        return {"place": self.place, "walls": walls, "action_mask": [self.place > 0, 1]}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.place += {1: -1, 2: 1}[action]
        return self._seen(), -1.0, self.place == 3, False, {}


gymnasium.register("Corridor-v0", Corridor)


def test_custom_env_with_dict_and_offset_actions_plays() -> None:
    game = Game(config_of(f"{__name__}:Corridor-v0"), 0)
    assert game.legal_moves() == ["2"]
    assert game.observe().board == "place: 0\nwalls:\n0 1\n1 0.5\nLegal actions: 2"
    for move in ("2", "1", "2", "2", "2"):
        assert not game.done and move in game.legal_moves()
        game.step(move)
    assert game.done and game.payoffs == [-5.0]


async def test_run_learns_from_single_seat_game(tmp_path: Path) -> None:
    games = [{"env": "gymnasium:Blackjack-v1", "seats": 1, "prompt": "compact"}]
    await learned_from(tmp_path, games=games)


def ids() -> list[str]:
    return [full for full in gymnasium.registry if full != "Corridor-v0"]


REFUSED = (
    *("with a Discrete action space", "is not installed", "No module named", "too many numbers"),
    *("have been moved to the gymnasium-robotics project", 'run `pip install "shimmy'),
)


CORE = {
    "Taxi-v4": "discrete observations, a mask of actions",
    "FrozenLake-v1": "chance",
    "Blackjack-v1": "a tuple of observations, chance",
    "CartPole-v1": "numbers as observations",
    "Pendulum-v1": "rejected: continuous actions",
    "CarRacing-v3": "rejected: a missing package",
    "Ant-v2": "rejected: moved to another package",
    "GymV26Environment-v0": "rejected: needs Shimmy",
}
"""One game per feature and per reason for rejection."""


@pytest.mark.parametrize("name", table("gymnasium", ids(), CORE))
def test_every_game_plays_or_is_rejected_in_one_line(name: str) -> None:
    limit = {} if "Blackjack" in name else {"max_episode_steps": 200}
    assert_ends_or_is_refused(config_of(name, args=limit), REFUSED)
