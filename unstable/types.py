"""What crosses a wall between rooms: values, one word per thing.

game (one play of an env) > seat (a player's place in it) > turn (one observation, one action).
A trajectory is one seat's turns; a group is the trajectories whose advantages are computed
together; a sample is one turn as trained.
"""

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length"]
Purpose = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class PlayerId:
    """Who sits at a seat: a version of the policy, or a player that never changes.

    PlayerId("policy", 12), PlayerId("random"), PlayerId("openai:some/model"), PlayerId("base").
    """

    label: str
    version: int | None = None  # of the policy; None for everyone else

    @classmethod
    def policy(cls, version: int) -> "PlayerId":
        """Version `version` of the policy."""
        return cls("policy", version)

    @classmethod
    def parse(cls, name: str) -> "PlayerId":
        """The player that files call `name`.

        >>> PlayerId.parse("policy@12").version, PlayerId.parse("random").version
        (12, None)
        """
        label, _, version = name.partition("@")
        is_policy = label == "policy" and version.isdecimal() and version == str(int(version))
        return cls.policy(int(version)) if is_policy else cls(name)

    @property
    def name(self) -> str:
        """As files and tables have it; of a version, also the immutable name of its adapter.

        >>> PlayerId.policy(12).name
        'policy@12'
        """
        return self.label if self.version is None else f"{self.label}@{self.version}"

    def __str__(self) -> str:
        return self.name


