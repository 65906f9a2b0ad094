"""Log-probabilities of chosen tokens over a large vocabulary, without storing all logits."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstable.config import Divergence
from unstable.learners.model.head import Head

CHUNK_ROWS = 256
"""Rows of logits per chunk: 50 MB in fp32 for a vocabulary of 49k tokens."""


class DivergenceTarget(NamedTuple):
    """Another policy's distributions q, which the policy's own p are compared with; a constant.

    reverse: KL(p || q). forward: KL(q || p). jsd: the generalized Jensen-Shannon divergence
    beta KL(q || m) + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p, of GKD,
    https://arxiv.org/abs/2306.13649.
    """

    hidden_ND: Tensor  # its last hidden states
    divergence: Divergence = "reverse"
    beta: float = 0.5
    head: Head | None = None  # None: the policy's head, which is then frozen

    def rows(self, rows: slice | Tensor) -> "DivergenceTarget":
        """Return the target of some rows."""
        return self._replace(hidden_ND=self.hidden_ND[rows])


class Selected(NamedTuple):
    """Figures of N rows, in nats; fp32, or float64 where the inputs are."""

    logprobs_N: Tensor  # of the targets
    entropies_N: Tensor  # of the next-token distributions
    divergences: dict[str, Tensor]  # [N], from each target's distributions


def selected_logprobs(
    hidden_ND: Tensor,
    head: Head,
    targets_N: Tensor,
    temperatures_N: Tensor,
    chunk_rows: int = CHUNK_ROWS,
    *,
    entropy: bool = False,
    aims: Mapping[str, DivergenceTarget] | None = None,
    chunk: "type[Chunk] | None" = None,
) -> Selected:
    """Compute logprobs of the targets, entropies, and divergences from the aims.

    The head's logits are divided by the temperature; the softmax is taken in fp32, or in float64
    where the inputs are. `hidden_ND` gets a gradient, and so do the head's weight and bias where
    they require one: from the logprobs, with `entropy` from the entropies, and from the
    divergences. `chunk` may be a `compiled_chunk`.
    """
    aims = aims or {}
    assert not head.trained or all(aim.head is not None for aim in aims.values())
    held = 1 + len(aims) + (head.softcap is not None)  # tensors of logits per row
    chunk_rows = max(1, chunk_rows // held)
    function = _OfTrainedHead if head.trained and torch.is_grad_enabled() else _OfHead
    logprobs_N, entropies_N, *divergences = function.apply(
        hidden_ND,
        head.weight_VD,
        head.bias_V,
        _Rest(
            chunk or Chunk,
            head,
            targets_N,
            temperatures_N,
            chunk_rows,
            entropy,
            tuple(aims.values()),
        ),
    )
    return Selected(logprobs_N, entropies_N, dict(zip(aims, divergences, strict=True)))


class _Rest(NamedTuple):
    """Inputs without a gradient."""

    chunk: "type[Chunk]"
    head: Head
    targets_N: Tensor
    temperatures_N: Tensor
    chunk_rows: int
    entropy: bool  # True: entropies have a gradient
    aims: tuple[DivergenceTarget, ...]

    def chunks(self, hidden_ND: Tensor) -> Iterator[tuple[slice, "Chunk"]]:
        """Yield a few rows at a time; an empty chunk if no rows exist."""
        for start in range(0, max(1, len(hidden_ND)), self.chunk_rows):
            rows = slice(start, start + self.chunk_rows)
            aims = [aim.rows(rows) for aim in self.aims]
            given = (hidden_ND[rows], self.targets_N[rows], self.temperatures_N[rows])
            yield rows, self.chunk(self.head, *given, aims)


class _OfHead(torch.autograd.Function):
    """Forward keeps each wanted figure's derivative, a row as large as the hidden state.

    It is (d figure / d logits) @ head / temperature, so neither logits nor hidden states are kept,
    and backward has no logits to compute again.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, rest: _Rest
    ) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[0]
        scored = [
            chunk.derived(entropy=rest.entropy) if wanted else chunk.score()
            for _, chunk in rest.chunks(hidden_ND)
        ]
        columns = [_joined(parts) for parts in zip(*scored, strict=True)]
        figures, derivatives = columns[: 2 + len(rest.aims)], columns[2 + len(rest.aims) :]
        ctx.save_for_backward(*derivatives)
        if not rest.entropy:
            ctx.mark_non_differentiable(figures[1])
        return tuple(figures)

    @staticmethod
    def backward(ctx: Any, *gradients_N: Tensor) -> tuple[Tensor | None, ...]:
        total_ND = None
        for grad_N, derivatives_ND in zip(gradients_N, ctx.saved_tensors, strict=True):
            if derivatives_ND is not None:
                part_ND = (grad_N[:, None] * derivatives_ND).to(derivatives_ND.dtype)
                total_ND = part_ND if total_ND is None else total_ND.add_(part_ND)
        return total_ND, None, None, None


