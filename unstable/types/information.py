"""Information in moves about their observations: 0 if play does not depend on them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_STEPS, _SETTLED = 1000, 1e-9


def move_information(played_M: Floats, owners_M: Ints, moves_M: Ints) -> float:
    """Return the nats that moves tell about the observation, beyond which moves are legal.

    Observations have M legal moves in all: `owners_M` is each one's observation, `moves_M` its
    number as a move, and `played_M` how often it is played there, on any scale. The result is the
    mean KL divergence from the policy to the nearest policy that ignores observations: one with a
    strength of each move, normalized over the legal ones. If all observations have the same legal
    moves, this is the mutual information of observation and move.

    The strengths are those of Luce's choice model with maximum likelihood, by Hunter's
    minorization: Hunter 2004, https://doi.org/10.1214/aos/1079120141. The divergence converges from
    above; after `_STEPS` iterations it is an upper bound.
    """
    played_M = played_M / played_M.sum()
    weights_P = np.bincount(owners_M, played_M)
    reached_M = weights_P[owners_M] > 0
    owners_M, moves_M, played_M = owners_M[reached_M], moves_M[reached_M], played_M[reached_M]
    counts = np.bincount(moves_M, played_M)
    strengths, nats = counts, np.inf
    happens = played_M > 0
    shares_M = played_M / weights_P[owners_M]
    for _ in range(_STEPS):
        totals_P = np.bincount(owners_M, strengths[moves_M], len(weights_P))
        ratios = (shares_M * totals_P[owners_M])[happens] / strengths[moves_M][happens]
        before, nats = nats, float(played_M[happens] @ np.log(ratios))
        if before - nats < _SETTLED:
            break
        chances = np.bincount(moves_M, weights_P[owners_M] / totals_P[owners_M])
        strengths = counts / np.where(chances > 0, chances, 1.0)
        strengths = strengths / strengths.sum()
    return max(0.0, nats)
