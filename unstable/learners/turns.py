"""Turns of a batch as transitions from state to state, with their legal moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from unstable.config import ConfigError
from unstable.learners.batch import FlatBatch, Floats, Ints, Mask
from unstable.types import SampledTokens, Segment, TokenSample

Key = tuple[str | float, ...]
"""Env, prompt, answer and temperature as one value."""
MOST_SEATS = 16
"""Maximum number of seats, each of which has its own values."""


class StateMove(NamedTuple):
    """A state, or a prompt, of an env with a move as its answer."""

    env: str
    tokens: TokenSample

    @property
    def key(self) -> Key:
        """A value that is equal for equal pairs."""
        tokens = self.tokens
        return (self.env, *tokens.prompt_ids, -1, *tokens.token_ids, tokens.temperature)


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """S turns with M legal moves in all, and the turn that follows each one in its game.

    A critic reads `pairs` [M], states with moves; `answers` [M] are the moves as answers to the
    seats' prompts.
    """

    pairs: list[StateMove]
    answers: list[StateMove]
    owners_M: Ints  # index of each move's turn
    places_S: Ints  # place of the played move among the turn's moves; -1: it is not listed
    next_S: Ints  # index of the next turn; -1: the game ends
    seats_S: Ints
    rewards_SK: Floats  # rewards between this turn and the next one, by seat
    known_SK: Mask  # the seat is trained, so that its rewards are known

    @classmethod
    def of(cls, batch: FlatBatch, rewards_S: Floats, *, sees_state: bool) -> Self:
        """Read the turns of a batch; a critic that sees a seat's view follows that seat alone.

        The reward of a seat's last turn, which has the outcome, is paid at the end of the game, as
        the other seats' later moves also decide it. Raises `ConfigError` if the turns lack legal
        moves or the state.
        """
        turns = [sample.tokens for sample in batch.samples]
        _check(batch, turns, sees_state)
        states = [turn.state if sees_state else turn.prompt_ids for turn in turns]
        owners = [index for index, turn in enumerate(turns) for _ in turn.moves]
        moves = [move.token_ids for turn in turns for move in turn.moves]
        envs = batch.envs_S
        next_S, rewards_SK, known_SK = _courses(batch, rewards_S, together=sees_state)
        return cls(
            pairs=[
                state_move(envs[index], states[index], move)
                for index, move in zip(owners, moves, strict=True)
            ],
            answers=[
                state_move(envs[index], turns[index].prompt_ids, move, turns[index].temperature)
                for index, move in zip(owners, moves, strict=True)
            ],
            owners_M=np.array(owners),
            places_S=np.array([-1 if turn.move is None else turn.move for turn in turns]),
            next_S=next_S,
            seats_S=np.array([seat for _, seat in batch.roles_S]),
            rewards_SK=rewards_SK,
            known_SK=known_SK,
        )

    @property
    def listed_S(self) -> Mask:
        """True for turns whose answer is a listed move."""
        return self.places_S >= 0

    @property
    def firsts(self) -> Ints:
        """Indices of the turns that begin a game."""
        return np.setdiff1d(np.arange(len(self.next_S)), self.next_S)

    def targets(self, values_SK: Floats) -> Floats:
        """Rewards [S, K] until the next turn plus that turn's values; 0 at the end of a game."""
        following_SK = np.where(self.next_S[:, None] >= 0, values_SK[self.next_S], 0.0)
        targets_SK: Floats = self.rewards_SK + following_SK
        return targets_SK


class Numbered:
    """Pairs, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self.found: list[StateMove] = []
        self._numbers: dict[Key, int] = {}

    def add(self, pair: StateMove) -> int:
        """Return the number of a pair."""
        number = self._numbers.setdefault(pair.key, len(self.found))
        if number == len(self.found):
            self.found.append(pair)
        return number

    def copy(self) -> "Numbered":
        """Return a copy, which later pairs do not change."""
        copy = Numbered()
        copy.found, copy._numbers = self.found.copy(), self._numbers.copy()
        return copy


def state_move(
    env: str, prompt: list[int], answer: list[int], temperature: float = 1.0
) -> StateMove:
    """Return the pair of a state, or a prompt, and a move, by their token ids."""
    segments = (Segment(token_ids=answer),)
    tokens = TokenSample(prompt_ids=prompt, segments=segments, temperature=temperature)
    return StateMove(env, tokens)


def _check(batch: FlatBatch, turns: Sequence[SampledTokens], sees_state: bool) -> None:
    kept, name = "state" if sees_state else "legal", "learner.algorithm.name = 'vrpo'"
    if lacking := sum(not turn.moves or (sees_state and not turn.state) for turn in turns):
        raise ConfigError(
            f"{name}: {lacking} of {len(turns)} turns were recorded without sampling.moves = "
            f"{kept}; start a new run or choose another algorithm"
        )
    if max((seat for _, seat in batch.roles_S), default=0) >= MOST_SEATS:
        raise ConfigError(f"{name}: more than {MOST_SEATS} seats; choose another algorithm")


def _courses(batch: FlatBatch, rewards_S: Floats, *, together: bool) -> tuple[Ints, Floats, Mask]:
    """Return next turns [S], rewards [S, K] until then, and which seats' rewards are known."""
    count = len(batch.samples)
    next_S = np.full(count, -1)
    rewards_SK = np.zeros((count, MOST_SEATS))
    known_SK = np.zeros((count, MOST_SEATS), bool)
    games: dict[tuple[int, int], list[int]] = {}
    for index, owner in enumerate(batch.owners_S):
        games.setdefault((owner.game_id, 0 if together else owner.seat), []).append(index)
    for indices in games.values():
        course = sorted(indices, key=lambda index: batch.samples[index].turn)
        last = {batch.roles_S[index][1]: index for index in course}  # by seat: its last turn
        next_S[course[:-1]] = course[1:]
        known_SK[np.ix_(course, [*last])] = True
        for index in course:
            seat = batch.roles_S[index][1]
            rewards_SK[course[-1] if index == last[seat] else index, seat] += rewards_S[index]
    return next_S, rewards_SK, known_SK
