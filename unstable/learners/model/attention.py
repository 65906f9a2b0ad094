"""Attention over a pack: registered with transformers, so that any of its models can use it."""

import inspect
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface

from unstable.learners.model.packing import Segments, gathered

ATTENTION = "packed_segments"
"""The name of this attention, for `attn_implementation`."""

_SHARES_HEADS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""True if the kernel supports grouped-query attention; torch 2.11 needs repeated key heads."""


@torch.compiler.disable  # lengths differ with every pack
def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: int | None,
    *,
    scaling: float,
    segments: Segments,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of each segment to its keys: query [1, H, T, D], key [1, G, T, D] -> [1, T, H, D].

    H query heads share G key heads in equal parts. `attention_mask` is what `_window` gave.
    `softcap` bounds the scores (https://arxiv.org/abs/2408.00118); `s_aux` [H] holds a score of
    each head that takes part in the softmax and has no value (https://arxiv.org/abs/2508.10925).
    """
    sinks_H = None if s_aux is None else s_aux.float()
    rule = LayerAttention(scaling, attention_mask, softcap, sinks_H)
    if query.is_cuda and not rule.alters_scores and query.dtype is torch.bfloat16:
        return _attend_varlen(query, key, value, rule, segments), None
    # On a CPU, fp32 is no slower than bfloat16 for segments of this size, and sums the
    # gradients of a shared prefix precisely.
    queries, keys, values = (heads[0].transpose(0, 1).float() for heads in (query, key, value))
    outputs_THD = _attend_shapes(queries, keys, values, rule, segments)
    return outputs_THD[None].to(query.dtype), None


def _window(*, local_size: int | None = None, **_: object) -> int | None:
    """Replace transformers' mask for a kind of layers by their window, if any.

    A query attends to itself and to the `local_size` - 1 keys before it.
    """
    return local_size


class LayerAttention(NamedTuple):
    """The attention of a layer: window, cap, scale and sinks."""

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None

    @property
    def alters_scores(self) -> bool:
        """True if scores are more than scaled products, which no kernel computes."""
        return self.softcap is not None or self.sinks_H is not None


def _attend_shapes(
    query_THD: Tensor, key_TGD: Tensor, value_TGD: Tensor, rule: LayerAttention, segments: Segments
) -> Tensor:
    """Attention of the segments of each shape at once, [T, H, D]."""
    queries = query_THD.split([s.num_segments * s.num_queries for s in segments.shapes])
    sizes = [s.num_segments * s.num_keys for s in segments.shapes]
    keys, values = (_keys(heads, segments).split(sizes) for heads in (key_TGD, value_TGD))
    outputs = []
    for shape, *parts in zip(segments.shapes, queries, keys, values, strict=True):
        q, k, v = (rows.unflatten(0, (shape.num_segments, -1)).transpose(1, 2) for rows in parts)
        if rule.alters_scores:
            output = _attend_plainly(q, k, v, rule, segments.mask(shape, rule.window))
        else:
            whole = shape.sees_all(rule.window)
            masked = not whole or not (shape.alone or shape.num_queries == 1)
            output = F.scaled_dot_product_attention(
                *(q, k, v),
                attn_mask=segments.mask(shape, rule.window) if masked else None,
                is_causal=whole and shape.alone,
                scale=rule.scaling,
                enable_gqa=True,
            )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs)


def _attend_plainly(
    query_SHQD: Tensor, key_SGKD: Tensor, value_SGKD: Tensor, rule: LayerAttention, mask_QK: Tensor
) -> Tensor:
    """Attention whose scores are bounded or have sinks, which no kernel computes: [S, H, Q, D]."""
    groups = key_SGKD.shape[1]
    query = query_SHQD.unflatten(1, (groups, -1))  # [S, G, H / G, Q, D]
    scores = query @ key_SGKD[:, :, None].transpose(-1, -2) * rule.scaling
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~mask_QK, -torch.inf)
    if rule.sinks_H is not None:
        sinks = rule.sinks_H.view(groups, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    shares = scores.softmax(-1)[..., : key_SGKD.shape[2]]
    return (shares @ value_SGKD[:, :, None]).flatten(1, 2)


def _keys(heads_TGD: Tensor, segments: Segments) -> Tensor:
    """The rows [K, G, D] of the segments' keys; without sharing, the T rows themselves."""
    return gathered(heads_TGD, segments.keys_K) if segments.shared else heads_TGD


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, rule: LayerAttention, segments: Segments
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
        scale=rule.scaling,
        # Keys to the left and right of a query; causal, aligned to a segment's last key.
        window_size=(-1 if rule.window is None else rule.window - 1, 0),
        **options,
    )
    assert isinstance(output_THD, Tensor)  # a tuple only with return_aux
    return output_THD[None]


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, _window)
