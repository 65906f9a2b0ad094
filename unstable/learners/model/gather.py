"""Gathering: rows by their places, of which one may be asked for many times."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_ROWS = 16384
"""Rows of a gradient that are in fp32 at a time."""


def gathered(rows: Tensor, places_N: Tensor) -> Tensor:
    """`rows` [T, ...] at these places [N, ...]; a row's gradients are summed in fp32.

    On a GPU, sums in a lower precision would be rounded at each addend, of which a shared prefix
    has many.
    """
    if rows.dtype is torch.float32:
        # Not `[...]`, whose gradient sums rows in an order that differs by run.
        return rows.index_select(0, places_N)
    found: Tensor = _Gathered.apply(rows, places_N)
    return found


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, places_N: Tensor) -> Tensor:
        ctx.save_for_backward(places_N)
        ctx.shape = rows.shape
        return rows.index_select(0, places_N)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:
        (places_N,) = ctx.saved_tensors
        sums = torch.zeros(ctx.shape, dtype=torch.float32, device=grad_N.device)
        for places, part in zip(places_N.split(_ROWS), grad_N.split(_ROWS), strict=True):
            sums.index_add_(0, places, part.float())
        return sums.to(grad_N.dtype), None
