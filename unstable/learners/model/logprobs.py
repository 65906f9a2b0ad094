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
    """Forward keeps each logprob's derivative, a row as large as the hidden state it stands for.

    d logprob / d hidden = (head[target] - softmax @ head) / temperature. So neither logits nor
    hidden states are kept, and backward has no logits to compute again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        chunk_rows: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, derivatives = [], [], []
        for hidden, targets, temperatures in zip(
            *(rows.split(chunk_rows) for rows in (hidden_ND, targets_N, temperatures_N)),
            strict=True,
        ):
            # Divided by fp32 temperatures, logits of a lower precision become fp32.
            logits_NV = F.linear(hidden, head_VD) / temperatures[:, None]
            logprobs_NV = logits_NV.log_softmax(-1)
            probabilities_NV = logprobs_NV.exp()
            logprobs.append(logprobs_NV.gather(1, targets[:, None])[:, 0])
            entropies.append(-torch.linalg.vecdot(probabilities_NV, logprobs_NV))
            if ctx.needs_input_grad[0]:
                # As one product, so that what a likely target leaves over is not lost to rounding.
                probabilities_NV[torch.arange(len(targets), device=targets.device), targets] -= 1
                products_ND = probabilities_NV.to(head_VD.dtype) @ head_VD
                derivatives.append((products_ND / -temperatures[:, None]).to(hidden.dtype))
        if derivatives:
            ctx.save_for_backward(torch.cat(derivatives))
        entropies_N = torch.cat(entropies)
        ctx.mark_non_differentiable(entropies_N)
        return torch.cat(logprobs), entropies_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        (derivatives_ND,) = ctx.saved_tensors
        return (grad_N[:, None] * derivatives_ND).to(derivatives_ND.dtype), None, None, None, None