class _OfTrainedHead(torch.autograd.Function):
    """Forward keeps the hidden states; backward computes the logits again, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, rest: _Rest
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V)
        ctx.rest = rest
        scored = [chunk.score() for _, chunk in rest.chunks(hidden_ND)]
        figures = [_joined(parts) for parts in zip(*scored, strict=True)]
        if not rest.entropy:
            ctx.mark_non_differentiable(figures[1])
        return tuple(figures)

    @staticmethod
    def backward(ctx: Any, *gradients_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V = ctx.saved_tensors
        precision = torch.promote_types(weight_VD.dtype, torch.float32)  # for sums, at least fp32
        grad_VD = torch.zeros_like(weight_VD, dtype=precision)
        grad_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=precision)
        states_ND = []
        for rows, chunk in ctx.rest.chunks(hidden_ND):
            gradients = [grad_N[rows] for grad_N in gradients_N]
            slopes_NV = chunk.total(gradients, entropy=ctx.rest.entropy).to(weight_VD.dtype)
            states_ND.append((slopes_NV @ weight_VD).to(hidden_ND.dtype))
            grad_VD += slopes_NV.T @ chunk.hidden_ND.to(weight_VD.dtype)
            if grad_V is not None:
                grad_V += slopes_NV.sum(0)
        of_bias = None if grad_V is None else grad_V.to(weight_VD.dtype)
        return torch.cat(states_ND), grad_VD.to(weight_VD.dtype), of_bias, None


_Take = Callable[[int, Tensor, int], None]
"""Receives a figure's index, its derivatives [N, V] by the scaled logits, and their sign."""


