"""An expert's exact mix of moves as examples: what a policy could have answered, and how often."""

import math
from collections.abc import Iterable

from unstable.learners.batch import Examples, FlatBatch
from unstable.types import Move, Segment, TokenSample


def expert_examples(batch: FlatBatch) -> Examples:
    """Each move that the expert may make in a turn's position; a position is a sequence.

    An advantage is the expert's share of the move times the tokens of the position's moves, which
    the normalizer of a mean over sequences divides by: a position counts once, however many moves
    it has and however long they are.
    """
    samples, roles, positions, advantages = [], [], [], []
    for index, sample in enumerate(batch.samples):
        moves = [move for move in sample.tokens.moves if move.expert]
        size = sum(len(move.token_ids) for move in moves)
        for move in moves:
            samples.append(
                TokenSample(
                    prompt_ids=sample.tokens.prompt_ids,
                    segments=(Segment(token_ids=move.token_ids),),
                    temperature=sample.tokens.temperature,
                )
            )
            roles.append(batch.roles_S[index])
            positions.append(index)
            advantages.append(size * _share(move))
    return Examples.made(samples, roles, positions, advantages)


def expert_entropy(batch: FlatBatch) -> float | None:
    """Entropy of the expert's mix, in nats: the mean over turns that have one; None without any."""
    moves = (sample.tokens.moves for sample in batch.samples)
    mixes = [each for each in moves if any(move.expert for move in each)]
    return sum(map(_entropy, mixes)) / len(mixes) if mixes else None


def _entropy(moves: Iterable[Move]) -> float:
    shares = [_share(move) for move in moves if move.expert]
    return -sum(share * math.log(share) for share in shares)


def _share(move: Move) -> float:
    assert move.expert is not None, "set because of `moves_needed`"
    return move.expert
