"""Attention over a pack: registered with transformers, so that any of its models can use it."""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from unstable.learners.model.packing import Segments, gathered

ATTENTION = "packed_segments"
"""The name of this attention, for `attn_implementation`."""

_SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Whether the kernel shares key heads among query heads; torch 2.11 repeats them before it."""


@torch.compiler.disable  # its list of lengths differs with every pack
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    segments: Segments,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of each segment to its keys: query [1, H, T, D], key [1, G, T, D] -> [1, T, H, D].

    H query heads share G key heads in equal parts.
    """
    if query.is_cuda and query.dtype is torch.bfloat16:
        return _attend_varlen(query, key, value, scaling, segments), None
    # On a CPU, fp32 is no slower than bfloat16 for segments of this size, and it sums up the
    # gradients of a shared prefix well.
    queries, keys, values = (heads[0].transpose(0, 1).float() for heads in (query, key, value))
    outputs_THD = _attend_shapes(queries, keys, values, scaling, segments)
    return outputs_THD[None].to(query.dtype), None


def _attend_shapes(
    query_THD: Tensor, key_TGD: Tensor, value_TGD: Tensor, scaling: float, segments: Segments
) -> Tensor:
    """Attention of the segments of each shape at once, [T, H, D]."""
    queries = query_THD.split([s.num_segments * s.num_queries for s in segments.shapes])
    sizes = [s.num_segments * s.num_keys for s in segments.shapes]
    keys, values = (_keys(heads, segments).split(sizes) for heads in (key_TGD, value_TGD))
    outputs = []
    shapes = zip(segments.shapes, segments.masks, queries, keys, values, strict=True)
    for shape, mask, *parts in shapes:
        q, k, v = (rows.unflatten(0, (shape.num_segments, -1)).transpose(1, 2) for rows in parts)
        output = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=shape.alone, scale=scaling, enable_gqa=True
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _keys(heads_TGD: Tensor, segments: Segments) -> Tensor:
    """The rows [K, G, D] of the segments' keys; where nothing is shared, those of T themselves."""
    return gathered(heads_TGD, segments.keys_K) if segments.shared else heads_TGD


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, segments: Segments
) -> Tensor:
    keys_KGD, values_KGD = (_keys(heads[0].transpose(0, 1), segments) for heads in (key, value))
    options: dict[str, Any] = {"enable_gqa": True} if _SHARES_HEADS else {}
    if not _SHARES_HEADS:
        repeats = query.shape[1] // key.shape[1]
        keys_KGD, values_KGD = (
            heads.repeat_interleave(repeats, dim=1) for heads in (keys_KGD, values_KGD)
        )
    output_THD = varlen_attn(
        query[0].transpose(0, 1),
        keys_KGD,
        values_KGD,
        segments.query_bounds,
        segments.key_bounds,
        max(segments.query_lengths),
        max(segments.key_lengths),
        scale=scaling,
        window_size=(-1, 0),  # causal, aligned to a segment's last key
        **options,
    )
    assert isinstance(output_THD, Tensor)  # and not a tuple, which is for return_aux
    return output_THD[None]


AttentionInterface.register(ATTENTION, attend)
