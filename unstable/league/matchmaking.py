"""Matchmaking: rules that weight past versions as opponents, and versions pinned in the pool.

A rule is a function that gives each past version a weight, from the ratings and payoffs of the
policy and of these versions; custom rules have the same form. Rules are evaluated when a version is
announced, and their mixture holds until the next announcement: this module draws nothing.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from unstable.config import ConfigError, OpponentsConfig, shown
from unstable.config.plugins import check_call, described, faults_to, target_or
from unstable.league.skills import ENVIRONMENT
from unstable.types import PlayerId

PRIOR_GAMES, PRIOR_SCORE = 1.0, 0.5
"""Games and score that a payoff starts with: Jeffreys' prior of a score."""
BOUND = 3.0
"""Standard deviations between a rating's mean and its lower bound, as TrueSkill ranks."""
GRID = 2048
"""Number of points at which `thompson` evaluates its integral."""

Floats = NDArray[np.float64]
Weights = Sequence[float]


class VersionStats(NamedTuple):
    """Statistics of a version: VersionStats(PlayerId("main", 3), 27.1, 1.2, won=5.5, games=9.0)

    `won` is the number of the current policy's wins in its `games` against this version, with a
    draw as 0.5; both decay from version to version (`ratings.PAYOFF_DECAY`).
    """

    player: PlayerId
    mu: float
    sigma: float
    won: float = 0.0
    games: float = 0.0

    @property
    def score(self) -> float:
        """Expected score of the current policy against this version, from 0 to 1."""
        return (PRIOR_GAMES * PRIOR_SCORE + self.won) / (PRIOR_GAMES + self.games)

    @property
    def low(self) -> float:
        """Lower bound of the rating."""
        return self.mu - BOUND * self.sigma


Probability = Annotated[float, Field(ge=0, le=1)]
Rule = Callable[[VersionStats, Sequence[VersionStats]], Weights]
"""Function of the policy and its past versions, the oldest first, that returns their weights."""


def uniform(policy: VersionStats, past: Sequence[VersionStats]) -> Weights:
    """Return equal weights: fictitious self-play over the pool."""
    return [1.0] * len(past)


def latest(policy: VersionStats, past: Sequence[VersionStats], *, newest: int = 1) -> Weights:
    """Return equal weights for the newest versions, `newest` of them, and 0 for others."""
    if type(newest) is not int or newest < 1:
        raise ValueError(f"newest = {newest!r}: must be an integer >= 1")
    first = len(past) - newest
    return [float(place >= first) for place in range(len(past))]


def pfsp(
    policy: VersionStats, past: Sequence[VersionStats], *, form: str = "hard", exponent: float = 1.0
) -> Weights:
    """Return the weights of prioritized fictitious self-play (Vinyals et al., 2019).

    With p the policy's expected score, `hard` is (1 - p)^exponent and `even` is (p (1 -
    p))^exponent, with an exponent of 1 the variance of a result. Raises `ValueError` for another
    form or a negative exponent. Source: doi:10.1038/s41586-019-1724-z.
    """
    if form not in ("hard", "even"):
        raise ValueError(f"form = {form!r}: unknown form; use hard or even")
    if isinstance(exponent, bool) or not exponent >= 0:
        raise ValueError(f"exponent = {exponent!r}: must be a number >= 0")
    return prioritized([each.score for each in past], form == "even", exponent)


def prioritized(scores: Sequence[float], even: bool, exponent: float) -> list[float]:
    """Return the weights of `pfsp`, the largest being 1, for expected scores inside (0, 1)."""
    p = np.array(scores)
    logs = np.log1p(-p) + (np.log(p) if even else 0.0)
    return np.exp(exponent * (logs - logs.max())).tolist()


def quality(policy: VersionStats, past: Sequence[VersionStats]) -> Weights:
    """Return TrueSkill's match quality: the probability of a draw, relative to a match of equals.

    See Herbrich, Minka and Graepel (2006, doi:10.7551/mitpress/7503.003.0076), equation 4.1.
    """
    noise = 2 * ENVIRONMENT.beta**2
    spread = noise + policy.sigma**2 + np.array([each.sigma**2 for each in past])
    gaps = policy.mu - np.array([each.mu for each in past])
    logs = np.log(noise / spread) / 2 - gaps**2 / (2 * spread)
    return np.exp(logs - logs.max()).tolist()


