"""What crosses a wall between rooms: values, one word per thing.

game (one play of an env) > seat (a player's place in it) > turn (one observation, one action).
A trajectory is one seat's turns; a group is the trajectories whose advantages are computed
together; a sample is one turn as trained.
"""

import math
from dataclasses import dataclass, field
from statistics import mean
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length"]
Purpose = Literal["train", "eval"]

BASE = "base"
"""The player that is the base model without an adapter."""


def policy_player(version: int) -> str:
    """The player that is version `version` of the policy, and the immutable name of its adapter.

    >>> policy_player(12)
    'policy@12'
    """
    return f"policy@{version}"


def policy_version(player: str) -> int | None:
    """The version in a player's name, or None for a player that is no version of the policy.

    >>> policy_version("policy@12"), policy_version("random")
    (12, None)
    """
    name, _, version = player.partition("@")
    return int(version) if name == "policy" and version.isdigit() else None


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
class SeatSpec:
    """Who sits there. SeatSpec(player="policy@3", temperature=1.0, group_id=17)"""

    player: str
    temperature: float
    group_id: int | None = None  # None: this seat is not trained on
    group_size: int = 1  # trajectories in the group

    @property
    def trained(self) -> bool:
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


@dataclass(slots=True, kw_only=True)
class Turn:
    """One observation and one action of a seat. Token fields are empty unless a local model played.

    The ids are those that the engine was given and those that it sampled, never re-encoded text.
    """

    seat: int
    index: int  # 0-based place among the game's turns
    player: str
    version: int | None  # of the policy; None for everyone else
    observation: str
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason | None
    temperature: float
    text: str  # token_ids as text
    action: str  # what the env and, through it, the other seats were given
    formatted: bool  # the parser found an action in the text
    invalid: bool  # the env refused the action
    prompt_cut: int  # tokens of old events left out of the prompt so that it fits
    seconds: float  # until the player answered


@dataclass(slots=True, kw_only=True)
class GameResult:
    """A finished game. `outcomes` are the env's rewards by seat (or a forfeit's), unshaped."""

    spec: GameSpec
    turns: list[Turn]
    outcomes: list[float]
    forfeit: int | None  # the seat that forfeited by invalid moves
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

    def seat_turns(self, seat: int) -> list[Turn]:
        """The turns of one seat, in order."""
        return [turn for turn in self.turns if turn.seat == seat]

    def standing(self, seat: int) -> Literal["win", "draw", "loss"]:
        """How a seat did: a win has the best outcome, and somebody did worse.

        A forfeit is a loss, whatever it is worth. Alone, 1 is a win and anything above 0 a draw.
        """
        ranked = self.ranked_outcomes
        if seat == self.forfeit:
            return "loss"
        if len(ranked) == 1:
            return "win" if ranked[0] >= 1 else "draw" if ranked[0] > 0 else "loss"
        if ranked[seat] < max(ranked):
            return "loss"
        return "win" if min(ranked) < max(ranked) else "draw"

    @property
    def ranked_outcomes(self) -> list[float]:
        """Outcomes by seat for comparing only: who forfeited is last, whatever that is worth."""
        pairs = enumerate(self.outcomes)
        return [-math.inf if seat == self.forfeit else outcome for seat, outcome in pairs]

    @property
    def num_trained(self) -> int:
        """Number of turns that can be trained on, in all branches."""
        seats = self.spec.seats
        turns = [turn for game in self.trained for turn in game.own_turns]
        return sum(seats[turn.seat].trained for turn in turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFailure:
    """A game that raised: counted, told with its traceback, never trained on."""

    spec: GameSpec
    error: str  # one line
    traceback: str


class Reward(NamedTuple):
    """A reward term's value before and after its weight."""

    raw: float
    weighted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One turn as trained. `rewards` holds the turn's terms by name; they add up to `reward`."""

    game_id: int
    env: str
    seat: int
    turn: int  # Turn.index
    group_id: int
    version: int  # that sampled it
    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]  # of the behaviour policy, one per token id
    temperature: float
    finish_reason: FinishReason
    prompt_cut: int
    rewards: dict[str, Reward]
    outcome: float  # of the seat's game, unshaped
    forfeit: bool  # this seat forfeited

    @property
    def reward(self) -> float:
        return sum(reward.weighted for reward in self.rewards.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One seat's samples of one game, in order, all of one group."""

    samples: tuple[Sample, ...]

    @property
    def group_id(self) -> int:
        return self.samples[0].group_id

    @property
    def game_id(self) -> int:
        return self.samples[0].game_id

    @property
    def reward(self) -> float:
        """What groups compare: the mean over turns, as the outcome stands on every one of them.

        It is exact before it is rounded, so that equal rewards tie whatever their number.
        """
        return mean(sample.reward for sample in self.samples)

    @property
    def version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(sample.version for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole groups, oldest first, drawn for an update of version `version` into `version + 1`."""

    version: int
    samples: tuple[Sample, ...]

    def staleness(self, sample: Sample) -> int:
        """Versions between the one that sampled and the one that is updated."""
        return self.version - sample.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What the learner says of one update; `advantages` in the order of the batch's samples."""

    version: int  # that this update made
    metrics: dict[str, float | None]  # names that begin with learn/
    advantages: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A player's place in the registry. TrueSkill: skill is believed to be mu +- sigma."""

    player: str
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
    games: int
    wins: int
    draws: int
    losses: int
    forfeits: int  # of the losses, those by the version's own invalid moves
    legal_moves: float  # share of the version's moves that the env accepted
    score: float  # wins plus half the draws, per game
    low: float  # 95 % interval of score
    high: float
    gain: float | None = None  # mean difference to the first version's score in the same games
    gain_low: float | None = None  # 95 % interval of gain
    gain_high: float | None = None
