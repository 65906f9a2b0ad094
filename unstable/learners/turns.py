"""Turns of a batch as transitions from state to state, with their legal moves."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec import convert, msgpack
from torch import Tensor

from unstable.config import ConfigError
from unstable.learners.batch import FlatBatch, Floats, Ints, Mask, Role
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

    A critic reads `pairs`, states with moves; `answers` are the moves as answers to the seats'
    prompts. Both are without duplicates.
    """

    pairs: list[StateMove]
    answers: list[StateMove]
    roles_S: list[Role]
    owners_M: Ints  # index of each move's turn
    pairs_M: Ints
    answers_M: Ints
    chosen_S: Ints  # index in M of the move that was played; -1: an answer that is not listed
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
        pairs, answers = _Numbered(), _Numbered()
        owners, pairs_M, answers_M, chosen = list[int](), list[int](), list[int](), list[int]()
        for index, (turn, env) in enumerate(zip(turns, batch.envs_S, strict=True)):
            state, played = turn.state if sees_state else turn.prompt_ids, turn.move
            chosen.append(-1 if played is None else len(owners) + played)
            for move in turn.moves:
                owners.append(index)
                pairs_M.append(pairs.add(env, state, move.token_ids, 1.0))
                answers_M.append(
                    answers.add(env, turn.prompt_ids, move.token_ids, turn.temperature)
                )
        next_S, rewards_SK, known_SK = _courses(batch, rewards_S, together=sees_state)
        return cls(
            pairs=pairs.found,
            answers=answers.found,
            roles_S=batch.roles_S,
            owners_M=np.array(owners),
            pairs_M=np.array(pairs_M),
            answers_M=np.array(answers_M),
            chosen_S=np.array(chosen),
            next_S=next_S,
            seats_S=np.array([seat for _, seat in batch.roles_S]),
            rewards_SK=rewards_SK,
            known_SK=known_SK,
        )

    @cached_property
    def pair_keys(self) -> list[Key]:
        """The keys of `pairs`."""
        return [each.key for each in self.pairs]

    @cached_property
    def answer_keys(self) -> list[Key]:
        """The keys of `answers`."""
        return [each.key for each in self.answers]

    @cached_property
    def packed(self) -> bytes:
        """The whole as bytes, which a checkpoint saves."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        return msgpack.encode(
            {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in columns.items()}
        )

    @classmethod
    def unpacked(cls, packed: bytes) -> Self:
        """Return the transitions that `packed` had."""
        columns = msgpack.decode(packed)
        types = {"pairs": list[StateMove], "answers": list[StateMove], "roles_S": list[Role]}
        found: dict[str, Any] = {
            name: convert(value, types[name]) if name in types else np.array(value)
            for name, value in columns.items()
        }
        return cls(**found)

    @property
    def listed_S(self) -> Mask:
        """True for turns whose answer is a listed move."""
        return self.chosen_S >= 0

    def shares(self, logprobs: Sequence[Tensor]) -> Floats:
        """The policy's probabilities [M], normalized over legal moves, by the answers' logprobs."""
        sums_A = np.array([float(each.double().sum()) for each in logprobs])
        logprobs_M = sums_A[self.answers_M]
        most_S = np.full(len(self.chosen_S), -np.inf)
        np.maximum.at(most_S, self.owners_M, logprobs_M)
        raised_M = np.exp(logprobs_M - most_S[self.owners_M])
        sums_S = np.bincount(self.owners_M, weights=raised_M, minlength=len(most_S))
        shares_M: Floats = raised_M / sums_S[self.owners_M]
        return shares_M

    def means(self, shares_M: Floats, values_MK: Floats) -> Floats:
        """Means [S, K] of the values of each turn's moves, weighted by their shares."""
        means_SK = np.zeros((len(self.chosen_S), values_MK.shape[1]))
        np.add.at(means_SK, self.owners_M, shares_M[:, None] * values_MK)
        return means_SK

    def targets(self, values_SK: Floats) -> Floats:
        """Rewards [S, K] until the next turn plus that turn's values; 0 at the end of a game."""
        following_SK = np.where(self.next_S[:, None] >= 0, values_SK[self.next_S], 0.0)
        targets_SK: Floats = self.rewards_SK + following_SK
        return targets_SK

    def sums_to_end(self, errors_SK: Floats) -> Floats:
        """Sums [S, K] of the errors of a turn and all later ones of its game."""
        sums_SK = errors_SK.copy()
        last = np.flatnonzero(self.next_S < 0)
        before = {after: index for index, after in enumerate(self.next_S.tolist()) if after >= 0}
        for index in last.tolist():
            while (earlier := before.get(index)) is not None:
                sums_SK[earlier] += sums_SK[index]
                index = earlier
        return sums_SK


class _Numbered:
    """Pairs, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self.found: list[StateMove] = []
        self._numbers: dict[Key, int] = {}

    def add(self, env: str, prompt: list[int], answer: list[int], temperature: float) -> int:
        """Return the number of an answer to a prompt."""
        segments = (Segment(token_ids=answer),)
        pair = StateMove(
            env, TokenSample(prompt_ids=prompt, segments=segments, temperature=temperature)
        )
        number = self._numbers.setdefault(pair.key, len(self.found))
        if number == len(self.found):
            self.found.append(pair)
        return number


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