BASE = PlayerId("base")
"""The player that is the base model without an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA weights under a name never used for other weights: `policy@3`, `checkpoint:warm`.

    `weights` is a safetensors file with PEFT's keys, `config` PEFT's `adapter_config.json`.
    """

    name: str
    weights: bytes = field(repr=False)
    config: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's answer: what was sampled, and the log-probabilities of exactly that distribution.

    Completion(token_ids=[58, 2], logprobs=[-0.1, -0.05], finish_reason="stop", adapter="policy@3")
    """

    token_ids: list[int]  # the stop token included
    logprobs: list[float]  # natural logarithm, after temperature, one per token id
    finish_reason: FinishReason
    adapter: str | None  # None: the base model


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """What a model is scored on: the tokens of the answer count, those of the prompt do not.

    TokenSample(prompt_ids=[1, 2, 3], token_ids=[58, 2])
    """

    prompt_ids: list[int]
    token_ids: list[int]  # none: only the prompt is read, as by a critic
    temperature: float = 1.0  # that the logits are divided by

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt_ids) + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens(TokenSample):
    """What a local model was given and what it sampled: its own ids, never re-encoded text."""

    logprobs: list[float]  # of exactly the distribution that was sampled from, one per token id
    finish_reason: FinishReason
    version: int | None  # of the policy that answered; None: no version of it
    prompt_cut: int = 0  # tokens of old events left out of the prompt so that it fits


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSpec:
    """Who sits there. SeatSpec(player=PlayerId.policy(3), temperature=1.0, group_id=17)"""

    player: PlayerId
    temperature: float
    group_id: int | None = None  # None: this seat is not trained on
    group_size: int = 1  # trajectories in the group
    votes: int = (
        1  # answers that are sampled for each turn, of which the most frequent action counts
    )

    @property
    def trained(self) -> bool:
        """Whether the seat's turns are trained on."""
        return self.group_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSpec:
    """One game to be played, decided in full: two plays of it differ only by an engine's rounding.

    GameSpec(game_id=5, purpose="train", env="TicTacToe-v0", seed=90210, seats=(SeatSpec(...), ...))
    """

    game_id: int  # unique in training; an evaluation's game k is the same for every version
    purpose: Purpose
    env: str  # a GameConfig's key
    seed: int  # of the env's own random state; a group's games share it
    seats: tuple[SeatSpec, ...]
    member: int = 0  # place among its group's games, which are started one after another
    branches: int = 0  # continuations that it is forked into, with the ids that follow its own
    opening: int = 0  # first moves that `opener` makes, whoever's seat it is; never trained on
    opener: SeatSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the seat to move needs to know. The rules come first and stay, so that games share them.

    Observation(seat=1, rules="You are X ...", events=["Player 0 ..."], board="...", notice="")
    """

    seat: int
    rules: str
    events: list[str]  # oldest first; the first ones are left out when a prompt is too long
    board: str  # the last one
    notice: str  # why the seat's last move was refused, else empty
    brief: str = ""  # rules and request, short, the same in every turn; only for the compact style
    position: str = ""  # all that changes from turn to turn, as short as can be; only for it too


@dataclass(slots=True, kw_only=True)
class Turn:
    """One observation and one action of a seat."""

    seat: int
    index: int  # 0-based place among the game's turns
    player: PlayerId
    observation: str  # as the player saw it
    sampled: SampledTokens | None  # None: no local model answered
    text: str  # the answer; of a local model, its token_ids as text
    action: str  # what the env and, through it, the other seats were given
    formatted: bool  # the parser found an action in the text
    invalid: bool  # the env refused the action
    seconds: float  # until the player answered
    cut_characters: int = 0  # of what the seat was shown, answered or did, left out as too long
    votes: int | None = None  # for the action, of those that were sampled; None: there was no vote


Standing = Literal["win", "draw", "loss"]


def standing(own: float, all_scores: Sequence[float]) -> Standing:
    """How one of several scores did: a win is the best, if somebody did worse."""
    if own < max(all_scores):
        return "loss"
    return "win" if min(all_scores) < own else "draw"


@dataclass(slots=True, kw_only=True)
class GameResult:
    """A finished game.

    `payoffs` are what it was worth by seat, in the game's unit; `outcomes` are these over its scale
    (or a forfeit's), unshaped.
    """

    spec: GameSpec
    turns: list[Turn]
    payoffs: list[float]
    outcomes: list[float]
    forfeit: int | None  # the seat that forfeited by invalid moves
    raised: bool = False  # it forfeited by an action at which the env raised
    truncated: bool  # cut off by the step cap
    reason: str  # the env's last word on why the game ended
    seconds: float
    fork: int = 0  # of a branch: index of its first own turn
    branches: list["GameResult"] = field(default_factory=list)

    @property
    def games(self) -> list["GameResult"]:
        """The game and its branches."""
        return [self, *self.branches]

    @property
    def own_turns(self) -> list[Turn]:
        """The turns that were played for this game and not for one that it was forked from."""
        return self.turns[self.fork :]

    @property
    def trained(self) -> list["GameResult"]:
        """The games that are trained on: itself, or its branches.

        What was forked is not among them: it was played before the fork was drawn among its turns,
        so that games which end soon after are too many.
        """
        return self.branches if self.spec.branches else [self]

    @property
    def trained_turns(self) -> list[Turn]:
        """Own turns of trained seats, in order, without the opening's."""
        seats, own = self.spec.seats, self.own_turns
        return [t for t in own if t.index >= self.spec.opening and seats[t.seat].trained]

    @property
    def ended_in_opening(self) -> bool:
        """Whether it was over before any seat's own player had a turn."""
        return self.spec.opening > 0 and len(self.turns) <= self.spec.opening

    def seat_turns(self, seat: int) -> list[Turn]:
        """The turns of a seat's own player, in order: none of the opening."""
        return [t for t in self.turns if t.seat == seat and t.index >= self.spec.opening]

    def standing(self, seat: int) -> Standing:
        """How a seat did: a win has the best outcome, and somebody did worse.

        A forfeit is a loss, whatever it is worth. Alone, 1 is a win and anything above 0 a draw.
        """
        ranked = self.ranked_outcomes
        if seat == self.forfeit:
            return "loss"
        if len(ranked) == 1:
            return "win" if ranked[0] >= 1 else "draw" if ranked[0] > 0 else "loss"
        return standing(ranked[seat], ranked)

    @property
    def ranked_outcomes(self) -> list[float]:
        """Outcomes by seat for comparing only: who forfeited is last, whatever that is worth."""
        pairs = enumerate(self.outcomes)
        return [-math.inf if seat == self.forfeit else outcome for seat, outcome in pairs]

    @property
    def num_trained(self) -> int:
        """Number of turns that can be trained on, in all branches."""
        return sum(len(game.trained_turns) for game in self.trained)


class SpentError(Exception):
    """What an opponent may cost is spent: it plays no more. SpentError("openai:some", "why")"""

    def __init__(self, opponent: str, why: str) -> None:
        super().__init__(opponent, why)
        self.opponent = opponent

    def __str__(self) -> str:
        return self.args[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFailure:
    """A game that raised, or a reward term of it: counted, logged, never trained on."""

    spec: GameSpec
    error: str  # one line
    traceback: str
    spent: str | None = None  # the opponent that may cost no more, if that is why

    @classmethod
    def of(cls, spec: GameSpec, error: BaseException) -> "GameFailure":
        """The failure of a game that raised `error`."""
        line = " ".join(f"{type(error).__name__}: {error}".split())
        trace = "".join(traceback.format_exception(error))
        spent = error.opponent if isinstance(error, SpentError) else None
        return cls(spec=spec, error=line, traceback=trace, spent=spent)


class Reward(NamedTuple):
    """A reward term's value before and after its weight."""

    raw: float
    weighted: float


def _weighted(rewards: dict[str, Reward]) -> float:
    return sum(reward.weighted for reward in rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn as trained. `rewards` has the terms that judge it, which add up to `reward`.

    What judges the whole trajectory is the trajectory's.
    """

    turn: int  # Turn.index
    tokens: SampledTokens
    rewards: dict[str, Reward]

    @property
    def version(self) -> int:
        """The version of the policy that sampled it."""
        assert self.tokens.version is not None, "only the policy is trained"
        return self.tokens.version

    @property
    def reward(self) -> float:
        """The turn's weighted terms, added up."""
        return _weighted(self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One seat's samples of one game, in order. `rewards` holds the terms that judge it as a whole.

    Whatever its number of turns, such a term counts once, with its weight.
    """

    game_id: int
    env: str  # a GameConfig's key
    seat: int
    group_id: int
    outcome: float  # of the seat, unshaped
    forfeit: bool  # this seat forfeited
    samples: tuple[Sample, ...]
    rewards: dict[str, Reward] = field(default_factory=dict)

    @property
    def terminal_reward(self) -> float:
        """The weighted terms that judge the whole trajectory, added up."""
        return _weighted(self.rewards)

    @property
    def reward(self) -> float:
        """What groups compare: the terminal reward, and the mean of the turns' own.

        It is exact before it is rounded, so that equal rewards tie whatever their number.
        """
        terminal = self.terminal_reward
        return mean(sample.reward + terminal for sample in self.samples)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(sample.version for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories whose advantages are computed together, all of one `group_id`."""

    trajectories: tuple[Trajectory, ...]

    @property
    def num_samples(self) -> int:
        """Samples of all its trajectories."""
        return sum(len(trajectory.samples) for trajectory in self.trajectories)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(trajectory.version for trajectory in self.trajectories)

    @property
    def tied(self) -> bool:
        """Whether every trajectory earned the same: comparing them, nothing is learned."""
        return len({trajectory.reward for trajectory in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, oldest first, drawn for an update of version `version` into `version + 1`."""

    version: int
    groups: tuple[Group, ...]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those of all groups, in order."""
        return [trajectory for group in self.groups for trajectory in group.trajectories]

    @property
    def samples(self) -> list[Sample]:
        """Those of all trajectories, in order."""
        return [sample for trajectory in self.trajectories for sample in trajectory.samples]

    def staleness(self, sample: Sample) -> int:
        """Versions between the one that sampled and the one that is updated."""
        return self.version - sample.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What came of an update; `advantages` in the order of the batch's samples."""

    version: int  # that this update made
    metrics: dict[str, float | None]  # names that begin with learn/
    advantages: list[float]
    refusals: list[str] = field(default_factory=list)  # why, for each step that was not made


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
    """How one version did against one opponent in one env."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploitability:
    """How far one version, in all seats of a small game, is from an equilibrium, exactly.

    In the game's own pay-offs. Answers that are no legal action, its residual, forfeit or are
    spread over the legal ones: `low` and `high` are what comes of the two, the rest is of the last.
    """

    version: int
    env: str
    low: float  # NashConv / 2
    high: float
    values: tuple[float, ...]  # by seat, against itself
    best: tuple[float, ...]  # by seat, of its best response against the version
    residual: float  # chance that a game against itself comes to an answer that is no legal action
    decisions: int  # that were scored
    seconds: float
    samples: int = 0  # answers at each that stand for the policy; 0: it is exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """That a rule of the guard is broken; its name is that of its threshold in the config."""

    rule: str
    name: str  # of the metric
    version: int  # that it was found at
    figure: float
    threshold: float
    since: int  # version
