"""Values of a seat's legal moves under a belief, and the mirror step to them."""

import asyncio
import math
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Protocol

from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.contrib.search.beliefs import Belief, Line, after
from unstable.games.game import Game
from unstable.solving.best_response import PolicyValues
from unstable.solving.tree import Shown, as_key
from unstable.types import Observation

if TYPE_CHECKING:
    from unstable.learners.saved_critic import SavedCritic

Question = tuple[Observation, Sequence[str]]
"""An observation of the seat to move, and its legal actions."""
_AT_ONCE = 64  # concurrent requests to the model
_STEPPED_AT_ONCE = 64  # lines between yields to the event loop
_MOST_KEPT = 200_000  # decisions


def mirror_step(policy: Sequence[float], values: Sequence[float], eta: float) -> list[float]:
    """Return the policy after one step of mirror descent: pi(a) exp(eta Q(a)), normalized.

    With the KL as divergence (Sokota et al., 2024, https://arxiv.org/abs/2304.13138).

    >>> mirror_step([0.5, 0.5], [math.log(3), 0.0], eta=1.0)
    [0.75, 0.25]
    """
    most = max(values)
    weights = [p * math.exp(eta * (q - most)) for p, q in zip(policy, values, strict=True)]
    return normalized(weights)


def normalized(weights: Sequence[float]) -> list[float]:
    """Return weights divided by their sum; equal ones if all are 0."""
    total = math.fsum(weights)
    return [w / total for w in weights] if total else [1 / len(weights)] * len(weights)


class MoveProbabilities(Protocol):
    """A policy that states the probability of each legal action."""

    async def of(self, questions: Sequence[Question]) -> list[list[float]]:
        """Return the probabilities of each question's actions, which add up to 1."""


class CachedProbabilities:
    """A model's move probabilities, renormalized over legal moves, each computed once.

    The model's adapter never changes, so answers stay valid.
    """

    def __init__(self, model: ModelPlayer) -> None:
        self._model = model
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[tuple[Shown, tuple[str, ...]], list[float]] = {}

    async def of(self, questions: Sequence[Question]) -> list[list[float]]:
        if len(self._known) > _MOST_KEPT:
            self._known = {}
        known = self._known  # kept, even if another call clears the cache
        keys = [(as_key(observation), tuple(moves)) for observation, moves in questions]
        pairs = zip(keys, questions, strict=True)
        new = {key: observation for key, (observation, _) in pairs if key not in known}
        found = await asyncio.gather(*(self._ask(each, key[1]) for key, each in new.items()))
        for key, shares in zip(new, found, strict=True):
            known.setdefault(key, shares)
        return [known[key] for key in keys]

    async def _ask(self, observation: Observation, moves: Sequence[str]) -> list[float]:
        model = self._model
        async with self._limit:
            ids = model.prompt_ids(observation)
            return normalized(await model.move_probabilities(model.adapter, ids, moves))


class RolloutValues:
    """Mean outcomes of games that a policy plays to the end in all seats.

    Each move is tried from the same `continuations` states, drawn from the belief.
    """

    def __init__(self, policy: MoveProbabilities, continuations: int) -> None:
        self._policy, self._continuations = policy, continuations

    async def of(self, belief: Belief, seat: int, moves: Sequence[str], rng: Random) -> list[float]:
        weights = [state.probability for state in belief]
        states = rng.choices(belief, weights, k=self._continuations)
        lines = [state.line(rng) for _ in moves for state in states]
        await _step(lines, [move for move in moves for _ in states])
        await self._play(lines, rng)
        outcomes = [line.outcomes[seat] for line in lines]
        size = len(states)
        return [math.fsum(outcomes[i : i + size]) / size for i in range(0, len(outcomes), size)]

    async def _play(self, lines: Sequence[Line], rng: Random) -> None:
        """Play all lines to the end, a turn of each at a time, so that their prompts batch."""
        while lines := [line for line in lines if not line.done]:
            questions = [(line.observe(), line.legal_moves()) for line in lines]
            shares = await self._policy.of(questions)
            drawn = zip(questions, shares, strict=True)
            await _step(lines, [rng.choices(legal, each)[0] for (_, legal), each in drawn])


async def _step(lines: Sequence[Line], moves: Sequence[str]) -> None:
    """Make a move in each line."""
    for number, (line, move) in enumerate(zip(lines, moves, strict=True)):
        if number % _STEPPED_AT_ONCE == 0:
            await asyncio.sleep(0)  # let games continue
        line.step(move)


class CriticValues:
    """Values by a checkpoint's critic of the whole state, in games of perfect information."""

    def __init__(self, critic: "SavedCritic", model: ModelPlayer) -> None:
        self._critic, self._model = critic, model

    async def of(self, belief: Belief, seat: int, moves: Sequence[str], rng: Random) -> list[float]:
        (state,) = belief
        game = state.line(rng)
        assert isinstance(game, Game), "checked: the game has perfect information"
        whole = self._model.prompts.encode_state(game.whole_state())
        answers = legal_answers(self._model.prompts, moves, self._model.max_tokens)
        found = self._critic.values(game.config.key, whole, answers, game.config.seats)
        return [values[seat] for values in found]


class ExactValues:
    """Exact values, from those of a policy at each position of the tree."""

    def __init__(self, values: PolicyValues, scale: float) -> None:
        """Use the values of a policy; `scale` divides payoffs."""
        self._values, self._scale = values, scale

    async def of(self, belief: Belief, seat: int, moves: Sequence[str], rng: Random) -> list[float]:
        nodes = [(state.probability, state.node) for state in belief]
        found = []
        for move in moves:
            values = (p * self._values.of(after(node, move))[seat] for p, node in nodes if node)
            found.append(math.fsum(values) / self._scale)
        return found


ActionValues = RolloutValues | CriticValues | ExactValues
"""Estimator of the values of a seat's legal moves."""
