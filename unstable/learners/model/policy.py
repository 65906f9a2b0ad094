"""The trained model as one module, so that what wraps modules (FSDP2) has one to wrap."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from unstable.config import ConfigError
from unstable.learners.model.logprobs import Aim, selected_logprobs
from unstable.learners.model.lora import fuse_lora
from unstable.learners.model.packing import Pack, gathered
from unstable.learners.model.trained import Trained, TrainedLora
from unstable.learners.model.whole import TrainedWhole

# Attributes that change logits or attention in ways that this scorer does not compute.
_LOGIT_CHANGES = (
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "logits_scaling",
    "logit_scale",
)


class Scores(NamedTuple):
    """What the model says of a pack of S samples with N tokens that are scored."""

    logprobs_N: Tensor  # fp32, with a gradient
    entropies_N: Tensor  # fp32, with one where it was asked for
    states_SD: Tensor  # last hidden state where each sample's prompt ends, with a gradient
    hidden_ND: Tensor  # last hidden state that each token is predicted from
    divergences: dict[str, Tensor]  # [N], from each aim that was given, fp32, with a gradient
    samples_N: Tensor  # index of the sample that each token belongs to

    @property
    def ends_SD(self) -> Tensor:
        """Last hidden state that each sample's last token is predicted from; all have tokens."""
        ends_S = torch.bincount(self.samples_N).cumsum(0) - 1
        return gathered(self.hidden_ND, ends_S)


class Policy(nn.Module):
    """A causal language model loaded with `attention.ATTENTION`, part `trained`, that scores packs.

    What is trained is its LoRA, or all of it in `dtype` where it has none. Inner modules are never called from outside. Raises `ConfigError` for a model whose logits
    are more than a bias-free linear layer of its last hidden states.
    """

    def __init__(
        self, model: PeftModel | PreTrainedModel, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.model = model
        _check_scorable(self.causal_model)
        self.trained: Trained
        if isinstance(model, PeftModel):
            fuse_lora(model)
            self.trained = TrainedLora(model)
        else:
            self.trained = TrainedWhole(model, dtype)

    @property
    def causal_model(self) -> PreTrainedModel:
        """The base."""
        model = self.model
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        return cast(PreTrainedModel, base)

    @property
    def device(self) -> torch.device:
        """Where the trained parameters are, and packs are put through."""
        return self.trained.parameters[0].device

    @property
    def layers(self) -> list[nn.Module]:
        """The decoder's layers, in order; raises `ConfigError` for a model that does not mark them.

        Recomputing, compiling and sharding are done layer by layer.
        """
        model = self.causal_model
        layers: list[nn.Module] = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        if not layers:
            raise ConfigError(
                f"model.name = {model.config.name_or_path!r}: transformers does not mark its "
                "layers; set learner.gradient_checkpointing to off, learner.compile to false and "
                "learner.parallel to ddp"
            )
        return layers

    def recompute_activations(self) -> None:
        """Keep each layer's input alone and run the layer again in backward."""
        options = {"use_reentrant": False, "preserve_rng_state": False}
        self.causal_model.gradient_checkpointing_enable(options)
        for layer in self.layers:
            layer.training = True  # or transformers would not; what may have dropout stays as is

    def compile_layers(self) -> None:
        """Compile the layers, once for all of them and for packs of any size."""
        for layer in self.layers:
            layer.compile(dynamic=True)

    def forward(
        self, pack: Pack, *, entropy: bool = False, aims: Mapping[str, Aim] | None = None
    ) -> Scores:
        """Score the pack's tokens, wherever the pack lies.

        With `entropy` entropies have a gradient. `aims` hold the `hidden_ND` of other policies,
        from which the divergences are.
        """
        self.trained.refresh()
        causal_model, pack = self.causal_model, pack.to(self.device)
        hidden_1TD = causal_model.get_decoder()(
            input_ids=pack.ids_T[None],
            position_ids=pack.positions_T[None],
            use_cache=False,
            segments=pack.segments,
        ).last_hidden_state
        hidden_ND = gathered(hidden_1TD[0], pack.predictors_N)
        selected = selected_logprobs(
            hidden_ND,
            causal_model.get_output_embeddings().weight,
            pack.targets_N,
            pack.temperatures_N,
            entropy=entropy,
            aims=aims,
        )
        return Scores(
            logprobs_N=selected.logprobs_N,
            entropies_N=selected.entropies_N,
            states_SD=gathered(hidden_1TD[0], pack.states_S),
            hidden_ND=hidden_ND,
            divergences=selected.divergences,
            samples_N=pack.samples_N,
        )


def _check_scorable(model: PreTrainedModel) -> None:
    config, head = model.config, model.get_output_embeddings()
    for name in _LOGIT_CHANGES:
        value = getattr(config, name, None)
        if value not in (None, 1):
            raise ConfigError(
                f"model.name = {config.name_or_path!r}: {name} = {value} is not supported in "
                "training; use a model without it"
            )
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or []):
        raise ConfigError(
            f"model.name = {config.name_or_path!r}: has layers without full attention, which "
            "training does not support; use a model with full attention"
        )
    if type(head) is not nn.Linear or head.bias is not None:
        raise ConfigError(
            f"model.name = {config.name_or_path!r}: its output layer is not linear without bias, "
            "or has a LoRA; use another model, or leave lm_head out of model.adapter.targets"
        )
