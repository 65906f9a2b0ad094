"""Attention over a pack: registered with transformers, so that any of its models can use it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from unstable.learners.model.packing import Segments

ATTENTION = "packed_segments"
"""The name of this attention, for `attn_implementation`."""


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
    num_alone = sum(s.num_segments * s.num_keys for s in segments.shapes if s.alone)
    keys, values = (
        _copied(heads, segments.keys_K, num_alone).split(sizes) for heads in (key_TGD, value_TGD)
    )
    outputs = []
    shapes = zip(segments.shapes, segments.masks, queries, keys, values, strict=True)
    for shape, mask, *parts in shapes:
        q, k, v = (rows.unflatten(0, (shape.num_segments, -1)).transpose(1, 2) for rows in parts)
        output = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=shape.alone, scale=scaling, enable_gqa=True
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _copied(heads_TGD: Tensor, keys_K: Tensor, num_alone: int) -> Tensor:
    """The rows [K, G, D] of keys; where all are of segments alone, those of T in its order."""
    return heads_TGD if num_alone == len(keys_K) else heads_TGD.index_select(0, keys_K)


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, segments: Segments
) -> Tensor:
    # torch 2.11 has no enable_gqa here, so the key heads are repeated.
    repeats = query.shape[1] // key.shape[1]
    keys_KHD, values_KHD = (
        heads[0].index_select(1, segments.keys_K).repeat_interleave(repeats, dim=0).transpose(0, 1)
        for heads in (key, value)
    )
    output_THD = varlen_attn(
        query[0].transpose(0, 1),
        keys_KHD,
        values_KHD,
        segments.query_bounds,
        segments.key_bounds,
        max(segments.query_lengths),
        max(segments.key_lengths),
        scale=scaling,
        window_size=(-1, 0),  # causal, aligned to a segment's last key
    )
    assert isinstance(output_THD, Tensor)  # and not a tuple, which is for return_aux
    return output_THD[None]


AttentionInterface.register(ATTENTION, attend)