def thompson(policy: VersionStats, past: Sequence[VersionStats]) -> Weights:
    """Return the probability that each version is the one that the policy scores least against.

    Thompson sampling (Thompson, 1933, doi:10.1093/biomet/25.3-4.285) draws a score for each version
    from its Beta posterior and selects the version with the least. Probabilities of this selection
    are integrals over the scores, with x = sin^2(t), for which all densities are bounded.
    """
    angles = (np.arange(GRID) + 0.5) * (math.pi / 2 / GRID)
    won = np.array([[each.won] for each in past])
    lost = np.array([[each.games - each.won] for each in past])
    prior = np.array([PRIOR_GAMES * PRIOR_SCORE, PRIOR_GAMES * (1 - PRIOR_SCORE)])
    powers = 2 * (won + prior[0]) - 1, 2 * (lost + prior[1]) - 1
    logs = powers[0] * np.log(np.sin(angles)) + powers[1] * np.log(np.cos(angles))
    mass = np.exp(logs - logs.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    above = np.maximum(1 - mass.cumsum(axis=1) + mass / 2, 1e-300)  # P(the other score is higher)
    others = np.log(above).sum(axis=0) - np.log(above)
    return (mass * np.exp(others)).sum(axis=1).tolist()


BUILT_IN: dict[str, Callable[..., Weights]] = {
    "uniform": uniform,
    "latest": latest,
    "pfsp": pfsp,
    "quality": quality,
    "thompson": thompson,
}
TRIAL = [
    VersionStats(PlayerId.policy(version), 25.0 + version, 2.0, won=float(version), games=5.0)
    for version in range(4)
]
"""Versions with which a rule is tried before a run."""


class Matchmaker:
    """Mixture of a run's rules, and the versions that are pinned in its pool.

    Raises `ConfigError` if a rule cannot be loaded or called, or returns invalid weights.
    """

    def __init__(self, config: OpponentsConfig) -> None:
        self._is_uniform = all(each.rule == "uniform" for each in config.past)
        self._pinned = config.pinned
        self._rules = []  # weights, and rules that return probabilities
        for index, each in enumerate(config.past):
            field = f"opponents.past.{index}.rule"
            read = read_rule(BUILT_IN, each.rule, each.args, field, "policy, past", *TRIAL[:2])
            self._rules.append((each.weight, partial(_asked, *read)))
        for _, rule in self._rules:
            rule(TRIAL[-1], TRIAL[:-1])

    def pinned(self, versions: Sequence[VersionStats]) -> set[PlayerId]:
        """Return the versions, of these, that stay in the pool regardless of their age.

        `best` is the version with the highest lower bound of its rating, the newest one on a tie.
        """
        numbers = {each for each in self._pinned if each != "best"}
        stay = {each.player for each in versions if each.player.version in numbers}
        if "best" in self._pinned and versions:
            best = max(versions, key=lambda each: (each.low, each.player.version or 0))
            stay.add(best.player)
        return stay

    def probabilities(self, policy: VersionStats, past: Sequence[VersionStats]) -> list[float]:
        """Return the probability of each past version by the mixture; [] if rules are uniform."""
        if self._is_uniform or not past:
            return []
        total = sum(weight for weight, _ in self._rules)
        parts = [weight / total * rule(policy, past) for weight, rule in self._rules]
        return np.sum(parts, axis=0).tolist()


def read_rule(
    built_in: Mapping[str, Callable[..., Weights]],
    rule: str,
    args: Mapping[str, Any],
    field: str,
    of: str,
    *trial: object,
) -> tuple[str, Callable[..., Weights]]:
    """Return the start of messages about the rule that `field` of the config names, and the rule.

    Raises `ConfigError` if it cannot be called with `trial` and its args; `of` names the parameters
    in the message.
    """
    place = f"{field} = {shown(rule)}" + (f" with args = {shown(args)}" if args else "")
    function = target_or(built_in, rule, field, "rule or module:function")
    remedy = f"name a function that accepts ({of}) and the args"
    check_call(place, function, remedy, *trial, **args)
    return place, partial(function, **args)


def _asked(place: str, rule: Rule, policy: VersionStats, past: Sequence[VersionStats]) -> Floats:
    """Return a rule's weights as probabilities; raises `ConfigError` for invalid ones or all 0."""
    weights = rule_weights(place, partial(rule, policy, past), len(past), "past versions", least=1)
    return weights / weights.sum()


def rule_weights(
    place: str, rule: Callable[[], Any], count: int, kind: str, *, least: int = 0
) -> Floats:
    """Return the weights that a rule gives `count` things of a kind.

    Raises `ConfigError` that begins with `place` if the rule raises, does not return `count` finite
    weights from 0 on, or returns fewer than `least` weights above 0.
    """

    def refuse(error: BaseException) -> NoReturn:
        raise ConfigError(f"{place}: {described(error)}") from error

    with faults_to(refuse):
        weights = np.array(rule(), dtype=float)
    is_right = weights.shape == (count,) and (weights >= 0).all() and weights.sum() < np.inf
    if not is_right or np.count_nonzero(weights) < least:
        raise ConfigError(
            f"{place}: returned {shown(weights.tolist())} for {count} {kind}; return a weight >= 0 "
            f"for each{', not all 0' if least else ''}"
        )
    return weights


def check_probabilities(probabilities: Sequence[float], past: Sequence[str]) -> None:
    """Raise `ValueError` unless `probabilities` is empty or has one for each version, not all 0."""
    if probabilities and (len(probabilities) != len(past) or not any(probabilities)):
        raise ValueError("probabilities do not match the past versions")


Met = dict[str, tuple[int, float]]
"""Actual draws and draws expected by the rules, by name: {"main@3": (12, 10.5)}"""


class Frequencies:
    """Counts of draws by name, with the counts that the rules' probabilities predict."""

    def __init__(self) -> None:
        self._met: Met = {}
        self._drawn: Counter[str] = Counter()  # not in `_met` yet
        self._names: Sequence[str] = ()
        self._probabilities: Sequence[float] = ()

    def begin(self, names: Sequence[str], probabilities: Sequence[float]) -> None:
        """Count draws by these probabilities from now on; without any, all are equally likely."""
        self.take()
        self._names, self._probabilities = names, probabilities

    def add(self, name: str) -> None:
        """Count a draw."""
        self._drawn[name] += 1

    def take(self) -> Met:
        """Return all counts so far."""
        if total := self._drawn.total():
            probabilities = self._probabilities or [1 / len(self._names)] * len(self._names)
            for name, probability in zip(self._names, probabilities, strict=True):
                drawn, expected = self._met.get(name, (0, 0.0))
                self._met[name] = drawn + self._drawn[name], expected + total * probability
            self._drawn.clear()
        return dict(self._met)

    def restore(self, met: Met) -> None:
        """Continue from what `take` returned."""
        self._met = dict(met)
        self._drawn.clear()
