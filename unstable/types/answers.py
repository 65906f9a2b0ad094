"""What an engine and a player answer, and what of it is trained on."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from unstable.types.players import PlayerId

FinishReason = Literal["stop", "length"]
TopLogprobs = list[list[tuple[int, float]]]
"""At each token, the ids that were the likeliest there and their log-probabilities, best first."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Successive tokens of an answer: the model's own, which are scored, or inserted into it.

    Segment(token_ids=[58, 2]), Segment(token_ids=[7, 8, 9], scored=False)
    """

    token_ids: list[int]
    scored: bool = True  # a tool's output or a judge's text is not: the model only reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Segment):
    """An engine's answer: what was sampled, and the log-probabilities of exactly that distribution.

    Completion(token_ids=[58, 2], logprobs=[-0.1, -0.05], finish_reason="stop", adapter="main@3")
    """

    # The stop token is among the token ids.
    logprobs: list[float]  # natural logarithm, after temperature, one per token id
    finish_reason: FinishReason
    adapter: str | None  # None: the base model
    top_logprobs: TopLogprobs | None = None  # of the same distribution; None: not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """A prompt and an answer. The answer's scored tokens are trained on, all others are only read.

    TokenSample(prompt_ids=[1, 2, 3], segments=(Segment(token_ids=[58, 2]),))
    """

    prompt_ids: list[int]
    segments: tuple[Segment, ...]  # none: only the prompt is read, as by a critic
    temperature: float = 1.0  # that the logits are divided by

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

    token_ids: list[int]
    expert: float | None = None  # how likely an expert makes it; None: nobody asked


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens(TokenSample):
    """What a local model was given and what it sampled: its own ids, never re-encoded text.

    What is scored are its completions. Where something was inserted between two of them, the
    prompt of the second is all that stands before it.
    """

    version: int | None  # of the policy that answered; None: no version of it
    prompt_cut: int = 0  # tokens of old events left out of the prompt so that it fits
    moves: tuple[Move, ...] = ()  # the position's legal ones, where the run keeps them
    thought: int = 0  # of the sampled tokens, how many are a thought, its closing tag included

    @property
    def completions(self) -> list[Completion]:
        """What was sampled, in order."""
        return [segment for segment in self.segments if isinstance(segment, Completion)]

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
        """How many of the answer's first `count` tokens were sampled."""
        scored = begun = 0
        for segment in self.segments:
            size = len(segment.token_ids)
            scored += min(size, max(0, count - begun)) if segment.scored else 0
            begun += size
        return scored

    @property
    def has_inserted(self) -> bool:
        """Whether something was inserted: today that is what ends a thought at its budget."""
        return not all(segment.scored for segment in self.segments)

    @property
    def move(self) -> int | None:
        """Index of the move among `moves` that was answered; None where it is none of them."""
        answer = self.token_ids
        return next((i for i, move in enumerate(self.moves) if move.token_ids == answer), None)

    @property
    def finish_reason(self) -> FinishReason:
        """Why the last completion ended."""
        return self.completions[-1].finish_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a player did with an observation.

    Answer(observation="You are X ...", text="[4]", action="[4]")
    """

    observation: str  # as the player saw it
    text: str  # of a local model, its tokens as text
    action: str  # what the env and, through it, the other seats are given
    formatted: bool = True  # the parser found an action in the text
    sampled: SampledTokens | None = None  # None: no local model answered
    player: PlayerId | None = None  # who answered; None while it is the player of the seat
    cut_characters: int = 0  # left out as too long
    votes: int | None = None  # for the action, of those that were sampled; None: there was no vote


def _joined(parts: Iterable[list[_T]]) -> list[_T]:
    """The parts as one list; a single part is not copied."""
    lists = list(parts)
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
