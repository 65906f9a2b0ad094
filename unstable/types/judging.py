"""Measurements of a version: ratings, evaluation scores, exploitability and alarms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.types.metrics import EvalKey, ExploitKey, sampling_mode
from unstable.types.players import PlayerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A player's TrueSkill rating in the registry: its skill is estimated as mu +- sigma."""

    player: PlayerId
    mu: float
    sigma: float
    games: int
    wins: int
    draws: int
    losses: int
    forfeits: int  # losses by invalid moves


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalScore:
    """Result of one version against one opponent in one env."""

    version: int
    env: str
    opponent: str
    temperature: float  # sampling temperature of the version
    games: int
    distinct: int  # number of distinct games
    wins: int
    draws: int
    losses: int
    forfeits: int  # losses by the version's own invalid moves
    legal_moves: float  # share of the version's moves that the env accepted
    votes: int  # number of answers sampled per turn of the version
    agreement: float | None  # share of votes for the played action; None: one answer per turn
    score: float  # wins plus half the draws, per game
    low: float  # 95 % interval of score
    high: float
    gain: float | None = None  # mean difference to the first version's score in the same games
    gain_low: float | None = None  # 95 % interval of gain
    gain_high: float | None = None
    needed: int | None = None  # games to detect a difference of 0.05; None: games repeat
    payoff: float | None = None  # mean per game, in its unit; None: only won, drawn or lost
    payoff_low: float | None = None  # 95 % interval of payoff; None: too few deals, or all equal
    payoff_high: float | None = None
    payoff_gain: float | None = None  # mean difference to the first version's, in the same games
    payoff_gain_low: float | None = None  # 95 % interval of payoff_gain; None as for payoff_low
    payoff_gain_high: float | None = None

    @property
    def key(self) -> EvalKey:
        """Key of its metrics' names."""
        return EvalKey(self.env, self.opponent, sampling_mode(self.temperature))


Shares = Mapping[int, Sequence[float]]
"""Probabilities of the legal actions, by number of the decision in a small game."""


class LeastWon(NamedTuple):
    """The exact minimum that a policy wins from any member of a pool, in the game's payoffs.

    LeastWon(member=4, low=-0.31, high=-0.27, compared=8)
    """

    member: int
    low: float  # bound: illegal mass forfeits, or is spread over legal actions
    high: float
    compared: int  # number of members of the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploitability:
    """Exact distance of one version, in all seats of a small game, from an equilibrium.

    The unit is the game's payoffs. Answers that are not a legal action, the illegal mass, forfeit
    or are spread over legal ones: `low` and `high` bound the two, other fields assume the spread.
    """

    version: int
    env: str
    low: float  # NashConv / 2
    high: float
    values: tuple[float, ...]  # by seat, in self-play
    best: tuple[float, ...]  # by seat, of the best response to the version
    illegal_mass: float  # probability of an illegal action in a game of self-play
    information: float  # in self-play's moves, in nats (types/information.py)
    decisions: int  # number of information states
    prompts: int  # number of prompts for the decisions
    seconds: float
    samples: int = 0  # answers sampled per prompt to estimate the policy; 0: exact
    past: LeastWon | None = None  # against versions that were measured before

    @property
    def key(self) -> ExploitKey:
        """Key of its metrics' names."""
        return ExploitKey(self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A broken rule of the guard; `rule` is the name of its threshold in the config."""

    rule: str
    name: str  # name of the metric
    version: int  # version that raised the alarm
    figure: float
    threshold: float
    since: int  # version since which the rule is broken
