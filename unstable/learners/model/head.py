"""The head: how a causal model makes logits of its last hidden states."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

_SCALES = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Names of a factor of the logits in model configs: Cohere, Falcon-H1, Muse Glimmer."""
_DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
"""Names of a divisor: Granite and MiniCPM3, Inkling."""
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of a soft cap: Gemma and NanoChat, RecurrentGemma, xLSTM."""
_MULTIPLIES = ("hyperclovax",)
"""Model types whose `logits_scaling` is a factor."""


@dataclass(frozen=True, slots=True)
class Head:
    """Logits [N, V] of states h [N, D]: cap tanh(scale (h W' + b) / cap), without a cap its input.

    https://arxiv.org/abs/2408.00118 (Gemma 2) for the cap.
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Head":
        """The head as the model has it now; its tensors are the model's own."""
        config: Any = model.config.get_text_config()
        output = model.get_output_embeddings()
        divisors = () if config.model_type in _MULTIPLIES else _DIVISORS
        scale = 1.0
        for name in (*_SCALES, *_DIVISORS):
            if (value := getattr(config, name, None)) is not None:
                scale *= 1 / value if name in divisors else value
        caps = [cap for name in _CAPS if (cap := getattr(config, name, None))]
        size = getattr(config, "unpadded_vocab_size", None)  # Inkling's
        weight_VD, bias_V = (
            tensor if tensor is None or size is None else tensor[:size]
            for tensor in (output.weight, output.bias)
        )
        return cls(weight_VD, bias_V, scale, caps[0] if caps else None)

    @property
    def trained(self) -> bool:
        """True if its weight or bias gets a gradient."""
        return self.weight_VD.requires_grad or (
            self.bias_V is not None and self.bias_V.requires_grad
        )

    def logprobs(self, states_ND: Tensor, temperatures_N: Tensor) -> tuple[Tensor, Tensor | None]:
        """Log-softmax [N, V] of logits over temperatures, and the derivatives of a soft cap.

        In fp32, or in float64 where the states are.
        """
        weight_VD, bias_V = self.weight_VD, self.bias_V
        states_ND = states_ND.to(weight_VD.dtype)
        if self.softcap is None:
            # Division by fp32 temperatures promotes logits to fp32.
            logits_NV = F.linear(states_ND, weight_VD, bias_V) / self.divisors(temperatures_N)
            return logits_NV.log_softmax(-1), None
        precision = torch.promote_types(weight_VD.dtype, temperatures_N.dtype)
        bent_NV = F.linear(states_ND, weight_VD, bias_V).to(precision)
        bent_NV = bent_NV.mul_(self.scale / self.softcap).tanh_()
        logits_NV = bent_NV * (self.softcap / temperatures_N[:, None])
        return logits_NV.log_softmax(-1), bent_NV.square_().neg_().add_(1)

    def divisors(self, temperatures_N: Tensor) -> Tensor:
        """Return the divisors [N, 1] of h W' + b, without the cap."""
        return (temperatures_N / self.scale)[:, None]
