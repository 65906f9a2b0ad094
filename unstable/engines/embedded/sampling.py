"""Sampling, with the exact log-probability of each sampled token."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.types import TopLogprobs


def uniforms(seeds_R: NDArray[np.uint64], places_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number in [0, 1) that decides the token at each place of an answer with that seed.

    A pure function of seed and place: the output of SplitMix64 (Steele, Lea and Flood 2014,
    doi.org/10.1145/2660193.2660195) at that place of its stream, without its 11 lowest bits.
    """
    z = seeds_R + (places_R.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


def restrict(logits_RV: Tensor, allowed_R: Sequence[Sequence[int] | None]) -> None:
    """Set the logits of forbidden tokens to minus infinity, in place; None allows all."""
    for row, allowed in enumerate(allowed_R):
        if allowed is not None:
            token_ids = torch.tensor(allowed)
            kept = logits_RV[row, token_ids]
            logits_RV[row] = -torch.inf
            logits_RV[row, token_ids] = kept


def score(logits_RV: Tensor, next_ids_R: Sequence[Sequence[int] | None]) -> dict[int, list[float]]:
    """Return the fp32 log-probabilities of each row's `next_ids` at temperature 1, by row.

    Leaves out rows whose `next_ids` are None.
    """
    return {
        row: logits_RV[row].float().log_softmax(-1)[torch.tensor(next_ids)].tolist()
        for row, next_ids in enumerate(next_ids_R)
        if next_ids is not None
    }


def sample(
    logits_RV: Tensor, temperatures_R: Tensor, uniforms_R: Tensor
) -> tuple[list[int], list[float]]:
    """Sample a token id for each row, with its log-probability under softmax(logits / temperature).

    Computes in fp32. A row's token is the first whose cumulated probability exceeds its uniform
    number in [0, 1): the inverse of the distribution function, ten times as fast as `multinomial`
    on a CPU. At temperature 0 it is the likeliest token, with its log-probability at temperature 1.
    Raises `FloatingPointError` if the logits are not finite.
    """
    logprobs_RV = _logprobs(logits_RV, temperatures_R)
    cumulated_RV = logprobs_RV.exp().cumsum(-1)
    total_R1 = cumulated_RV[:, -1:].contiguous()
    if not total_R1.isfinite().all():
        raise FloatingPointError("NaN or infinity in the model's logits")
    token_ids_R1 = torch.searchsorted(
        cumulated_RV, uniforms_R[:, None].float() * total_R1, right=True
    )
    # Rounding may reach the total itself: clamp to the last token with probability > 0.
    token_ids_R1 = torch.minimum(token_ids_R1, torch.searchsorted(cumulated_RV, total_R1))
    greedy_R = temperatures_R == 0
    if greedy_R.any():
        token_ids_R1 = torch.where(greedy_R[:, None], logprobs_RV.argmax(-1, True), token_ids_R1)
    logprobs_R = logprobs_RV.gather(1, token_ids_R1)[:, 0]
    return token_ids_R1[:, 0].tolist(), logprobs_R.tolist()


def top_logprobs(logits_RV: Tensor, temperatures_R: Tensor, count: int) -> TopLogprobs:
    """Return the `count` likeliest ids of each row in the distribution that `sample` draws from.

    Leaves out impossible ids.
    """
    logprobs_RV = _logprobs(logits_RV, temperatures_R)
    values_RK, ids_RK = logprobs_RV.topk(min(count, logprobs_RV.shape[1]))
    return [
        [(token, value) for token, value in zip(ids, values, strict=True) if value > -torch.inf]
        for ids, values in zip(ids_RK.tolist(), values_RK.tolist(), strict=True)
    ]


def _logprobs(logits_RV: Tensor, temperatures_R: Tensor) -> Tensor:
    scale_R1 = torch.where(temperatures_R == 0, 1.0, temperatures_R)[:, None]
    return (logits_RV.float() / scale_R1).log_softmax(-1)
