"""Information in moves about their observations: 0 if play does not depend on them."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_STEPS, _SETTLED = 1000, 1e-9


def move_information(weights_P: Floats, owners_M: Ints, moves_M: Ints, shares_M: Floats) -> float:
    """Return the nats that moves tell about the observation, beyond which moves are legal.

    P observations, each with a weight, have M legal moves in all: `owners_M` is each one's
    observation, `moves_M` its number as a move, and `shares_M` its probability, 1 in total per
    observation. The result is the weighted mean KL divergence from the policy to the nearest policy
    that ignores observations: it has one strength per move, normalized over the legal moves. If all
    observations have the same legal moves, this is the mutual information of observation and move.

    The strengths are those of Luce's choice model with maximum likelihood, by Hunter's
    minorization: Hunter 2004, https://doi.org/10.1214/aos/1079120141. They converge from above, at
    most `_STEPS` times.
    """
    reached_M = weights_P[owners_M] > 0
    owners_M, moves_M, shares_M = owners_M[reached_M], moves_M[reached_M], shares_M[reached_M]
    weights_P = weights_P / weights_P.sum()
    played_M = weights_P[owners_M] * shares_M
    counts = np.bincount(moves_M, played_M)
    strengths = counts / counts.sum()
    happens, nats = played_M > 0, np.inf
    for _ in range(_STEPS):
        totals_P = np.bincount(owners_M, strengths[moves_M], len(weights_P))
        ratios = (shares_M * totals_P[owners_M])[happens] / strengths[moves_M][happens]
        before, nats = nats, float(played_M[happens] @ np.log(ratios))
        if before - nats < _SETTLED:
            break
        chances = np.bincount(moves_M, weights_P[owners_M] / totals_P[owners_M])
        strengths = counts / np.where(chances > 0, chances, 1.0)
        strengths /= strengths.sum()
    return max(0.0, nats)
