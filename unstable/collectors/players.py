"""Who sits at a seat: a model, a scripted player, a user's own, all asked the same way."""

import inspect
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from unstable.collectors.engine import Engine
from unstable.games.experts import expert_moves
from unstable.games.game import Game
from unstable.prompts import PromptBuilder, observation_text
from unstable.targets import load_target
from unstable.types import Completion, FinishReason, Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a player did with an observation. Token fields stay empty unless a local model answered.

    Answer(observation="You are X ...", text="[4]", action="[4]")
    """

    observation: str  # as the player saw it
    text: str
    action: str
    formatted: bool = True
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_cut: int = 0  # tokens
    adapter: str | None = None  # that answered


class Player(Protocol):
    """A player of one game, whose every choice follows from the turn's `seed`."""

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlayer:
    """A local model: the base model, or the base model with an adapter of the engine."""

    engine: Engine
    adapter: str | None
    prompts: PromptBuilder
    tokenizer: Any
    parser: str
    temperature: float
    max_tokens: int

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        prompt = self.prompts.build(observation)
        completion = await self._complete(prompt.ids, game, seed)
        text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        action = self.prompts.read_action(self.parser, text)
        return Answer(
            observation=prompt.text,
            text=text,
            action=action.text,
            formatted=action.formatted,
            prompt_ids=prompt.ids,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            prompt_cut=prompt.cut_tokens,
            adapter=completion.adapter,
        )

    async def _complete(self, prompt_ids: list[int], game: Game, seed: int) -> Completion:
        return await self.engine.generate(
            prompt_ids,
            adapter=self.adapter,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=seed,
        )


class Newest:
    """The newest version's name, and how many requests are in flight under each that was it."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.asking: Counter[str] = Counter()

    @contextmanager
    def asked(self) -> Iterator[str]:
        """The name, which counts as asked until the block ends."""
        assert self.name is not None, "nothing was published"
        name = self.name
        self.asking[name] += 1
        try:
            yield name
        finally:
            self.asking[name] -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestPlayer:
    """The policy as it is at each turn, whatever it was when the game began."""

    newest: Newest
    player: Callable[[str], Player]  # of a version

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        with self.newest.asked() as name:
            return await self.player(name).act(observation, game, seed)


class RandomPlayer:
    """Uniform over the legal moves."""

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        return _scripted(observation, random.Random(seed).choice(game.legal_moves()))


class MinimaxPlayer:
    """The game's expert: uniform over the optimal moves, or an equilibrium's mix."""

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        moves = expert_moves(game)
        (action,) = random.Random(seed).choices(list(moves), list(moves.values()))
        return _scripted(observation, action)


class PythonPlayer:
    """A user's own: an instance of `module:Class` (made anew for each game), or a function.

    It is called with the observation's text and returns the action; it may be async. If it takes an
    argument `rng`, it is given a `random.Random` that makes its games repeatable.
    """

    def __init__(self, target: str) -> None:
        found: Any = load_target(target)
        self._target = target
        self._call: Callable[..., Any] = found() if isinstance(found, type) else found
        self._takes_rng = "rng" in inspect.signature(self._call).parameters

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        chance = {"rng": random.Random(seed)} if self._takes_rng else {}
        action = self._call(observation_text(observation), **chance)
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, str):
            raise TypeError(
                f"{self._target} returned {type(action).__name__}, not the action's text"
            )
        return _scripted(observation, action)


def _scripted(observation: Observation, action: str) -> Answer:
    return Answer(observation=observation_text(observation), text=action, action=action)
