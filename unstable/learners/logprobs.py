"""Log-probabilities of chosen tokens over a large vocabulary, without ever holding all logits."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 256
"""Rows whose logits are held at a time: 50 MB in fp32 at 49k words."""


def selected_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor,
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[Tensor, Tensor]:
    """Logprobs [N] of the targets, and the entropies [N] of their distributions, in nats.

    The logits hidden @ head.T are divided by the temperature; the softmax is taken in fp32, or in
    float64 where the inputs are. Only `hidden_ND` gets a gradient, and only from the logprobs.
    """
    logprobs_N, entropies_N = _SelectedLogprobs.apply(
        hidden_ND, head_VD, targets_N, temperatures_N, chunk_rows
    )
    return logprobs_N, entropies_N


class _SelectedLogprobs(torch.autograd.Function):
    """Backward computes the logits of each chunk again, so that none are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for hidden, targets, temperatures in zip(
            *(rows.split(chunk_rows) for rows in (hidden_ND, targets_N, temperatures_N)),
            strict=True,
        ):
            logprobs_NV = _logits(hidden, head_VD, temperatures).log_softmax(-1)
            logprobs.append(logprobs_NV.gather(1, targets[:, None])[:, 0])
            entropies.append(-torch.linalg.vecdot(logprobs_NV.exp(), logprobs_NV))
        ctx.save_for_backward(hidden_ND, head_VD, targets_N, temperatures_N)
        ctx.chunk_rows = chunk_rows
        entropies_N = torch.cat(entropies)
        ctx.mark_non_differentiable(entropies_N)
        return torch.cat(logprobs), entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        hidden_ND, head_VD, targets_N, temperatures_N = ctx.saved_tensors
        grads = []
        for hidden, targets, temperatures, grad in zip(
            *(x.split(ctx.chunk_rows) for x in (hidden_ND, targets_N, temperatures_N, grad_N)),
            strict=True,
        ):
            # d logprob / d logits = (onehot(target) - softmax) / temperature
            grad_NV = _logits(hidden, head_VD, temperatures).softmax(-1).mul_(-grad[:, None])
            grad_NV.scatter_add_(1, targets[:, None], grad[:, None])
            grad_NV.div_(temperatures[:, None])
            grads.append(grad_NV.to(head_VD.dtype) @ head_VD)
        return torch.cat(grads), None, None, None, None


def _logits(hidden_ND: Tensor, head_VD: Tensor, temperatures_N: Tensor) -> Tensor:
    logits_NV = F.linear(hidden_ND, head_VD)
    precision = torch.promote_types(logits_NV.dtype, torch.float32)
    return logits_NV.to(precision, copy=True).div_(temperatures_N[:, None])
