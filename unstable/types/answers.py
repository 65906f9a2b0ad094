"""What an engine and a player answer, and what of it is trained on."""

from collections.abc import Iterable
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from unstable.types.figures import MOST, Count, Figure, TokenId
from unstable.types.players import PlayerId

FinishReason = Literal["stop", "length"]
TopLogprobs = list[list[tuple[int, float]]]
"""At each token, the ids that were the likeliest there and their log-probabilities, best first."""
_T = TypeVar("_T")


class Plain(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of values that files hold as they are, without fields that have their default."""


class Segment(Plain, frozen=True, kw_only=True, tag_field="kind", tag="inserted"):
    """Successive tokens of an answer: the model's own, which are scored, or inserted into it.

    Segment(token_ids=[58, 2]), Segment(token_ids=[7, 8, 9], scored=False)
    """

    token_ids: list[TokenId]
    scored: bool = True  # a tool's output or a judge's text is not: the model only reads it


class Completion(Segment, frozen=True, kw_only=True, tag="sampled"):
    """An engine's answer: what was sampled, and the log-probabilities of exactly that distribution.

    Completion(token_ids=[58, 2], logprobs=[-0.1, -0.05], finish_reason="stop", adapter="main@3")
    """

    # The stop token is among the token ids.
    logprobs: list[float]  # natural logarithm, after temperature, one per token id
    finish_reason: FinishReason
    adapter: str | None  # None: the base model
    top_logprobs: TopLogprobs | None = None  # of the same distribution; None: not asked for

    def problem(self) -> str | None:
        """Describe the first field that does not fit the others; None where all do."""
        likeliest = self.top_logprobs
        if len(self.logprobs) != len(self.token_ids):
            return "logprobs: not one a token"
        if likeliest is not None and len(likeliest) != len(self.token_ids):
            return "top_logprobs: not one a token"
        for logprob in chain(self.logprobs, (value for at in likeliest or () for _, value in at)):
            if not -MOST < logprob < 0.01:  # 0, but for rounding
                return f"logprobs: {logprob} is no log-probability"
        return None


class TokenSample(Plain, frozen=True, kw_only=True):
    """A prompt and an answer. The answer's scored tokens are trained on, all others are only read.

    TokenSample(prompt_ids=[1, 2, 3], segments=(Segment(token_ids=[58, 2]),))
    """

    prompt_ids: list[TokenId]
    segments: tuple[Segment, ...]  # none: only the prompt is read, as by a critic
    temperature: Figure = 1.0  # that the logits are divided by

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the answer."""
        return _joined(segment.token_ids for segment in self.segments)

    @property
    def scored_ids(self) -> list[int]:
        """Those that are scored."""
        return _joined(segment.token_ids for segment in self.segments if segment.scored)

    @property
    def num_scored(self) -> int:
        """Number of tokens that are scored."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.scored)

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return len(self.prompt_ids) + sum(len(segment.token_ids) for segment in self.segments)


class Move(NamedTuple):
    """A legal move as an answer, with the stop token. Move(token_ids=[58, 2], expert=0.5)"""

    token_ids: list[TokenId]
    expert: Figure | None = None  # how likely an expert makes it; None: nobody asked


class SampledTokens(TokenSample, frozen=True, kw_only=True):
    """Ids that a local model was given and that it sampled, never re-encoded text.

    What is scored are its completions. Where something was inserted between two of them, the
    prompt of the second is all that stands before it.
    """

    segments: tuple[Completion | Segment, ...]
    temperature: Figure  # without a default, which files would leave out
    version: Count | None  # of the policy that answered; None: no version of it
    prompt_cut: Count = 0  # tokens of old events left out of the prompt so that it fits
    moves: tuple[Move, ...] = ()  # the position's legal ones, where the run keeps them
    thought: Count = 0  # of the sampled tokens, how many are a thought, its closing tag included

    @property
    def completions(self) -> list[Completion]:
        """Sampled segments, in order."""
        return [segment for segment in self.segments if isinstance(segment, Completion)]

    def problem(self) -> str | None:
        """Describe the first field that does not fit the others; None where all do."""
        for place, segment in enumerate(self.segments):
            if isinstance(segment, Completion) and (problem := segment.problem()):
                return f"segments.{place}.{problem}"
        return None if self.completions else "segments: nothing sampled"

    def without_top_logprobs(self) -> "SampledTokens":
        """The same, with what was sampled alone."""
        if all(completion.top_logprobs is None for completion in self.completions):
            return self
        segments = [
            replace(segment, top_logprobs=None) if isinstance(segment, Completion) else segment
            for segment in self.segments
        ]
        return replace(self, segments=tuple(segments))

    @property
    def logprobs(self) -> list[float]:
        """One per scored token, of exactly the distribution that it was sampled from."""
        return _joined(completion.logprobs for completion in self.completions)

    def num_scored_of(self, count: int) -> int:
        """Count the sampled ones among the answer's first `count` tokens."""
        scored = begun = 0
        for segment in self.segments:
            size = len(segment.token_ids)
            scored += min(size, max(0, count - begun)) if segment.scored else 0
            begun += size
        return scored

    @property
    def has_inserted(self) -> bool:
        """Return whether something was inserted, as what ends a thought at its budget."""
        return not all(segment.scored for segment in self.segments)

    @property
    def move(self) -> int | None:
        """Index of the move among `moves` that was answered; None where it is none of them."""
        answer = self.token_ids
        return next((i for i, move in enumerate(self.moves) if move.token_ids == answer), None)

    @property
    def finish_reason(self) -> FinishReason:
        """Reason why the last completion ended."""
        return self.completions[-1].finish_reason


class Answer(Plain, frozen=True, kw_only=True):
    """A player's answer to an observation.

    Answer(observation="You are X ...", text="[4]", action="[4]")
    """

    observation: str  # as the player saw it
    text: str  # of a local model, its tokens as text
    action: str  # what the env and, through it, the other seats are given
    formatted: bool = True  # the parser found an action in the text
    sampled: SampledTokens | None = None  # None: no local model answered
    player: PlayerId | None = None  # who answered; None while it is the player of the seat
    cut_characters: Count = 0  # left out as too long
    votes: Count | None = None  # for the action, of those sampled; None: there was no vote


def _joined(parts: Iterable[list[_T]]) -> list[_T]:
    """The parts as one list; a single part is not copied."""
    lists = list(parts)
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
