"""Path of a model in scoring and serving: packed if that is exact, else padded."""

from dataclasses import dataclass
from typing import Literal

_PACKED = """
afmoe apertus arcee biogpt cohere cohere2 cwm deepseek_v2 deepseek_v3 dots1 ernie4_5
ernie4_5_moe exaone4 flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode
gpt_neox gpt_oss granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
jetmoe llama longcat_flash minicpm3 minimax_m2 ministral mistral mixtral nanochat olmo olmo2
olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
starcoder2 vaultgemma youtu
"""
PACKED = frozenset(_PACKED.split())
"""Types of models whose tokens interact only through transformers' attention interface.
`tests/models/test_families.py` compares each of them with the model's own forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """Path of a model, and the reason why it is not the faster one."""

    path: Literal["packed", "padded"]
    reason: str = ""  # reason for "padded"


def support_of(kind: str) -> Support:
    """Return the path of a model by its type, `model_type` of its text config.

    packed: samples share one row and their common prefixes; attention is our own. padded: the
    model's own forward, one row per sample, with nothing shared; slower, exact for all.
    """
    if kind in PACKED:
        return Support(path="packed")
    return Support(path="padded", reason=f"packing is unsupported for {kind}")
