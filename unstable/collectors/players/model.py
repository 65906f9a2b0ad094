"""Local models as players: the base, an adapter, or the policy's newest version at each turn."""

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from unstable.collectors.players.base import OpponentPlayer, Player, Position, ServeAdapter
from unstable.config import ConfigError, FixedOpponent, GameConfig, MovesKept
from unstable.engines.base import Engine, SamplingRequest
from unstable.prompts import PromptBuilder
from unstable.types import (
    Answer,
    Move,
    Observation,
    PlayerId,
    SampledTokens,
    SeatSpec,
    Segment,
    TokenSample,
)
from unstable.types.seeds import derive_seed


class NoRoomError(ValueError):
    """An error for an answer that already has its most tokens and cannot be continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlayer:
    """A local model: the base model, or the base model with an adapter of the engine."""

    engine: Engine
    adapter: str | None
    version: int | None  # policy version; None for other adapters
    prompts: PromptBuilder
    temperature: float
    max_tokens: int
    think_budget: int | None = None  # tokens after which an unfinished thought is closed
    moves: MovesKept = "none"  # information on a position's moves that turns record
    expert: OpponentPlayer | None = None  # whose probabilities they are; None: the game's expert

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Sample the model's answer to the observation's prompt."""
        prompt = self.prompts.build(observation)
        sampled = SampledTokens(
            prompt_ids=prompt.ids,
            segments=await self._segments(prompt.ids, game, seed),
            temperature=self.temperature,
            version=self.version,
            prompt_cut=prompt.cut_tokens,
            moves=await self._moves(observation, game, seed),
            state=self.prompts.encode_state(game.whole_state()) if self.moves == "state" else [],
        )
        return answer_of(self.prompts, prompt.text, sampled)

    async def go_on(
        self, answer: Answer, after: list[int], seed: int, most: int | None = None
    ) -> Answer:
        """Continue an answer: the earlier tokens, the inserted ids `after`, and new tokens.

        The first id of `after` ends an answer; it is dropped if the model has sampled it already.
        At most `most` tokens are sampled, and `max_tokens` limits the whole. Raises `NoRoomError`.
        """
        sampled = answer.sampled
        assert sampled is not None
        before = sampled.token_ids
        inserted = after[1:] if before[-1] == after[0] else after
        room = self.max_tokens - len(before) - len(inserted)
        if room < 1:
            raise NoRoomError(
                f"sampling.max_tokens = {self.max_tokens}: no tokens left after an answer of "
                f"{len(before) + len(inserted)} tokens, inserted ones included; raise it"
            )
        ids = [*sampled.prompt_ids, *before, *inserted]
        room = room if most is None else min(room, most)
        completion = await self.engine.generate(self.request(ids, seed, room))
        inserts = Segment(token_ids=inserted, scored=False)
        longer = replace(sampled, segments=(*sampled.segments, inserts, completion), thought=0)
        last = answer_of(self.prompts, answer.observation, replace(longer, segments=(completion,)))
        text = answer.text + self.prompts.decode(inserted) + last.text
        return replace(last, text=text, sampled=longer)

    async def _moves(self, observation: Observation, game: Position, seed: int) -> tuple[Move, ...]:
        """Return the moves to record, none by default; raises as `legal_answers` does."""
        if self.moves == "none":
            return ()
        legal = game.legal_moves()
        answers = legal_answers(self.prompts, legal, self.max_tokens)
        if self.moves != "expert":
            return tuple(map(Move, answers))
        if self.expert is None:
            expert = game.expert_moves()
        else:
            expert = await self.expert.mix(observation, game, derive_seed(seed, "expert"))
        shares = (expert.get(action, 0.0) for action in legal)
        return tuple(map(Move, answers, shares))

    async def _segments(
        self, prompt_ids: list[int], game: Position, seed: int
    ) -> tuple[Segment, ...]:
        """Sample the answer to a prompt; `game` is at the turn."""
        request = self.request(prompt_ids, seed)
        return await sample_answer(self.engine, self.prompts, request, self.think_budget)

    def request(
        self,
        prompt_ids: list[int],
        seed: int,
        max_tokens: int | None = None,
        allowed_token_ids: Sequence[int] | None = None,
    ) -> SamplingRequest:
        """Return the engine request for an answer, by default of `self.max_tokens`."""
        return SamplingRequest(
            prompt_ids=prompt_ids,
            adapter=self.adapter,
            temperature=self.temperature,
            max_tokens=self.max_tokens if max_tokens is None else max_tokens,
            seed=seed,
            allowed_token_ids=allowed_token_ids,
        )

    def prompt_ids(self, observation: Observation) -> list[int]:
        """Return the ids of an observation's prompt."""
        return self.prompts.build(observation).ids

    async def move_probabilities(
        self, adapter: str | None, prompt_ids: list[int], moves: Sequence[str]
    ) -> list[float]:
        """Return the probability of each move as the answer to a prompt, at temperature 1.

        Raises as `legal_answers` does.
        """
        answers = legal_answers(self.prompts, moves, self.max_tokens)
        scored = await self.engine.score(prompt_ids, answers, adapter=adapter)
        return [math.exp(sum(logprobs)) for logprobs in scored]

    async def move_shares(
        self, adapter: str | None, prompt_ids: list[int], moves: Sequence[str], seeds: Sequence[int]
    ) -> list[float]:
        """Return the share of each move among sampled answers to a prompt, one per seed."""
        player = dataclasses.replace(self, adapter=adapter, temperature=1.0)
        ask = partial(sample_answer, self.engine, self.prompts, think_budget=self.think_budget)
        found = await asyncio.gather(*(ask(player.request(prompt_ids, seed)) for seed in seeds))
        answers = [TokenSample(prompt_ids=prompt_ids, segments=each) for each in found]
        actions = [self.prompts.read_answer(each.token_ids).action.text for each in answers]
        return [actions.count(move) / len(seeds) for move in moves]


