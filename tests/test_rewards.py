"""Reward terms add up per turn, each kept raw and weighted."""

import pytest

from tests.builders import game
from unstable.config import ConfigError, RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import GameResult, Reward, Turn


def first_turn_bonus(result: GameResult, turn: Turn, size: float = 1.0) -> float | None:
    return size if turn.index == 0 else None


def test_terms_are_kept_raw_and_weighted_and_add_up() -> None:
    rewards = Rewards(
        [
            RewardConfig(term="outcome", weight=2.0),
            RewardConfig(term="format", weight=0.5),
            RewardConfig(term="invalid_move", weight=-1.0),
            RewardConfig(term="length", weight=-0.25),
        ]
    )
    result = game(outcomes=(-1.0, 0.0), turns=3, forfeit=0)
    (trajectory,) = rewards.trajectories(result)
    legal, refused = trajectory.samples
    assert legal.rewards == {
        "outcome": Reward(-1.0, -2.0),
        "format": Reward(1.0, 0.5),
        "invalid_move": Reward(0.0, 0.0),
        "length": Reward(2.0, -0.5),
    }
    assert legal.reward == -2.0
    assert refused.reward == -3.0
    assert (trajectory.outcome, trajectory.forfeit) == (-1.0, True)


def test_a_term_of_the_users_may_leave_a_turn_out() -> None:
    term = f"{__name__}:first_turn_bonus"
    rewards = Rewards([RewardConfig(term=term, weight=3.0, args={"size": 2.0})])
    (trajectory,) = rewards.trajectories(game())
    assert [sample.rewards for sample in trajectory.samples] == [{term: Reward(2.0, 6.0)}, {}]
    assert [sample.reward for sample in trajectory.samples] == [6.0, 0]


def test_only_trained_seats_give_trajectories() -> None:
    rewards = Rewards([RewardConfig()])
    assert len(rewards.trajectories(game(("policy@1", "policy@1")))) == 2
    assert len(rewards.trajectories(game(("policy@1", "policy@0")))) == 1
    assert rewards.trajectories(game(("random", "policy@0"), turns=1)) == []


def test_wrong_arguments_and_values_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^buffer.rewards.0.term = 'outcome' with args = .*'foo'"
    ):
        Rewards([RewardConfig(term="outcome", args={"foo": 1})])
    with pytest.raises(ConfigError, match="not callable"):
        Rewards([RewardConfig(term=f"{__name__}:__name__")])
    with pytest.raises(ValueError, match="reward term outcome returned nan"):
        Rewards([RewardConfig()]).trajectories(game(outcomes=(float("nan"), 0.0)))
    with pytest.raises(ValueError, match=r"returned 10.0, of weight 1e\+308"):
        Rewards([RewardConfig(weight=1e308)]).trajectories(game(outcomes=(10.0, 0.0)))


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("outcom", "did you mean 'outcome'?"),
        ("no_such_module:f", "cannot import no_such_module"),
        (f"{__name__}:first_turn", "did you mean 'first_turn_bonus'?"),
    ],
)
def test_a_wrong_term_is_refused_in_one_line(term: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"^buffer.rewards.0.term = ") as error:
        Rewards([RewardConfig(term=term)])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
