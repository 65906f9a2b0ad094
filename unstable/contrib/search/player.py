"""A player that searches: one mirror step from its policy to the values of its legal moves.

The values are those of the policy in all seats, from states weighted by the seat's belief: by
rollouts, by the whole tree, or by the critic in the policy's checkpoint. Games of perfect
information are copied, with new draws of chance to come. In other games the belief is exact, from
the whole tree, so only games whose tree can be grown can be searched.
"""

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from unstable.collectors.players.base import (
    OpponentPlayer,
    Player,
    Position,
    ServeAdapter,
    scripted,
)
from unstable.collectors.players.model import ModelPlayer
from unstable.config import ConfigError, FixedOpponent, GameConfig, SearchOpponent
from unstable.contrib.search.beliefs import Belief, TreePositions, of_game
from unstable.contrib.search.values import (
    ActionValues,
    CachedProbabilities,
    CriticValues,
    ExactValues,
    RolloutValues,
    mirror_step,
)
from unstable.games.game import Game
from unstable.games.services import (
    game_info,
    lists_legal_moves,
    make_environment,
    prompt_style,
    why_not_solved,
)
from unstable.processes.worker import Worker
from unstable.solving.best_response import PolicyValues
from unstable.solving.solver import answering
from unstable.solving.tree import MOST_NODES, Tree
from unstable.types import Answer, Observation, SeatSpec
from unstable.types.seeds import derive_seed

if TYPE_CHECKING:
    from unstable.learners.saved_critic import SavedCritic


class SearchPlayer(OpponentPlayer):
    """A policy that searches before each move; its games depend on their seeds alone."""

    mixes = True
    copies = True

    def __init__(self, opponent: SearchOpponent, game: GameConfig, model: ModelPlayer) -> None:
        self._opponent, self._game = opponent, game
        self._policy = CachedProbabilities(model)
        self._copied = opponent.values != "exact" and is_open(game)
        self._growing = asyncio.Lock()
        self._tree: Tree | None = None
        self._values: ActionValues = RolloutValues(self._policy, opponent.continuations)
        if opponent.values == "critic":
            self._values = CriticValues(_critic(opponent, game, opponent.key), model)

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that cannot be searched."""
        assert isinstance(opponent, SearchOpponent)
        place = f"{field} = {opponent.key!r} in {game.key}"
        if game.is_driven or game.isolated:
            raise ConfigError(
                f"{place}: search copies the game, which another process plays; choose another "
                "opponent, or set games.N.isolated to false"
            )
        if not lists_legal_moves(game):
            raise ConfigError(
                f"{place}: the game does not list its legal moves; set games.N.legal_moves to "
                "module:function(env), or choose another opponent"
            )
        if prompt_style(game).reasoning:
            raise ConfigError(
                f"{place}: the prompt style {game.prompt!r} makes the model reason, so its moves "
                "have no exact probabilities; set games.N.prompt to answer"
            )
        if opponent.values == "critic":
            if not is_open(game):
                raise ConfigError(
                    f"{place}: values = critic needs perfect information; set values to rollouts"
                )
            _critic(opponent, game, place)
        elif opponent.values == "exact" or not is_open(game):
            _check_tree(game, place)

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """Return the player; `ValueError` without the model's probabilities in this process."""
        assert isinstance(opponent, SearchOpponent)
        own = model(opponent.adapter_name)
        if not isinstance(own, ModelPlayer):
            raise ValueError(f"{opponent.key} in {game.key}: search needs its model in its process")
        return cls(opponent, game, own)

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        moves = await self.mix(observation, game, seed)
        (action,) = Random(seed).choices(list(moves), list(moves.values()))
        return scripted(observation, action)

    async def mix(self, observation: Observation, game: Position, seed: int) -> dict[str, float]:
        """Return the probability of each legal move after the mirror step."""
        moves = game.legal_moves()
        (policy,) = await self._policy.of([(observation, moves)])
        if len(moves) > 1:
            belief = await self._belief(observation, game)
            rng = Random(derive_seed(seed, "search"))
            values = await self._values.of(belief, observation.seat, moves, rng)
            policy = mirror_step(policy, values, self._opponent.eta)
        return dict(zip(moves, policy, strict=True))

    async def _belief(self, observation: Observation, game: Position) -> Belief:
        if self._copied:
            return of_game(game.copies())
        async with self._growing:
            if self._tree is None:
                await self._grow()
        before = {
            node.key: node
            for at in self._positions.at(observation)
            for node, _ in self._positions.path(at)
            if node.seat >= 0
        }
        asked = [(node.shown, node.actions) for node in before.values()]
        found = zip(before.values(), await self._policy.of(asked), strict=True)
        policy = {node.key: dict(zip(node.actions, p, strict=True)) for node, p in found}
        return self._positions.belief(observation, policy)

    async def _grow(self) -> None:
        """Grow the tree, in a process that does not stop other games, and its exact values."""
        name = f"games = {self._game.key}: the process that grows its tree"
        worker = Worker(name, partial(answering, self._game, MOST_NODES))
        try:
            tree: Tree = await worker.ask(_whole)
        finally:
            worker.close()
        scale = Game(self._game, seed=0).payoff_scale
        self._positions = TreePositions(tree, scale)
        if self._opponent.values == "exact":
            nodes = tree.decisions
            found = await self._policy.of([(node.shown, node.actions) for node in nodes])
            pairs = zip(nodes, found, strict=True)
            policy = {node.key: dict(zip(node.actions, p, strict=True)) for node, p in pairs}
            self._values = ExactValues(PolicyValues(tree, policy, forfeits=False), scale)
        self._tree = tree


def _critic(opponent: SearchOpponent, game: GameConfig, place: str) -> "SavedCritic":
    """Return the critic in the opponent's checkpoint; raises `ConfigError` that begins `place`."""
    from unstable.learners.saved_critic import SavedCritic  # imports torch

    return SavedCritic.read(opponent.adapter_folder, game.key, place)


def is_open(game: GameConfig) -> bool:
    """Return whether a game has perfect information."""
    return game_info(game).perfect_information(make_environment(game).raw)


def _whole(tree: Tree) -> Tree:
    return tree


def _check_tree(game: GameConfig, place: str) -> None:
    """Raise `ConfigError` that begins with `place` if the game's tree does not serve for search."""
    if (why := why_not_solved(game)) is not None:
        raise ConfigError(
            f"{place}: search needs perfect information or a whole tree, and {game.key} {why}"
        )
    if game.invalid_moves.allowed:
        raise ConfigError(
            f"{place}: search in a tree, which has legal moves alone, needs "
            "games.N.invalid_moves.allowed = 0; set it to 0"
        )
