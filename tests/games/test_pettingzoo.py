"""Test PettingZoo's games as envs, move by move against PettingZoo."""

import random
import warnings
from pathlib import Path
from typing import Any

import pytest

pettingzoo = pytest.importorskip("pettingzoo", reason="pip install -e '.[pettingzoo]'")
import numpy as np  # noqa: E402
from gymnasium.spaces import Box, Discrete  # noqa: E402

from tests.helpers.bridged import (  # noqa: E402
    assert_copy_goes_its_own_way,
    assert_ends_or_is_refused,
    assert_refused,
    assert_undisturbed,
    learned_from,
    play,
)
from tests.helpers.rows import every_row  # noqa: E402
from tests.helpers.tables import table  # noqa: E402
from tests.helpers.trees import uniform  # noqa: E402
from unstable.config import GameConfig  # noqa: E402
from unstable.games.game import Game  # noqa: E402
from unstable.games.services import can_be_solved, is_zero_sum  # noqa: E402
from unstable.solving.best_response import assess  # noqa: E402
from unstable.solving.tree import grow  # noqa: E402
from unstable.types.seeds import derive_seed  # noqa: E402

ARCHERS = "knights_archers_zombies_v11"
PLAYED: list[tuple[str, int, dict[str, Any]]] = [
    ("tictactoe_v3", 2, {}),
    ("connect_four_v3", 2, {}),
    ("rps_v2", 2, {"max_cycles": 4}),
    ("leduc_holdem_v4", 2, {}),
    ("texas_holdem_v4", 2, {}),
    ("texas_holdem_no_limit_v6", 2, {}),
    ("go_v5", 2, {"board_size": 4}),
    (ARCHERS, 4, {"max_cycles": 60}),
]
IDS = {name: f"classic/{name}" for name, _, _ in PLAYED} | {ARCHERS: f"butterfly/{ARCHERS}"}


def config_of(name: str, seats: int = 2, **changes: Any) -> GameConfig:
    chosen = {"env": f"pettingzoo:{name}", "seats": seats, "max_turns": 10_000, **changes}
    return GameConfig.model_validate(chosen)


def library_play(name: str, args: dict[str, Any], seed: int) -> Any:
    """A game played as in PettingZoo's documentation: its turns and total rewards."""
    env: Any = Leaving()
    if name in IDS:
        env = pettingzoo.make("aec", IDS[name].replace("_v", "-v"), **args)
    env.reset(seed=derive_seed(seed, "env") % 2**31)
    rng, totals, turns = random.Random(seed), dict.fromkeys(env.possible_agents, 0.0), []
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        totals[agent] += reward
        if terminated or truncated:
            env.step(None)
            continue
        legal = [*range(env.action_space(agent).n)]
        if isinstance(observation, dict):
            legal = [*np.flatnonzero(observation["action_mask"]).tolist()]
        turns.append((env.possible_agents.index(agent), [str(number) for number in legal]))
        env.step(rng.choice(legal))
    return turns, [*totals.values()]


@pytest.mark.parametrize(("name", "seats", "args"), PLAYED)
def test_play_matches_pettingzoo(name: str, seats: int, args: dict[str, Any]) -> None:
    for seed in range(8):
        turns, totals = library_play(name, args, seed)
        own_turns, payoffs = play(Game(config_of(name, seats, args=args), seed), seed)
        assert [(seat, legal) for seat, legal, _ in own_turns] == turns
        assert payoffs == pytest.approx(totals)


@pytest.mark.parametrize("name", ["leduc_holdem_v4", "texas_holdem_v4"])
def test_seed_determines_game_and_games_are_independent(name: str) -> None:
    assert_undisturbed(config_of(name), range(6))


@pytest.mark.parametrize(("name", "seats", "args"), PLAYED)
def test_copy_is_independent(name: str, seats: int, args: dict[str, Any]) -> None:
    assert_copy_goes_its_own_way(config_of(name, seats, args=args))


@every_row(
    "env, changes, said",
    ("tictacto_v3", {}, "unknown PettingZoo game; did you mean 'tictac"),
    ("tictactoe_v2", {}, "did you mean 'tictactoe_v3'?"),
    ("tictactoe_v3", {"seats": 3}, "tictactoe_v3 of PettingZoo has 2 seats"),
    ("pong_v3", {}, "multi_agent_ale_py is not installed; install it"),
    ("cooperative_pong_v6", {}, "have too many numbers for a text; set games"),
    (f"{__name__}:continuous", {}, "unsupported action space Box; choose a g"),
    (f"{__name__}:nothing", {}, "returned int; return PettingZoo's AECEnv or"),
    (f"{__name__}:Zero", {}, f"{__name__} has no Zero; "),
    ("tictactoe_v3", {"args": {"size": 4}}, "games.0.args = {'size': 4}: "),
)
def test_unplayable_config_is_rejected_in_one_line(
    env: str, changes: dict[str, Any], said: str
) -> None:
    assert_refused(said, env=f"pettingzoo:{env}", **changes)


