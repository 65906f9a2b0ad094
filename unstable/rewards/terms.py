"""Reward terms: what a turn earned, each kept raw and weighted.

A term is `term(result, turn, **args) -> float | None`; None means that it does not apply to the
turn. What comes after the sum (normalising, baselines, groups) is the learner's.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from unstable.config import ConfigError, RewardConfig, nearest, shown
from unstable.plugins import check_call, load_target
from unstable.types import GameResult, Reward, Sample, Trajectory, Turn

Term = Callable[[GameResult, Turn], float | None]


def outcome(result: GameResult, turn: Turn) -> float:
    """The seat's outcome of the game, the same for each of its turns."""
    return result.outcomes[turn.seat]


def action_format(result: GameResult, turn: Turn) -> float:
    """1 if the parser found an action in the answer, else 0."""
    return float(turn.formatted)


def invalid_move(result: GameResult, turn: Turn) -> float:
    """1 if the env refused the action, else 0; give it a negative weight."""
    return float(turn.invalid)


def length(result: GameResult, turn: Turn) -> float:
    """Number of sampled tokens; give it a small negative weight."""
    return float(len(turn.sampled.token_ids)) if turn.sampled else 0.0


BUILT_IN: dict[str, Callable[..., float | None]] = {
    "outcome": outcome,
    "format": action_format,
    "invalid_move": invalid_move,
    "length": length,
}


class Rewards:
    """The config's reward terms, applied to finished games."""

    def __init__(self, rewards: Sequence[RewardConfig]) -> None:
        """Raises `ConfigError` for an unknown term or a target that does not import."""
        self._terms: dict[str, tuple[Term, float]] = {}
        for index, reward in enumerate(rewards):
            field = f"buffer.rewards.{index}.term"
            if reward.term in self._terms:
                raise ConfigError(f"{field} = {reward.term!r} stands twice; add up the weights")
            if ":" in reward.term:
                function = load_target(reward.term, field)
            elif reward.term in BUILT_IN:
                function = BUILT_IN[reward.term]
            else:
                hint = nearest(reward.term, list(BUILT_IN))
                raise ConfigError(f"{field} = {reward.term!r} is no reward term; {hint}")
            check_call(
                f"{field} = {shown(reward.term)} with args = {shown(reward.args)}",
                function,
                "name a function that is called with (result, turn) and the args",
                "result",
                "turn",
                **reward.args,
            )
            self._terms[reward.term] = (partial(function, **reward.args), reward.weight)

    def trajectories(self, result: GameResult) -> list[Trajectory]:
        """One trajectory, with rewards, for each trained seat that had a turn after the opening.

        Of a game that was forked, for each of its branches, from the fork on: what is before it is
        the same in all of them.
        """
        return [
            self._trajectory(game, seat, turns)
            for game in result.trained
            for seat, spec in enumerate(game.spec.seats)
            if spec.trained and (turns := [t for t in game.trained_turns if t.seat == seat])
        ]

    def _trajectory(self, game: GameResult, seat: int, turns: Sequence[Turn]) -> Trajectory:
        group_id = game.spec.seats[seat].group_id
        assert group_id is not None
        return Trajectory(
            game_id=game.spec.game_id,
            env=game.spec.env,
            seat=seat,
            group_id=group_id,
            outcome=game.outcomes[seat],
            forfeit=game.forfeit == seat,
            samples=tuple(self._sample(game, turn) for turn in turns),
        )

    def _sample(self, game: GameResult, turn: Turn) -> Sample:
        assert turn.sampled is not None
        rewards = {}
        for name, (term, weight) in self._terms.items():
            raw = term(game, turn)
            if raw is not None:
                if not math.isfinite(weight * raw):
                    raise ValueError(f"reward term {name} returned {raw}, of weight {weight}")
                rewards[name] = Reward(raw=raw, weighted=weight * raw)
        return Sample(turn=turn.index, tokens=turn.sampled, rewards=rewards)
