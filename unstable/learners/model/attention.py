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
    keys = key.float().index_select(2, segments.keys_K)
    values = value.float().index_select(2, segments.keys_K)
    outputs = [
        _attend_segment(*segment, scaling)
        for segment in zip(
            query.float().split(segments.query_lengths, dim=2),
            keys.split(segments.key_lengths, dim=2),
            values.split(segments.key_lengths, dim=2),
            strict=True,
        )
    ]
    return torch.cat(outputs, dim=2).transpose(1, 2).to(query.dtype), None


def _attend_segment(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    num_queries, num_keys = query.shape[2], key.shape[2]
    alone = num_queries == num_keys
    mask = None
    if not alone:
        mask = query.new_ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=alone, scale=scaling, enable_gqa=True
    )


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, segments: Segments
) -> Tensor:
    # torch 2.11 has no enable_gqa here, so the key heads are repeated.
    repeats = query.shape[1] // key.shape[1]
    keys_KHD, values_KHD = (
        heads[0, :, segments.keys_K].repeat_interleave(repeats, dim=0).transpose(0, 1)
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
