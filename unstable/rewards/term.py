"""Reward terms of the config, prepared for calls."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from unstable.config import ORACLES, ConfigError, JudgeConfig, RewardConfig, TeacherOracle, shown
from unstable.config.plugins import check_call, target_or, time_limit
from unstable.rewards.built_in import BUILT_IN
from unstable.rewards.oracles.asking import Asking
from unstable.rewards.oracles.base import Oracle
from unstable.rewards.oracles.function import FunctionOracle
from unstable.rewards.oracles.llm import LLM
from unstable.rewards.oracles.reward_model import RewardModel
from unstable.rewards.oracles.teacher import LogprobTeacher
from unstable.types import GameResult, Reward, Turn
from unstable.types.figures import MOST


class Term(NamedTuple):
    """A reward term of the config, prepared for calls."""

    config: RewardConfig
    judge: JudgeConfig
    function: Callable[[GameResult, Turn | int], Any] | None  # None if `asking` is given
    judges: Literal["turn", "seat"]
    asking: Asking | None  # None unless the term waits

    @property
    def is_users(self) -> bool:
        """True if the term is a plain function of the user."""
        return self.asking is None and self.config.term not in BUILT_IN

    def value(self, game: GameResult, judged: Turn | int) -> float | None:
        """Return the value of a plain term; raises `TimeoutError` after the judge's time limit."""
        assert self.function is not None, "`asking` evaluates a term that waits"
        name, timeout = self.config.key, self.judge.timeout
        if self.config.term in BUILT_IN:
            return self.function(game, judged)
        with time_limit(timeout, f"reward term {name} exceeded timeout = {timeout:g} s"):
            return self.function(game, judged)

    def reward(self, given: Any) -> Reward:
        """Weight a value, which may be a scalar of numpy or torch.

        Raises `ValueError` if it is not a number or exceeds the range that files hold.
        """
        name, weight = self.config.key, self.config.weight
        try:
            raw = math.nan if isinstance(given, str | bytes) else float(given)
        except (TypeError, ValueError, RuntimeError):
            raw = math.nan
        if not max(abs(raw), abs(weight * raw)) < MOST:
            said = f"{shown(given)} ({type(given).__name__})"
            raise ValueError(f"reward term {name}: invalid value {said} with weight {weight:g}")
        return Reward(raw=raw, weighted=weight * raw)


KINDS: dict[str, Callable[[str, str, Any], Oracle]] = {
    "llm": LLM,
    "reward_model": RewardModel,
    "teacher": LogprobTeacher,
}
"""Oracle class of each kind of judge, functions excluded."""


def read_term(
    reward: RewardConfig,
    judges: Mapping[str, JudgeConfig],
    field: str,
    among: int,
    cache: Callable[[str], Path] | None,
) -> Term:
    """Return the term that `field` names; raises `ConfigError` if it is invalid."""
    judge, named = reward.judge_in(judges), reward.term in judges
    place = f"judges.{reward.term}" if named else field
    if named:
        _check_named(reward, judge, field)
    path = None
    if judge.cache == "run" and cache is not None:
        path = cache(reward.key)
    elif judge.cache not in ("auto", "none", "memory", "run"):
        path = Path(judge.cache).expanduser()
    asking = partial(Asking, judge, at_once=max(1, judge.at_once // among), cache=path)
    if named and judge.oracle is not None:
        oracle = KINDS[judge.kind](reward.key, place, judge.oracle)
        is_turn = reward.judged == "turn" or isinstance(judge.oracle, TeacherOracle)
        return Term(reward, judge, None, "turn" if is_turn else "seat", asking(oracle))
    if named:
        function: Any = target_or(ORACLES, judge.kind, f"{place}.kind", "kind of judge")
    else:
        function = target_or({**BUILT_IN, **judges}, reward.term, field, "reward term")
    called = f"{place}.kind" if named else field
    check_call(
        f"{called} = {shown(judge.kind)} with args = {shown(judge.args)}",
        function,
        "name a function that takes (result, turn) or (result, seat) and the args",
        "result",
        "turn",
        **judge.args,
    )
    second = "".join(list(inspect.signature(function).parameters)[1:2])
    judges_of: Literal["turn", "seat"] = "seat" if second in ("seat", "seats") else "turn"
    if reward.judged not in ("auto", judges_of):
        raise ConfigError(
            f"{field.removesuffix('term')}judged = {reward.judged!r}: conflicts with the function, "
            "whose second argument decides; leave it out"
        )
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        _check_plain(judge, place)
        return Term(reward, judge, partial(function, **judge.args), judges_of, None)
    together = second in ("turns", "seats")
    kept = judge.cache not in ("auto", "none")
    own = FunctionOracle(reward.key, place, function, judge.args, together=together, kept=kept)
    return Term(reward, judge, None, judges_of, asking(own))


def _check_plain(judge: JudgeConfig, place: str) -> None:
    """Raise `ConfigError` for judge settings that do not apply to a function that does not wait."""
    for name in ("on_failure", "retries", "cache"):
        if getattr(judge, name) != JudgeConfig.model_fields[name].default:
            raise ConfigError(
                f"{place}.{name} = {getattr(judge, name)!r}: unsupported for {judge.kind}, which "
                "is not async; make it an async function, or leave this out"
            )


def _check_named(reward: RewardConfig, judge: JudgeConfig, field: str) -> None:
    """Raise `ConfigError` if a term's settings contradict the judge of its name."""
    place, entry = f"judges.{reward.term}", field.removesuffix("term")
    if reward.term in BUILT_IN:
        raise ConfigError(f"{place}: conflicts with the built-in reward term; rename the judge")
    if reward.args:
        raise ConfigError(
            f"{entry}args = {shown(reward.args)}: unsupported for a judge; set {place}.args"
        )
    if reward.judged == "turn" and getattr(judge.oracle, "mode", None) == "pairwise":
        raise ConfigError(
            f"{field} = {reward.term!r} judges turns, but {place}.args.mode = 'pairwise' compares "
            "trajectories; set the mode to absolute, or name another judge"
        )
    if reward.judged == "seat" and isinstance(judge.oracle, TeacherOracle):
        raise ConfigError(f"{entry}judged = 'seat': a teacher judges turns only; leave it out")
