"""Answers of engines and players, and the tokens of them that are trained on."""

from collections.abc import Iterable
from itertools import chain
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from unstable.types.figures import MOST, Count, Figure, TokenId
from unstable.types.players import PlayerId

FinishReason = Literal["stop", "length"]
TopLogprobs = list[list[tuple[int, float]]]
"""Per token, the likeliest ids at its position and their log-probabilities, likeliest first."""
_T = TypeVar("_T")


class Plain(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of values that files store directly; fields with their default value are omitted."""


class Segment(Plain, frozen=True, kw_only=True, tag_field="kind", tag="inserted"):
    """Consecutive tokens of an answer: sampled by the model and scored, or inserted.

    Segment(token_ids=[58, 2]), Segment(token_ids=[7, 8, 9], scored=False)
    """

    token_ids: list[TokenId]
    scored: bool = True  # False: inserted text, such as a tool's output


class Completion(Segment, frozen=True, kw_only=True, tag="sampled"):
    """An engine's answer: sampled tokens with their log-probabilities when they were sampled.

    Completion(token_ids=[58, 2], logprobs=[-0.1, -0.05], finish_reason="stop", adapter="main@3")
    """

    # The stop token is among the token ids.
    logprobs: list[float]  # natural logarithm, after temperature, one per token id
    finish_reason: FinishReason
    adapter: str | None  # None: the base model
    top_logprobs: TopLogprobs | None = None  # under the same distribution; None: not requested

    def problem(self) -> str | None:
        """Return a description of the first inconsistent field; None if there is none."""
        likeliest = self.top_logprobs
        if len(self.logprobs) != len(self.token_ids):
            return "logprobs: not one per token"
        if likeliest is not None and len(likeliest) != len(self.token_ids):
            return "top_logprobs: not one per token"
        for logprob in chain(self.logprobs, (value for at in likeliest or () for _, value in at)):
            if not -MOST < logprob < 0.01:  # 0, up to rounding
                return f"logprobs: {logprob} is not a log-probability"
        return None


class TokenSample(Plain, frozen=True, kw_only=True):
    """A prompt and an answer; only the answer's scored tokens are trained on.

    TokenSample(prompt_ids=[1, 2, 3], segments=(Segment(token_ids=[58, 2]),))
    """

    prompt_ids: list[TokenId]
    segments: tuple[Segment, ...]  # empty: only a prompt, as for a critic
    temperature: Figure = 1.0  # divisor of the logits

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the answer."""
        return _joined(segment.token_ids for segment in self.segments)

    @property
    def scored_ids(self) -> list[int]:
        """Tokens of the answer that are scored."""
        return _joined(segment.token_ids for segment in self.segments if segment.scored)

    @property
    def num_scored(self) -> int:
        """Number of the answer's tokens that are scored."""
        return sum(len(segment.token_ids) for segment in self.segments if segment.scored)

    @property
    def length(self) -> int:
        """Number of tokens of prompt and answer."""
        return len(self.prompt_ids) + sum(len(segment.token_ids) for segment in self.segments)


class Move(NamedTuple):
    """A legal move as an answer, with the stop token. Move(token_ids=[58, 2], expert=0.5)"""

    token_ids: list[TokenId]
    expert: Figure | None = None  # probability of the move under an expert; None: not queried


class SampledTokens(TokenSample, frozen=True, kw_only=True):
    """Token ids of a local model's prompt and answer as the engine had them, never re-encoded text.

    The completions are scored. If tokens were inserted between two completions, the prompt of the
    second consists of all tokens before it.
    """

    segments: tuple[Completion | Segment, ...]
    temperature: Figure  # no default, since files omit defaults
    version: Count | None  # version of the policy that answered; None: another model
    prompt_cut: Count = 0  # tokens of old events omitted to fit the prompt
    moves: tuple[Move, ...] = ()  # legal moves of the position, if the run records them
    state: list[TokenId] = []  # whole state of the game, for a critic; never part of a prompt
    thought: Count = 0  # number of sampled tokens in a thought, including its closing tag

    @property
    def completions(self) -> list[Completion]:
        """Sampled segments, in order."""
        return [segment for segment in self.segments if isinstance(segment, Completion)]

    def problem(self) -> str | None:
        """Return a description of the first inconsistent field; None if there is none."""
        for place, segment in enumerate(self.segments):
            if isinstance(segment, Completion) and (problem := segment.problem()):
                return f"segments.{place}.{problem}"
        return None if self.completions else "segments: nothing sampled"

    def without_top_logprobs(self) -> "SampledTokens":
        """Return a copy without `top_logprobs`."""
        if all(completion.top_logprobs is None for completion in self.completions):
            return self
        segments = [
            replace(segment, top_logprobs=None) if isinstance(segment, Completion) else segment
            for segment in self.segments
        ]
        return replace(self, segments=tuple(segments))

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities, one per scored token, under exactly the distribution sampled from."""
        return _joined(completion.logprobs for completion in self.completions)

    def num_scored_of(self, count: int) -> int:
        """Return the number of scored tokens among the answer's first `count` tokens."""
        scored = begun = 0
        for segment in self.segments:
            size = len(segment.token_ids)
            scored += min(size, max(0, count - begun)) if segment.scored else 0
            begun += size
        return scored

    @property
    def has_inserted(self) -> bool:
        """True if tokens were inserted, such as the end of a thought at its budget."""
        return not all(segment.scored for segment in self.segments)

    @property
    def move(self) -> int | None:
        """Index in `moves` of the move that was answered; None if it is not among them."""
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

    observation: str  # as shown to the player
    text: str  # answer; of a local model, its decoded tokens
    action: str  # sent to the env, and by it to other seats
    formatted: bool = True  # the parser found an action in the text
    sampled: SampledTokens | None = None  # None: no local model answered
    player: PlayerId | None = None  # player that answered; None while it is the seat's player
    cut_characters: Count = 0  # number of characters cut because the text was too long
    votes: Count | None = None  # sampled answers with this action; None: no vote


def _joined(parts: Iterable[list[_T]]) -> list[_T]:
    """Return the parts as one list; a single part is not copied."""
    lists = list(parts)
    return lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
