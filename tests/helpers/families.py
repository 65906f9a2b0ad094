"""A tiny random model of each family of causal models, made from its config class."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.helpers.models import tiny_tokenizer

VOCAB = 132
"""Of `tests.helpers.models.tiny_tokenizer`."""

_WITH_LORA = """
afmoe apertus arcee bamba cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4
falcon_h1 gemma gemma2 gemma3_text glm glm4 glm4_moe gpt_oss granite granitemoe granitemoehybrid
granitemoeshared hunyuan_v1_dense hunyuan_v1_moe jamba lfm2 lfm2_moe llama longcat_flash
minicpm3 minimax_m2 mistral mixtral nemotron nemotron_h olmo olmo2 olmo3 opt phi phi3 phimoe
qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3
"""
WITH_LORA = frozenset(_WITH_LORA.split())
"""Types that vLLM serves with LoRA, by its table of supported models."""

_OTHERS = """
biogpt bloom cwm diffllama dots1 falcon falcon_mamba flex_olmo gemma3n_text gemma4_text gpt2
gpt_bigcode gpt_neox gptj helium jetmoe llama4_text mamba mamba2 minimax ministral nanochat
olmo_hybrid olmoe persimmon recurrent_gemma rwkv stablelm starcoder2 vaultgemma xglm youtu
zamba2
"""
FAMILIES = WITH_LORA | frozenset(_OTHERS.split())
"""All tested types."""

WINDOW = 5
"""Tokens that a sliding layer sees: fewer than most prompts have."""

_SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    **dict.fromkeys(("mamba_d_state", "state_size"), 8),
    **dict.fromkeys(("linear_num_value_heads", "mamba_n_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "mamba_n_groups", "first_k_dense_replace"), 1),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "v_head_dim", "mamba_d_head"), 16),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "num_nextn_predict_layers"), 0),
    **{"vocab_size": VOCAB, "bos_token_id": 1, "sliding_window": WINDOW},
    **{"mamba_expand": 2, "mamba_chunk_size": 8, "time_step_rank": 4},
}
"""Sizes by field names of configs; a config uses the fields that it has."""

_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_LATENT = {"head_dim": 8, "num_key_value_heads": 4}
_OF_ITS_OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("afmoe", "exaone4"), _WINDOWS),
    **dict.fromkeys(("ministral", "olmo3"), _WINDOWS),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _LINEAR),
    **dict.fromkeys(("deepseek_v3", "longcat_flash", "youtu"), _LATENT),
    **dict.fromkeys(("deepseek_v2", "minicpm3"), {"num_key_value_heads": 4}),
    "bamba": {"attn_layer_indices": [1]},
    "cohere2": {**_WINDOWS, "logit_scale": 0.3},
    "dots1": {"n_shared_experts": 1, "routed_scaling_factor": 1.0},
    "falcon_h1": {"mamba_d_ssm": 64, "lm_head_multiplier": 1.7},
    "gemma2": {
        **_WINDOWS,
        **{"query_pre_attn_scalar": 8, "attn_logit_softcapping": 0.5},
        "final_logit_softcapping": 0.4,
    },
    "gemma3_text": {
        **_WINDOWS,
        "query_pre_attn_scalar": 8,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e2},
        },
    },
    "gemma3n_text": {
        **_WINDOWS,
        **{"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCAB},
        **{"hidden_size_per_layer_input": 8, "laurel_rank": 4},
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma4_text": {
        **_WINDOWS,
        **{"global_head_dim": 16, "num_kv_shared_layers": 0},
        **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB},
    },
    "gptj": {"rotary_dim": 4},
    "gpt_oss": _WINDOWS,
    "granite": {"logits_scaling": 0.2, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "helium": {"head_dim": 8},
    "jamba": {
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
        **{"expert_layer_period": 2, "expert_layer_offset": 1},
        **{"mamba_dt_rank": 4, "use_mamba_kernels": False},
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "nemotron_h": {
        **{"layer_types": [*_LINEAR["layer_types"], "mlp"], "num_hidden_layers": 3},
        **{"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8},
        "chunk_size": 8,
    },
    "opt": {"word_embed_proj_dim": 16},
    "phi": {"partial_rotary_factor": 0.5},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2_moe": {"use_sliding_window": True, "max_window_layers": 0},
    "recurrent_gemma": {
        **{"lru_width": 32, "attention_window_size": 12, "num_hidden_layers": 3},
        "num_key_value_heads": 1,
    },
    "vaultgemma": {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 0.4},
    "zamba2": {
        **{"layer_types": ["linear_attention", "hybrid"], "hybrid_layer_ids": [1]},
        **{"num_mem_blocks": 1, "mamba_headdim": 16, "n_mamba_heads": 4, "mamba_ngroups": 1},
        "attention_head_dim": 16,
    },
}
_FIXED = {"falcon": ("head_dim",), "gemma4_text": ("head_dim",)}
"""Sizes that a config has but does not accept."""


def make_family(
    kind: str, *, attention: str | None = None, spread: float = 0.15, **changes: Any
) -> PreTrainedModel:
    """A model of this type in fp32, frozen, in evaluation mode.

    Weights have at least the standard deviation `spread`: by default, layers have little effect.
    """
    cls = type(AutoConfig.for_model(kind))
    default = cls()
    names = [name for name in _SMALL if name not in _FIXED.get(kind, ()) and hasattr(default, name)]
    sizes = {name: _SMALL[name] for name in names}
    config = cls(**{**sizes, **_OF_ITS_OWN.get(kind, {}), **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    )
    for name, weight in model.named_parameters():
        if "sinks" in name or name == "lm_head.bias":
            torch.nn.init.normal_(weight, std=spread)
        elif weight.dim() > 1 and 0 < weight.std() < spread:
            weight.data *= spread / weight.std()
    return model.eval().requires_grad_(False)


def save_family(kind: str, folder: Path, **changes: Any) -> Path:
    """Save the model, with `sizes` changed, and a tokenizer in Hugging Face format."""
    make_family(kind, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
