"""The policy of a config, loaded and ready to be trained."""

import torch

from unstable.config import LearnerConfig, ModelConfig
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.policy import Policy
from unstable.learners.ranks import Ranks, shard
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model, resolve_dtype
from unstable.models.shape import read_type
from unstable.models.support import PACKED
from unstable.types import Adapter
from unstable.types.seeds import derive_seed


def load_policy(
    model: ModelConfig, learner: LearnerConfig, seed: int, adapter: Adapter | None, ranks: Ranks
) -> Policy:
    """The base model with `adapter`, or a fresh LoRA drawn from `seed`, on the GPU if there is one.

    Where all weights are trained they are `adapter`'s, or the base's own. Raises `ConfigError` for
    a model that cannot be scored and an adapter that does not fit.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sharded = learner.parallel == "fsdp" and ranks.count > 1
    attention = ATTENTION if read_type(model) in PACKED else None
    if model.adapter == "none":  # fp32 masters, loaded on their device
        base = load_model(model.model_copy(update={"dtype": "float32"}), attention=attention)
        if not sharded:
            torch.nn.Module.to(base, device)
        policy = Policy(base, torch.float32 if sharded else resolve_dtype(model.dtype))
    else:
        base = load_model(model, attention=attention, device=device)
        policy = Policy(attach_lora(base, model.adapter, derive_seed(seed, "lora")))
    if adapter is not None:
        policy.trained.load(adapter)
    if learner.gradient_checkpointing == "on":
        policy.recompute_activations()
    if learner.compile:
        policy.compile_parts()
    if sharded:
        shard(policy, device, resolve_dtype(model.dtype))
    else:
        policy.to(device)
    return policy
