"""Turns of a batch as transitions from state to state, with their legal moves."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from msgspec import convert, msgpack
from numpy.typing import NDArray
from torch import Tensor

from unstable.config import ConfigError
from unstable.learners.batch import FlatBatch, Floats, Ints, Mask, Role
from unstable.types import SampledTokens, Segment, TokenSample

Key = tuple[float, ...]
"""Prompt, answer and temperature as one value."""
MOST_SEATS = 16
"""Maximum number of seats, each of which has its own values."""


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """S turns with M legal moves in all, and the turn that follows each one in its game.

    A critic reads `pairs`, a state and a move each; `answers` are the moves as answers to the
    seats' prompts. Both are without duplicates.
    """

    pairs: list[TokenSample]
    answers: list[TokenSample]
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
    def of(cls, batch: FlatBatch, rewards_S: Floats, *, sees_state: bool) -> "Transitions":
        """Read the turns of a batch; a critic that sees a seat's view follows that seat alone.

        The reward of a seat's last turn, which has the outcome, is paid at the end of the game, so
        that it counts as the other seats' later moves decide it. Raises `ConfigError` if the turns
        lack legal moves or the state.
        """
        turns = [sample.tokens for sample in batch.samples]
        _check(turns, sees_state)
        pairs, answers = _Numbered(), _Numbered()
        owners, pairs_M, answers_M, chosen = list[int](), list[int](), list[int](), list[int]()
        for index, turn in enumerate(turns):
            state = turn.state if sees_state else turn.prompt_ids
            played = turn.move
            chosen.append(-1 if played is None else len(owners) + played)
            for move in turn.moves:
                owners.append(index)
                pairs_M.append(pairs.add(state, move.token_ids, 1.0))
                answers_M.append(answers.add(turn.prompt_ids, move.token_ids, turn.temperature))
        seats = [owner.seat for owner in batch.owners_S]
        if max(seats, default=0) >= MOST_SEATS:
            raise ConfigError(
                f"learner.algorithm.name = 'vrpo': more than {MOST_SEATS} seats; choose another "
                "algorithm"
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
            seats_S=np.array(seats),
            rewards_SK=rewards_SK,
            known_SK=known_SK,
        )

    @cached_property
    def answer_keys(self) -> list[Key]:
        """Keys of the answers, equal for equal ones of other batches."""
        return list(map(key_of, self.answers))

    @cached_property
    def pair_keys(self) -> list[Key]:
        """Keys of the pairs, equal for equal ones of other batches."""
        return list(map(key_of, self.pairs))

    @cached_property
    def packed(self) -> bytes:
        """The whole as bytes, which a checkpoint saves."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in columns.items()
        }
        return msgpack.encode(plain)

    @classmethod
    def unpacked(cls, packed: bytes) -> "Transitions":
        """Return the transitions that `packed` had."""
        plain = msgpack.decode(packed)
        found = {each.name: plain[each.name] for each in fields(cls)}
        for name in ("pairs", "answers"):
            found[name] = convert(plain[name], list[TokenSample])
        found["roles_S"] = convert(plain["roles_S"], list[Role])
        for name, value in found.items():
            if name.endswith(("_S", "_M", "_SK")) and name != "roles_S":
                found[name] = np.array(value)
        return cls(**found)

    @property
    def listed_S(self) -> Mask:
        """True for turns whose answer is a listed move."""
        return self.chosen_S >= 0

    def means(self, shares_M: Floats, values_MK: Floats) -> Floats:
        """Means [S, K] of the values of each turn's moves, weighted by their shares."""
        means_SK = np.zeros((len(self.chosen_S), values_MK.shape[1]))
        np.add.at(means_SK, self.owners_M, shares_M[:, None] * values_MK)
        return means_SK

    def following(self, values_SK: Floats) -> Floats:
        """Values [S, K] of the next turns; 0 at the ends of games."""
        return np.where(self.next_S[:, None] >= 0, values_SK[self.next_S], 0.0)

    def shares(self, logprobs: Sequence[Tensor]) -> Floats:
        """The policy's probabilities [M] by the answers' logprobs, normalized over legal moves."""
        sums_A = np.array([float(each.double().sum()) for each in logprobs])
        logprobs_M = sums_A[self.answers_M]
        most_S = np.full(len(self.chosen_S), -np.inf)
        np.maximum.at(most_S, self.owners_M, logprobs_M)
        raised_M = np.exp(logprobs_M - most_S[self.owners_M])
        sums_S = np.bincount(self.owners_M, weights=raised_M, minlength=len(most_S))
        shares_M: Floats = raised_M / sums_S[self.owners_M]
        return shares_M


class _Numbered:
    """Prompts with answers, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        self.found: list[TokenSample] = []
        self._numbers: dict[Key, int] = {}

    def add(self, prompt_ids: list[int], token_ids: list[int], temperature: float) -> int:
        """Return the number of an answer to a prompt."""
        key = (*prompt_ids, -1, *token_ids, temperature)
        number = self._numbers.setdefault(key, len(self.found))
        if number == len(self.found):
            segments = (Segment(token_ids=token_ids),)
            self.found.append(
                TokenSample(prompt_ids=prompt_ids, segments=segments, temperature=temperature)
            )
        return number


def key_of(sample: TokenSample) -> Key:
    """Return a key that is equal for equal answers to equal prompts."""
    return (*sample.prompt_ids, -1, *sample.token_ids, sample.temperature)


def _check(turns: Sequence[SampledTokens], sees_state: bool) -> None:
    kept = "state" if sees_state else "legal"
    if lacking := sum(not turn.moves or (sees_state and not turn.state) for turn in turns):
        raise ConfigError(
            f"learner.algorithm.name = 'vrpo': {lacking} of {len(turns)} turns were recorded "
            f"without sampling.moves = {kept}; start a new run or choose another algorithm"
        )


def _courses(
    batch: FlatBatch, rewards_S: Floats, *, together: bool
) -> tuple[Ints, Floats, NDArray[np.bool_]]:
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
        last: dict[int, int] = {}  # by seat: its last turn
        for index in course:
            last[batch.owners_S[index].seat] = index
        next_S[course[:-1]] = course[1:]
        known_SK[np.ix_(course, [*last])] = True
        for index in course:
            seat = batch.owners_S[index].seat
            rewards_SK[course[-1] if index == last[seat] else index, seat] += rewards_S[index]
    return next_S, rewards_SK, known_SK
