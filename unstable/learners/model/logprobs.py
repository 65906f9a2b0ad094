"""Log-probabilities of chosen tokens over a large vocabulary, without ever holding all logits."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unstable.config import Divergence

CHUNK_ROWS = 256
"""Rows whose logits are held at a time: 50 MB in fp32 at 49k words."""


class Aim(NamedTuple):
    """Another policy's distributions q, which the policy's own p are compared with.

    reverse: KL(p || q). forward: KL(q || p). jsd: the generalised Jensen-Shannon divergence
    beta KL(q || m) + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p, of GKD,
    https://arxiv.org/abs/2306.13649.
    """

    hidden_ND: Tensor  # its last hidden states
    divergence: Divergence = "reverse"
    beta: float = 0.5

    def rows(self, rows: slice | Tensor) -> "Aim":
        """That of some rows."""
        return self._replace(hidden_ND=self.hidden_ND[rows])


class Selected(NamedTuple):
    """Figures of N rows, in nats; fp32, or float64 where the inputs are."""

    logprobs_N: Tensor  # of the targets
    entropies_N: Tensor  # of the distributions that these are from
    divergences: dict[str, Tensor]  # [N], of these distributions from each aim's


def selected_logprobs(
    hidden_ND: Tensor,
    head_VD: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor,
    chunk_rows: int = CHUNK_ROWS,
    *,
    entropy: bool = False,
    aims: Mapping[str, Aim] | None = None,
) -> Selected:
    """Logprobs of the targets, entropies, and divergences from where the aims' states lead.

    The logits hidden @ head.T are divided by the temperature; the softmax is taken in fp32, or in
    float64 where the inputs are. Only `hidden_ND` gets a gradient: from the logprobs, with
    `entropy` from the entropies, and from the divergences.
    """
    aims = aims or {}
    chunk_rows = max(1, chunk_rows // (1 + len(aims)))  # a row has logits for each aim too
    logprobs_N, entropies_N, *divergences = _SelectedLogprobs.apply(
        hidden_ND, head_VD, targets_N, temperatures_N, chunk_rows, entropy, tuple(aims.values())
    )
    return Selected(logprobs_N, entropies_N, dict(zip(aims, divergences, strict=True)))


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
        aims: tuple[Aim, ...],
    ) -> tuple[Tensor | None, ...]:
        needs_grad = ctx.needs_input_grad[0]
        chunks = []
        for start in range(0, max(1, len(hidden_ND)), chunk_rows):
            rows = slice(start, start + chunk_rows)
            others = [aim.rows(rows) for aim in aims]
            chunks.append(
                _score(
                    (hidden_ND[rows], head_VD, targets_N[rows], temperatures_N[rows], others),
                    slopes=needs_grad,
                    entropy_slopes=needs_grad and entropy,
                )
            )
        columns = [_joined(parts) for parts in zip(*chunks, strict=True)]
        figures, derivatives = columns[: 2 + len(aims)], columns[2 + len(aims) :]
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


_Rows = tuple[Tensor, Tensor, Tensor, Tensor, list[Aim]]
"""Hidden states, head, targets, temperatures and the aims."""


def _score(rows: _Rows, *, slopes: bool, entropy_slopes: bool) -> tuple[Tensor | None, ...]:
    """A chunk's logprobs, entropies and divergences, and the derivatives of each, where wanted.

    d logprob / d logit_j = [j = target] - p_j; d entropy = -p_j (log p_j + entropy).
    """
    hidden_ND, head_VD, targets_N, temperatures_N, aims = rows

    def logprobs(states_ND: Tensor) -> Tensor:
        # Divided by fp32 temperatures, logits of a lower precision become fp32.
        return (F.linear(states_ND, head_VD) / temperatures_N[:, None]).log_softmax(-1)

    def derivative(slopes_NV: Tensor, sign: int = 1) -> Tensor:
        products_ND = slopes_NV.to(head_VD.dtype) @ head_VD
        return (products_ND / (sign * temperatures_N[:, None])).to(hidden_ND.dtype)

    logprobs_NV = logprobs(hidden_ND)
    p_NV = logprobs_NV.exp()
    divergences, of_divergences = [], []
    of_entropies = of_logprobs = None
    for aim in aims:
        other_NV = logprobs(aim.hidden_ND.to(head_VD.dtype))
        divergence_N, slopes_NV = _divergence(logprobs_NV, p_NV, other_NV, aim)
        divergences.append(divergence_N)
        of_divergences.append(derivative(slopes_NV) if slopes else None)
    logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
    entropies_N = -torch.linalg.vecdot(p_NV, logprobs_NV)
    if entropy_slopes:
        of_entropies = derivative(logprobs_NV.add_(entropies_N[:, None]).mul_(p_NV), sign=-1)
    if slopes:
        # As one product, so that what a likely target leaves over is not lost to rounding.
        p_NV[torch.arange(len(targets_N), device=targets_N.device), targets_N] -= 1
        of_logprobs = derivative(p_NV, sign=-1)
    return logprobs_N, entropies_N, *divergences, of_logprobs, of_entropies, *of_divergences


def _divergence(
    logprobs_NV: Tensor, p_NV: Tensor, other_NV: Tensor, aim: Aim
) -> tuple[Tensor, Tensor]:
    """Divergences [N] of p from an aim's q, whose logarithms are `other_NV`, and their slopes.

    Slopes [N, V] are by the logits: p (log p/q - KL) of the reverse KL, p - q of the forward one,
    and (1 - beta) p (log p/m - KL(p || m)) of the third. `other_NV` is written over.
    """
    if aim.divergence == "forward":
        q_NV = other_NV.exp()
        return torch.linalg.vecdot(q_NV, other_NV.sub_(logprobs_NV)), p_NV - q_NV
    if aim.divergence == "reverse":
        ratios_NV = other_NV.neg_().add_(logprobs_NV)
        kl_N = torch.linalg.vecdot(p_NV, ratios_NV)
        return kl_N, ratios_NV.sub_(kl_N[:, None]).mul_(p_NV)
    beta, q_NV = aim.beta, other_NV.exp()
    # Of logarithms, which are finite where both probabilities are too small to be written.
    mixed_NV = torch.logaddexp(other_NV + math.log(beta), logprobs_NV + math.log1p(-beta))
    of_other_N = torch.linalg.vecdot(q_NV, other_NV.sub_(mixed_NV))
    ratios_NV = mixed_NV.neg_().add_(logprobs_NV)
    kl_N = torch.linalg.vecdot(p_NV, ratios_NV)
    slopes_NV = ratios_NV.sub_(kl_N[:, None]).mul_(p_NV).mul_(1 - beta)
    return beta * of_other_N + (1 - beta) * kl_N, slopes_NV


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """Chunks in a row; None where there are none."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
