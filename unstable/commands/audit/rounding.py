"""Whether rounding explains that a model, asked the same again, has sampled something else.

In other company, with other requests in its batches, a model's logits differ by rounding. A token
is sampled where a number that follows from the seed falls into the token's share of [0, 1). By
rounding, it can only fall to the other side of a boundary that is close to it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from unstable.collectors.players.model import seed_after_budget
from unstable.engines.base import Engine
from unstable.engines.probe import BOUNDS
from unstable.types import SampledTokens

FloatArray = NDArray[np.float64]


async def rounding(
    engine: Engine,
    adapter: str | None,
    then: SampledTokens,
    now: SampledTokens,
    seed: int,
    *,
    vocabulary: int,
    dtype: str,
) -> float | None:
    """How far the seed's number is from the recorded token's share, where the answers part.

    In probability; of greedy answers how much less likely the token is, in nats. None where that is
    more than rounding can make.
    """
    pairs = enumerate(zip(then.token_ids, now.token_ids, strict=False))
    place = next((index for index, (one, other) in pairs if one != other), None)
    if place is None:  # one goes on where the other ends, which no token decides
        return None
    drawn = _number(then, place, seed)
    if drawn is None:
        return None
    beginning = [*then.prompt_ids, *then.token_ids[:place]]
    every_token = [[token_id] for token_id in range(vocabulary)]
    scored = await engine.score(beginning, every_token, adapter=adapter)
    logprobs_V = np.array(scored)[:, 0]
    token_id = then.token_ids[place]
    bound = BOUNDS[dtype].mean
    if then.temperature == 0:
        gap = float(logprobs_V.max() - logprobs_V[token_id])
        return gap if gap <= bound else None
    gap = distance(logprobs_V, then.temperature, token_id, drawn)
    # A logit that is off by e moves a boundary between probabilities by e / 4 at most.
    return gap if gap <= bound / 4 else None


def distance(
    logprobs_V: Sequence[float] | FloatArray, temperature: float, token_id: int, number: float
) -> float:
    """How far a number in [0, 1) is from the share of a token at this temperature; 0: it is in it.

    >>> distance([-0.6931, -0.6931], 1.0, token_id=1, number=0.25)
    0.25
    """
    scaled_V = np.asarray(logprobs_V, dtype=np.float64) / temperature
    shares_V = np.exp(scaled_V - scaled_V.max())
    ends_V = np.cumsum(shares_V / shares_V.sum())
    low = ends_V[token_id - 1] if token_id else 0.0
    return round(max(low - number, number - ends_V[token_id], 0.0), 9)


def _number(answer: SampledTokens, place: int, seed: int) -> float | None:
    """What decided the token at a place of an answer; None where it was inserted there."""
    from unstable.engines.embedded.sampling import uniforms  # torch takes seconds

    begun = 0
    for index, segment in enumerate(answer.segments):
        if place < begun + len(segment.token_ids):
            own = seed_after_budget(seed) if index else seed
            drawn = uniforms(np.array([own % 2**64], dtype=np.uint64), np.array([place - begun]))
            return float(drawn[0]) if segment.scored else None
        begun += len(segment.token_ids)
    return None
