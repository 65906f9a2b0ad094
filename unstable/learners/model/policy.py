"""The trained model as one module, so that FSDP2 can wrap it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from unstable.config import ConfigError
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.checks import check_padded
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import (
    Chunk,
    DivergenceTarget,
    compiled_chunk,
    selected_logprobs,
)
from unstable.learners.model.lora import Siblings, fuse_lora
from unstable.learners.model.packing import Pack, gathered, pack_samples
from unstable.learners.model.padding import Padded, pad_samples
from unstable.learners.model.token_table import TokenTable
from unstable.learners.model.trained import Trained, TrainedLora
from unstable.learners.model.whole import TrainedWhole
from unstable.models.base import decoder_of
from unstable.models.norms import fuse_norms
from unstable.types import TokenSample

Inputs = Pack | Padded
"""Samples in a form that `Policy.forward` takes."""


class Scores(NamedTuple):
    """The model's scores of S samples with N scored tokens."""

    logprobs_N: Tensor  # fp32, with a gradient
    entropies_N: Tensor  # fp32, with a gradient if requested
    states_SD: Tensor  # last hidden state at the end of each prompt, with a gradient
    hidden_ND: Tensor  # last hidden state that predicts each token
    divergences: dict[str, Tensor]  # [N], from each target, fp32, with a gradient
    samples_N: Tensor  # index of each token's sample

    @property
    def ends_SD(self) -> Tensor:
        """Last hidden state that each sample's last token is predicted from; all have tokens."""
        ends_S = torch.bincount(self.samples_N).cumsum(0) - 1
        return gathered(self.hidden_ND, ends_S)


class Policy(nn.Module):
    """A causal language model, part `trained`, that scores samples.

    A model that is loaded with `attention.ATTENTION` takes packs; any other takes padded rows and
    uses its own forward. Its LoRA is trained or, without one, all weights, which compute in
    `dtype`. Inner modules are never called from outside. Raises `ConfigError`
    for a model that would be scored wrongly.
    """

    def __init__(
        self, model: PeftModel | PreTrainedModel, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.model = model
        self.chunk = Chunk
        self._siblings: list[Siblings] = []
        _check_head(self._causal_model)
        fuse_norms(model)
        self.trained: Trained
        if isinstance(model, PeftModel):
            self._siblings = fuse_lora(model)
            self.trained = TrainedLora(model)
        else:
            self.trained = TrainedWhole(model, dtype)
        if self.padded:
            check_padded(self._causal_model)

    @property
    def _causal_model(self) -> PreTrainedModel:
        model = self.model
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        return cast(PreTrainedModel, base)

    @property
    def padded(self) -> bool:
        """True if samples are padded rows instead of packs with shared prompts."""
        kind: str = self._causal_model.config._attn_implementation
        return kind != ATTENTION

    def inputs(self, samples: Sequence[TokenSample] | TokenTable) -> Inputs:
        """The samples as `forward` takes them, on the CPU; any thread may call it."""
        return pad_samples(samples) if self.padded else pack_samples(samples)

    @property
    def width(self) -> int:
        """Elements of a last hidden state."""
        return Head.of(self._causal_model).weight_VD.shape[1]

    def head_apart(self) -> Head | None:
        """Copy the current head for later divergences from it; None if the head never changes."""
        head = Head.of(self._causal_model)
        if not head.trained:
            return None
        bias_V = head.bias_V
        return replace(
            head,
            weight_VD=self.trained.apart(head.weight_VD),
            bias_V=None if bias_V is None else self.trained.apart(bias_V),
        )

    @property
    def device(self) -> torch.device:
        """The device of the trained parameters and of forward passes."""
        return self.trained.parameters[0].device

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder's layers, in order; raises `ConfigError` for a model that does not mark them.

        Recomputing, compiling and sharding are done layer by layer.
        """
        model = self._causal_model
        layers: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        if not layers:
            raise ConfigError(
                f"model.name = {model.config.name_or_path!r}: it has no "
                "GradientCheckpointingLayer; set learner.gradient_checkpointing to off, "
                "learner.compile to false and learner.parallel to ddp"
            )
        return layers

    def recompute_activations(self) -> None:
        """Keep each layer's input alone and run the layer again in backward."""
        options = {"use_reentrant": False, "preserve_rng_state": False}
        self._causal_model.gradient_checkpointing_enable(options)
        for layer in self.layers:
            layer.training = True  # required by transformers; submodules with dropout do not train
            if self.padded:  # its layers may apply dropout themselves
                vars(layer)["forward"] = partial(_evaluated, layer, layer.forward)

    def compile_parts(self) -> None:
        """Compile the head, and the layers once for all of them and for inputs of any size."""
        for layer in self.layers:
            layer.compile(dynamic=True)
        self.chunk = compiled_chunk()

    def forward(
        self,
        inputs: Inputs,
        *,
        entropy: bool = False,
        aims: Mapping[str, DivergenceTarget] | None = None,
    ) -> Scores:
        """Score the samples' tokens, wherever the inputs lie.

        With `entropy` entropies have a gradient. `aims` hold the `hidden_ND` of other policies,
        the targets of divergences.
        """
        self.trained.refresh()
        for each in self._siblings:
            each.clear()
        inputs = inputs.to(self.device)
        output = decoder_of(self._causal_model)(**inputs.arguments(), use_cache=False)
        hidden_TD = output.last_hidden_state.flatten(0, 1)
        hidden_ND = gathered(hidden_TD, inputs.predictors_N)
        selected = selected_logprobs(
            hidden_ND,
            Head.of(self._causal_model),
            inputs.targets_N,
            inputs.temperatures_N,
            entropy=entropy,
            aims=aims,
            chunk=self.chunk,
        )
        return Scores(
            logprobs_N=selected.logprobs_N,
            entropies_N=selected.entropies_N,
            states_SD=gathered(hidden_TD, inputs.states_S),
            hidden_ND=hidden_ND,
            divergences=selected.divergences,
            samples_N=inputs.samples_N,
        )


def _evaluated(layer: nn.Module, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The forward of a layer that is marked as training for transformers alone, without dropout."""
    layer.training = False
    try:
        return forward(*args, **options)
    finally:
        layer.training = True


def _check_head(model: PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or isinstance(head, LoraLayer):
        raise ConfigError(
            f"model.name = {model.config.name_or_path!r}: the output layer is not linear, or has "
            "LoRA; use another model, or remove lm_head from model.adapter.targets"
        )