async def sample_answer(
    engine: Engine, prompts: PromptBuilder, request: SamplingRequest, think_budget: int | None
) -> tuple[Segment, ...]:
    """Sample an answer of at most `max_tokens` tokens, inserted ones included.

    If the answer is still in a thought after `think_budget` tokens, the end of a thought is
    inserted, as in s1 (Muennighoff et al., 2025, arXiv:2501.19393). Tokens after the budget have a
    derived seed. Raises as `Engine.generate` does, and `ConfigError` if the insertion leaves no
    room.
    """
    if think_budget is None or think_budget >= request.max_tokens:
        return (await engine.generate(request),)
    begun = await engine.generate(replace(request, max_tokens=think_budget))
    if begun.finish_reason == "stop":
        return (begun,)
    segments: list[Segment] = [begun]
    if prompts.is_thinking(begun.token_ids):
        segments.append(Segment(token_ids=prompts.encode_ending(), scored=False))
    before = [token for segment in segments for token in segment.token_ids]
    left = request.max_tokens - len(before)
    if left < 1:
        raise ConfigError(
            f"sampling.thoughts.budget = {think_budget}: no token left for the action after "
            f"{len(before) - think_budget} tokens that end the thought; set sampling.max_tokens "
            f"to more than {len(before)}"
        )
    ids, seed = [*request.prompt_ids, *before], seed_after_budget(request.seed)
    rest = replace(request, prompt_ids=ids, max_tokens=left, seed=seed)
    return (*segments, await engine.generate(rest))


def seed_after_budget(seed: int) -> int:
    """Return the seed of the tokens after `think_budget`, derived from the answer's seed."""
    return derive_seed(seed, "after the budget")


def answer_of(prompts: PromptBuilder, observation: str, sampled: SampledTokens) -> Answer:
    """Convert sampled tokens to an answer, with its text and its action."""
    text, action, thought = prompts.read_answer(sampled.token_ids)
    return Answer(
        observation=observation,
        text=text,
        action=action.text,
        formatted=action.formatted,
        sampled=replace(sampled, thought=sampled.num_scored_of(thought)) if thought else sampled,
    )


def legal_answers(prompts: PromptBuilder, moves: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the ids of each legal move's answer, which end with the stop token.

    The stop token ensures that no answer is a prefix of another. Raises `ConfigError` if the game's
    parser cannot read a legal move, and `ValueError` if one is longer than `max_tokens`.
    """
    answers = []
    for move in moves:
        token_ids = prompts.encode_move(move)
        if len(token_ids) > max_tokens:
            raise ValueError(
                f"sampling.max_tokens = {max_tokens}: the legal move {move!r} takes "
                f"{len(token_ids)} tokens; set it to {len(token_ids)} or more"
            )
        answers.append(token_ids)
    return answers


class Newest:
    """Each policy's newest version, with the requests in flight per version that was newest."""

    def __init__(self) -> None:
        self._versions: dict[str, PlayerId] = {}  # by policy
        self.asking: Counter[PlayerId] = Counter()

    def announce(self, version: PlayerId) -> None:
        """Make a version the newest of its policy."""
        self._versions[version.label] = version

    @contextmanager
    def asked(self, policy: str) -> Iterator[PlayerId]:
        """Yield a policy's newest version, which counts as in use until the block ends."""
        version = self._versions[policy]
        self.asking[version] += 1
        try:
            yield version
        finally:
            self.asking[version] -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPlayer:
    """A policy that plays each turn with its newest version, even within a game."""

    newest: Newest
    policy: str  # name of the policy
    model: Callable[[str, int | None], Player]  # called with adapter and version

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        with self.newest.asked(self.policy) as version:
            return await self.model(version.name, version.version).act(observation, game, seed)


class CheckpointPlayer(OpponentPlayer):
    """The local model with the opponent's adapter, which `models.inspection` has checked."""

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        return model(opponent.adapter_name)