class Chunk:
    """Some rows: their figures, and the figures' slopes."""

    def __init__(
        self,
        head: Head,
        hidden_ND: Tensor,
        targets_N: Tensor,
        temperatures_N: Tensor,
        aims: list[DivergenceTarget],
    ) -> None:
        self.hidden_ND = hidden_ND
        self._head, self._targets_N, self._temperatures_N = head, targets_N, temperatures_N
        self._aims = aims
        self._bends_NV: Tensor | None = None  # derivatives of the soft cap

    def score(self, take: _Take | None = None, *, entropy: bool = False) -> tuple[Tensor, ...]:
        """Logprobs, entropies and divergences; `take` receives the slopes of each.

        Slopes of entropies only with `entropy`. d logprob / d logit_j = [j = target] - p_j;
        d entropy = -p_j (log p_j + entropy). They are overwritten afterwards.
        """
        logprobs_NV, self._bends_NV = self._head.logprobs(self.hidden_ND, self._temperatures_N)
        p_NV = logprobs_NV.exp()
        divergences = []
        for index, aim in enumerate(self._aims, 2):
            other_NV, _ = (aim.head or self._head).logprobs(aim.hidden_ND, self._temperatures_N)
            divergence_N, slopes_NV = _divergence(logprobs_NV, p_NV, other_NV, aim)
            divergences.append(divergence_N)
            if take is not None:
                take(index, slopes_NV, 1)
        targets_N = self._targets_N
        logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
        entropies_N = -torch.linalg.vecdot(p_NV, logprobs_NV)
        if take is not None and entropy:
            take(1, logprobs_NV.add_(entropies_N[:, None]).mul_(p_NV), -1)
        if take is not None:
            # In one product: 1 - p of a likely target would be lost to rounding.
            p_NV[torch.arange(len(targets_N), device=targets_N.device), targets_N] -= 1
            take(0, p_NV, -1)
        return logprobs_N, entropies_N, *divergences

    def derived(self, *, entropy: bool) -> tuple[Tensor | None, ...]:
        """The figures, and after them the derivative [N, D] of each by the hidden states."""
        derivatives: list[Tensor | None] = [None] * (2 + len(self._aims))
        weight_VD = self._head.weight_VD

        def take(index: int, slopes_NV: Tensor, sign: int) -> None:
            products_ND = self._bent(slopes_NV).to(weight_VD.dtype) @ weight_VD
            divisors_N1 = self._head.divisors(sign * self._temperatures_N)
            derivatives[index] = (products_ND / divisors_N1).to(self.hidden_ND.dtype)

        return *self.score(take, entropy=entropy), *derivatives

    def total(self, gradients_N: Sequence[Tensor], *, entropy: bool) -> Tensor:
        """The figures' slopes [N, V] by h W' + b, times their gradients and summed up."""
        totals: list[Tensor] = []

        def take(index: int, slopes_NV: Tensor, sign: int) -> None:
            part_NV = slopes_NV * (sign * gradients_N[index])[:, None]
            totals[:] = [totals[0].add_(part_NV) if totals else part_NV]

        self.score(take, entropy=entropy)
        return self._bent(totals[0]) / self._head.divisors(self._temperatures_N)

    def _bent(self, slopes_NV: Tensor) -> Tensor:
        """Convert slopes by the soft cap's output to slopes by its input."""
        return slopes_NV if self._bends_NV is None else slopes_NV * self._bends_NV


def compiled_chunk() -> type[Chunk]:
    """Return a subclass of `Chunk` whose passes over the logits `torch.compile` fuses."""
    names = ("score", "derived", "total")
    return type("CompiledChunk", (Chunk,), {n: torch.compile(getattr(Chunk, n)) for n in names})


def _divergence(
    logprobs_NV: Tensor, p_NV: Tensor, other_NV: Tensor, aim: DivergenceTarget
) -> tuple[Tensor, Tensor]:
    """Divergences [N] of p from an aim's q, whose logarithms are `other_NV`, and their slopes.

    Slopes [N, V] are by the logits: p (log p/q - KL) of the reverse KL, p - q of the forward one,
    and (1 - beta) p (log p/m - KL(p || m)) of the third. `other_NV` is overwritten.
    """
    if aim.divergence == "forward":
        q_NV = other_NV.exp()
        return torch.linalg.vecdot(q_NV, other_NV.sub_(logprobs_NV)), p_NV - q_NV
    if aim.divergence == "reverse":
        ratios_NV = other_NV.neg_().add_(logprobs_NV)
        kl_N = torch.linalg.vecdot(p_NV, ratios_NV)
        return kl_N, ratios_NV.sub_(kl_N[:, None]).mul_(p_NV)
    beta, q_NV = aim.beta, other_NV.exp()
    # In log space, since both probabilities may underflow.
    mixed_NV = torch.logaddexp(other_NV + math.log(beta), logprobs_NV + math.log1p(-beta))
    of_other_N = torch.linalg.vecdot(q_NV, other_NV.sub_(mixed_NV))
    ratios_NV = mixed_NV.neg_().add_(logprobs_NV)
    kl_N = torch.linalg.vecdot(p_NV, ratios_NV)
    slopes_NV = ratios_NV.sub_(kl_N[:, None]).mul_(p_NV).mul_(1 - beta)
    return beta * of_other_N + (1 - beta) * kl_N, slopes_NV


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    """Concatenate chunks; None for no chunks."""
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None
