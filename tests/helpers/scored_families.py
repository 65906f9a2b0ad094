"""Tiny random models of many families, made from their config classes."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 40
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LOCAL_AND_GLOBAL = {
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
PACKED: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {
        **_LOCAL_AND_GLOBAL,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 0.5,
        "final_logit_softcapping": 0.4,
    },
    "gemma3_text": {
        **_LOCAL_AND_GLOBAL,
        "query_pre_attn_scalar": 8,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        },
    },
    "gpt_oss": {**_LOCAL_AND_GLOBAL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "cohere2": {**_LOCAL_AND_GLOBAL, "logit_scale": 0.3},
    "granite": {"logits_scaling": 0.2, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "mixtral": {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {**_EXPERTS, "num_experts": 4},
    "qwen2_moe": {
        **_EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 16,
        "use_sliding_window": True,
        **_LOCAL_AND_GLOBAL,
    },
    "phimoe": {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt2": {},
    "opt": {"word_embed_proj_dim": 16, "ffn_dim": 48, "do_layer_norm_before": True},
    "phi": {},
}
"""What each adds to the common sizes; these are scored in packs."""

PADDED: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **_EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "mamba2": {"head_dim": 8, "num_heads": 8, "state_size": 8, "n_groups": 1, "chunk_size": 4},
    "bamba": {
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 4,
        "attn_layer_indices": [1],
    },
    "falcon_h1": {
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 4,
        "mamba_d_ssm": 64,
        "lm_head_multiplier": 1.7,
    },
}
"""The same of models that are scored by their own forward."""


def family_model(kind: str, *, attention: str | None, seed: int = 0) -> PreTrainedModel:
    """A random model of a family in fp32, frozen, in evaluation mode.

    Its weights are so large that each part of it shows in the logits.
    """
    config = AutoConfig.for_model(kind, **{**_COMMON, **(PACKED | PADDED)[kind]})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or "sinks" in name or name == "lm_head.bias":
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_(0.3 * noise)
    return model.float().eval().requires_grad_(False)
