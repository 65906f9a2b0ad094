"""Log-probabilities of chosen tokens over a large vocabulary, without ever holding all logits."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 256
"""Rows whose logits are held at a time: 50 MB in fp32 at 49k words."""


class Selected(NamedTuple):
    """Figures of N rows, in nats; fp32, or float64 where the inputs are."""

    logprobs_N: Tensor  # of the targets
    entropies_N: Tensor  # of the distributions that these are from
    kl_N: Tensor | None  # KL(these distributions || the reference's)


def selected_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor,
    chunk_rows: int = CHUNK_ROWS,
    *,
    entropy: bool = False,
    reference_ND: Tensor | None = None,
) -> Selected:
    """Logprobs of the targets, entropies, and the KL to where the reference's hidden states lead.

    The logits hidden @ head.T are divided by the temperature; the softmax is taken in fp32, or in
    float64 where the inputs are. Only `hidden_ND` gets a gradient: from the logprobs, with
    `entropy` from the entropies, and from the KL where there is a reference.
    """
    if reference_ND is not None:
        chunk_rows = max(1, chunk_rows // 2)  # a row has twice the logits
    return Selected(
        *_SelectedLogprobs.apply(
            hidden_ND, head_VD, targets_N, temperatures_N, chunk_rows, entropy, reference_ND
        )
    )


class _SelectedLogprobs(torch.autograd.Function):
    """Forward keeps each wanted figure's derivative, a row as large as the hidden state.

    It is (d figure / d logits) @ head / temperature, so neither logits nor hidden states are kept,
    and backward has no logits to compute again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        chunk_rows: int,
        entropy: bool,
        reference_ND: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[0]
        chunks = []
        for start in range(0, max(1, len(hidden_ND)), chunk_rows):
            rows = slice(start, start + chunk_rows)
            reference = None if reference_ND is None else reference_ND[rows]
            chunks.append(
                _score(
                    (hidden_ND[rows], head_VD, targets_N[rows], temperatures_N[rows], reference),
                    slopes=needs_grad,
                    entropy_slopes=needs_grad and entropy,
                )
            )
        columns = [_joined(parts) for parts in zip(*chunks, strict=True)]
        figures, derivatives = columns[:3], columns[3:]
        ctx.save_for_backward(*derivatives)
        if not entropy:
            ctx.mark_non_differentiable(figures[1])
        return tuple(figures)

    @staticmethod
    def backward(ctx: Any, *gradients_N: Tensor) -> tuple[Tensor | None, ...]:
        total_ND = None
        for grad_N, derivatives_ND in zip(gradients_N, ctx.saved_tensors, strict=True):
            if derivatives_ND is not None:
                part_ND = (grad_N[:, None] * derivatives_ND).to(derivatives_ND.dtype)
                total_ND = part_ND if total_ND is None else total_ND.add_(part_ND)
        return total_ND, *[None] * 6


_Rows = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""Hidden states, head, targets, temperatures and the reference's hidden states."""


def _score(rows: _Rows, *, slopes: bool, entropy_slopes: bool) -> tuple[Tensor | None, ...]:
    """A chunk's logprobs, entropies and KLs, and the derivatives of each, where they are wanted.

    d logprob / d logit_j = [j = target] - p_j; d entropy = -p_j (log p_j + entropy);
    d KL = p_j (log p_j - log q_j - KL).
    """
    hidden_ND, head_VD, targets_N, temperatures_N, reference_ND = rows

    def logprobs(states_ND: Tensor) -> Tensor:
        # Divided by fp32 temperatures, logits of a lower precision become fp32.
        return (F.linear(states_ND, head_VD) / temperatures_N[:, None]).log_softmax(-1)

    def derivative(slopes_NV: Tensor, sign: int = 1) -> Tensor:
        products_ND = slopes_NV.to(head_VD.dtype) @ head_VD
        return (products_ND / (sign * temperatures_N[:, None])).to(hidden_ND.dtype)

    logprobs_NV = logprobs(hidden_ND)
    p_NV = logprobs_NV.exp()
    kl_N = of_kl = of_entropies = of_logprobs = None
    if reference_ND is not None:
        differences_NV = logprobs_NV - logprobs(reference_ND.to(head_VD.dtype))
        kl_N = torch.linalg.vecdot(p_NV, differences_NV)
        if slopes:
            of_kl = derivative(differences_NV.sub_(kl_N[:, None]).mul_(p_NV))
    logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
    entropies_N = -torch.linalg.vecdot(p_NV, logprobs_NV)
    if entropy_slopes:
        of_entropies = derivative(logprobs_NV.add_(entropies_N[:, None]).mul_(p_NV), sign=-1)
    if slopes:
        # As one product, so that what a likely target leaves over is not lost to rounding.
        p_NV[torch.arange(len(targets_N), device=targets_N.device), targets_N] -= 1
        of_logprobs = derivative(p_NV, sign=-1)
    return logprobs_N, entropies_N, kl_N, of_logprobs, of_entropies, of_kl


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """Chunks in a row; None where there are none."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