def test_seat_does_not_see_opponents_card() -> None:
    """Boards are equal in all deals in which the same seat moves first with the same card."""
    boards: dict[tuple[int, str], set[str]] = {}
    others: dict[tuple[int, str], set[str]] = {}
    for seed in range(60):
        game = Game(config_of("leduc_holdem_v4"), seed)
        env: Any = game.env
        hands = [player.hand.rank for player in env.env.unwrapped.env.game.players]
        key = game.seat, hands[game.seat]
        boards.setdefault(key, set()).add(game.observe().board)
        others.setdefault(key, set()).add(hands[1 - game.seat])
    assert all(len(seen) == 1 for seen in boards.values())
    assert any(len(hidden) > 1 for hidden in others.values())


def test_simultaneous_moves_are_hidden() -> None:
    seen = set()
    for move in range(3):
        game = Game(config_of("rps_v2"), 0)
        game.step(str(move))
        assert game.seat == 1
        seen.add(game.observe().board)
    assert len(seen) == 1


class Bids(pettingzoo.ParallelEnv):  # type: ignore[name-defined]
    """Two simultaneous bids of 0 to 3 per round; the higher bid is paid to its agent."""

    metadata = {"name": "bids"}
    render_mode = None
    possible_agents = ["a", "b"]

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds

    def observation_space(self, agent: str) -> Any:
        return Box(0, 3, (2,))

    def action_space(self, agent: str) -> Any:
        return Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.left = [*self.possible_agents], self.rounds
        return {agent: np.zeros(2) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        self.left -= 1
        bids = [actions[agent] for agent in self.possible_agents]
        pay = {each: float(actions[each]) if actions[each] == max(bids) else 0.0 for each in "ab"}
        over = dict.fromkeys("ab", self.left == 0)
        if not self.left:
            self.agents = []
        seen = {agent: np.array(bids) for agent in "ab"}
        return seen, pay, over, dict.fromkeys("ab", False), {agent: {} for agent in "ab"}


class Leaving(pettingzoo.AECEnv):  # type: ignore[name-defined]
    """Agent n leaves after n + 1 moves; each move pays 1 to its agent and 0.5 to all agents."""

    metadata = {"name": "leaving"}
    render_mode = None

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent: str) -> Any:
        return Discrete(9)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def observe(self, agent: str) -> int:
        return self.moves[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = [*self.possible_agents]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.moves = dict.fromkeys(self.agents, 0)
        self.agent_selection = "a"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {each: 0.5 + (each == agent) for each in self.agents}
        self.moves[agent] += 1
        self.terminations[agent] = self.moves[agent] > self.possible_agents.index(agent)
        self._accumulate_rewards()
        place = self.agents.index(agent)
        self.agent_selection = self.agents[(place + 1) % len(self.agents)]
        self._deads_step_first()


def test_agents_that_leave_early_get_library_payoffs() -> None:
    turns, totals = library_play("Leaving", {}, 0)
    own_turns, payoffs = play(Game(config_of(f"{__name__}:Leaving", 3), 0), 0)
    assert [seat for seat, _ in turns] == [0, 1, 2, 1, 2, 2]
    assert [(seat, legal) for seat, legal, _ in own_turns] == turns
    assert payoffs == totals and len(set(payoffs)) == 3


class Clearing(Leaving):
    """Pays the same, but clears `rewards` at the end of each step."""

    def step(self, action: Any) -> None:
        super().step(action)
        self._clear_rewards()


def test_cleared_rewards_are_read_from_last() -> None:
    _, totals = library_play("Leaving", {}, 0)
    _, payoffs = play(Game(config_of(f"{__name__}:Clearing", 3), 0), 0)
    assert payoffs == totals and any(totals)


def continuous() -> Any:
    env = Bids()
    env.action_space = lambda agent: Box(0, 1, (1,))  # type: ignore[method-assign]
    return env


def nothing() -> Any:
    return 3


def test_custom_parallel_env_is_played_sequentially() -> None:
    game = Game(config_of(f"{__name__}:Bids", args={"rounds": 3}), 0)
    for bid in ("3", "1", "2", "2", "0", "1"):
        assert not game.step(bid).invalid
    assert game.done and game.payoffs == [5.0, 3.0]


def seen(env: Any, seat: int, observation: Any) -> str:
    mine, theirs = observation["observation"][:, :, 0], observation["observation"][:, :, 1]
    marks = np.where(mine, "XO"[seat], np.where(theirs, "OX"[seat], "."))
    return "\n".join("".join(column) for column in marks.T)


def named(env: Any, seat: int, number: int) -> str:
    return f"{'abc'[number // 3]}{number % 3 + 1}"


def test_custom_text_and_action_names_replace_defaults() -> None:
    args = {"text": f"{__name__}:seen", "actions": f"{__name__}:named", "rules": "Three in a row."}
    game = Game(config_of("tictactoe_v3", args=args, prompt="compact"), 0)
    game.step("b2")
    game.step("a1")
    shown = game.observe()
    assert shown.board.startswith("O..\n.X.\n...\nLegal actions: a2 | a3 | b1 | b3")
    assert shown.rules.startswith("Three in a row. You are player 0.")
    assert shown.position == "P0 O.. ; .X. ; ...: a2 | a3 | b1 | b3 | c1 | c2 | c3"
    assert not can_be_solved(game.config)


def alike(env: Any, seat: int, number: int) -> str:
    return ["take", "take\n", ""][number]


def test_names_boards_and_masks_match_pettingzoo(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Game(config_of("rps_v2", args={"actions": f"{__name__}:alike"}), 0)
    assert game.legal_moves() == ["take #0", "take #1", "#2"]
    board = Game(config_of("chess_v6"), 0).observe().board
    assert board.startswith("r n b q k b n r\np p p p p p p p\n")
    game = Game(config_of("rps_v2"), 0)
    env: Any = game.env
    env.env.unwrapped.infos["player_0"] = {"action_mask": [1, 0, 1]}
    env._show()
    assert game.legal_moves() == ["0", "2"]


def test_invalid_action_is_rejected_with_notice() -> None:
    game = Game(config_of("tictactoe_v3", invalid_moves={"allowed": 1}), 0)
    game.step("4")
    before = game.observe()
    assert game.step("4").invalid
    after = game.observe()
    assert after.notice == "4 is no legal action." and after.board == before.board
    assert not game.step(" 5 ").invalid


def test_tic_tac_toe_exploitability_matches_open_spiel() -> None:
    pytest.importorskip("pyspiel", reason="open_spiel, the reference, is not installed")
    names = ("pettingzoo:tictactoe_v3", "open_spiel:tic_tac_toe")
    trees = (grow(GameConfig(env=env), 1_000_000) for env in names)
    found = [assess(tree, uniform(tree), forfeits=False) for tree in trees]

    assert found[0].values == pytest.approx(found[1].values, abs=1e-9)
    assert found[0].best == pytest.approx(found[1].best, abs=1e-9)
    assert not can_be_solved(config_of("connect_four_v3"))


def test_zero_sum_games_are_known() -> None:
    assert is_zero_sum(config_of("leduc_holdem_v4"))
    assert not is_zero_sum(config_of(f"{__name__}:Bids"))


async def test_run_learns_and_measures_exploitability(tmp_path: Path) -> None:
    games = [{"env": "pettingzoo:leduc_holdem_v4", "prompt": "compact", "payoff_scale": 7}]
    await learned_from(tmp_path, games=games)


def names() -> list[str]:
    return [full.rpartition("/")[2].replace("-v", "_v") for full in pettingzoo.aec_registry]


REFUSED = ("is not installed; install it", "depends on OpenSpiel via Shimmy", "too many numb")


CORE = {
    "tictactoe_v3": "alternating, every seat sees all",
    "rps_v2": "simultaneous",
    "texas_holdem_no_limit_v6": "chance, hidden",
    ARCHERS: "four seats, some of which leave",
    "pursuit_v5": "eight seats",
    "hanabi_v5": "rejected: needs Shimmy",
    "pong_v3": "rejected: a missing package",
    "pistonball_v6": "rejected: images",
}
"""One game per feature and per reason for rejection."""


@pytest.mark.parametrize("name", table("pettingzoo", names(), CORE))
def test_every_game_plays_or_is_rejected_in_one_line(name: str) -> None:
    warnings.simplefilter("ignore")
    seats = {ARCHERS: 4, "pursuit_v5": 8}.get(name, 2)
    assert_ends_or_is_refused(config_of(name, seats), REFUSED)
