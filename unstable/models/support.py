"""The path of a model in scoring and serving: packed if that is exact, else padded.

packed: samples share one row and their common prefixes; attention is our own. padded: the model's
own forward, one row per sample, with nothing shared; slower, exact for all.
"""

_PACKED = """
afmoe apertus arcee biogpt cohere cohere2 cwm deepseek_v2 deepseek_v3 dots1 ernie4_5
ernie4_5_moe exaone4 flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode
gpt_neox gpt_oss granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe
jetmoe llama longcat_flash minicpm3 minimax_m2 ministral mistral mixtral nanochat olmo olmo2
olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3
starcoder2 vaultgemma youtu
"""
PACKED = frozenset(_PACKED.split())
"""Packed types, `model_type` of the text config: their tokens interact only through transformers'
attention interface. `tests/models/test_families.py` compares each with the model's own forward."""
