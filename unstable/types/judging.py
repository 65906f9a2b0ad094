"""How strong a version is found to be, and what is wrong with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.types.metrics import EvalKey, ExploitKey, sampling_mode
from unstable.types.players import PlayerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A player's place in the registry. TrueSkill: skill is believed to be mu +- sigma."""

    player: PlayerId
    mu: float
    sigma: float
    games: int
    wins: int
    draws: int
    losses: int
    forfeits: int  # of the losses, those by invalid moves


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalScore:
    """Result of one version against one opponent in one env."""

    version: int
    env: str
    opponent: str
    temperature: float  # the version's, in these games
    games: int
    distinct: int  # of these, with those that repeat another counted once
    wins: int
    draws: int
    losses: int
    forfeits: int  # of the losses, those by the version's own invalid moves
    legal_moves: float  # share of the version's moves that the env accepted
    votes: int  # answers sampled for each of the version's turns
    agreement: float | None  # share of them that named the action played; None: one answer a turn
    score: float  # wins plus half the draws, per game
    low: float  # 95 % interval of score
    high: float
    gain: float | None = None  # mean difference to the first version's score in the same games
    gain_low: float | None = None  # 95 % interval of gain
    gain_high: float | None = None
    needed: int | None = None  # games to see a difference of 0.05; None: they repeat one another
    payoff: float | None = None  # mean of a game, in its unit; None: it is won, drawn or lost
    payoff_low: float | None = None  # 95 % interval of payoff; None: too few deals, or all alike
    payoff_high: float | None = None
    payoff_gain: float | None = None  # mean difference to the first version's, in the same games
    payoff_gain_low: float | None = None  # 95 % interval of payoff_gain; None as above
    payoff_gain_high: float | None = None

    @property
    def key(self) -> EvalKey:
        """Key of its metrics' names."""
        return EvalKey(self.env, self.opponent, sampling_mode(self.temperature))


Shares = Mapping[int, Sequence[float]]
"""By a decision's number in a small game: the probability of each legal action."""


class LeastWon(NamedTuple):
    """The least that a policy wins from any of a pool, in the game's own pay-offs, exactly.

    LeastWon(member=4, low=-0.31, high=-0.27, compared=8)
    """

    member: int
    low: float  # illegal mass forfeits, or is spread: what comes of the two
    high: float
    compared: int  # members of the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploitability:
    """Exact distance of one version, in all seats of a small game, from an equilibrium.

    In the game's own pay-offs. Answers that are no legal action, the illegal mass, forfeit or are
    spread over the legal ones: `low` and `high` are what comes of the two, the rest is of the last.
    """

    version: int
    env: str
    low: float  # NashConv / 2
    high: float
    values: tuple[float, ...]  # by seat, against itself
    best: tuple[float, ...]  # by seat, of its best response against the version
    illegal_mass: float  # probability that a game against itself comes to an illegal action
    decisions: int  # what a seat to move can be shown
    prompts: int  # that ask for them, each scored once
    seconds: float
    samples: int = 0  # answers to each prompt that stand for the policy; 0: it is exact
    past: LeastWon | None = None  # from versions that were measured before

    @property
    def key(self) -> ExploitKey:
        """Key of its metrics' names."""
        return ExploitKey(self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A broken rule of the guard; its name is that of its threshold in the config."""

    rule: str
    name: str  # of the metric
    version: int  # that it was found at
    figure: float
    threshold: float
    since: int  # version
