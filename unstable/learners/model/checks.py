"""Check that a model's own forward handles padded rows correctly, by running it."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from unstable.config import ConfigError
from unstable.learners.model.head import Head
from unstable.learners.model.padding import pad_samples
from unstable.models.base import decoder_of
from unstable.models.quantize import is_quantized
from unstable.types import TokenSample

_LENGTHS = (7, 4)
"""Lengths of the compared rows, one of which is padded."""
_SHORTER = 2
"""Tokens dropped at a row's end, which must not change the states before them."""
_WITHIN = {torch.float32: 1e-3}
_WITHIN_ELSE = 0.1
"""Relative tolerances for rounding: of fp32, and of lower precisions."""


@torch.no_grad()
def check_padded(model: PreTrainedModel) -> None:
    """Raise `ConfigError` if the states of padded rows or the head's logits are not the model's.

    Compares the states of padded rows with those of each prefix alone, and logits with the model's
    own. Skips a model without a device, and a quantized one.
    """
    if any(tensor.is_meta for tensor in model.parameters()):
        return
    if any(is_quantized(module) for module in model.modules()):
        return
    text = model.config.get_text_config()
    rows = [[(3 + 5 * i + n) % text.vocab_size for i in range(n)] for n in _LENGTHS]
    try:
        _check_states(model, rows)
        _check_logits(model, rows[0])
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise _refused(model, f"its forward fails with token ids alone ({reason})") from error


def _check_states(model: PreTrainedModel, rows: list[list[int]]) -> None:
    decoder = decoder_of(model)
    padded = pad_samples([TokenSample(prompt_ids=ids, segments=()) for ids in rows]).to(
        model.device
    )
    states_SLD = decoder(**padded.arguments(), use_cache=False).last_hidden_state
    for left_out in (0, _SHORTER):
        gaps = []
        for ids, states_LD in zip(rows, states_SLD, strict=True):
            alone = torch.tensor([ids[: len(ids) - left_out]], device=model.device)
            expected_D = decoder(input_ids=alone, use_cache=False).last_hidden_state[0, -1]
            gaps.append(_gap(states_LD[alone.shape[1] - 1], expected_D))
        # One row suffices, since a router may send a token to either of two equal experts.
        if not min(gaps) < _WITHIN.get(states_SLD.dtype, _WITHIN_ELSE):
            raise _refused(model, "hidden states depend on later tokens or on padding")


def _check_logits(model: PreTrainedModel, ids: list[int]) -> None:
    alone = torch.tensor([ids], device=model.device)
    states_TD = decoder_of(model)(input_ids=alone, use_cache=False).last_hidden_state[0]
    logprobs_TV, _ = Head.of(model).logprobs(states_TD, torch.ones(len(ids), device=model.device))
    logits_TV = model(input_ids=alone, use_cache=False).logits[0]
    gap = _gap(logprobs_TV, logits_TV.float().log_softmax(-1))
    if not gap < _WITHIN.get(states_TD.dtype, _WITHIN_ELSE):
        raise _refused(model, "logits are not linear in the last hidden states")


def _gap(found: Tensor, expected: Tensor) -> float:
    """Return the distance of two tensors, relative to the second."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def _refused(model: PreTrainedModel, reason: str) -> ConfigError:
    return ConfigError(
        f"model.name = {model.config.name_or_path!r}: unsupported for training, {reason}; use "
        "another model"
    )
