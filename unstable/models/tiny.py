"""Tiny base models: the shipped ones, and the construction of untrained ones."""

import re
from collections.abc import Sequence
from pathlib import Path
from string import printable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SHIPPED = {name: Path(__file__).parent / name for name in ("tiny", "tiny_cards")}
"""Folders by name; unstable world --config world and --config world_cards make them."""

EOS, PAD, UNKNOWN = "<eos>", "<pad>", "<unk>"
MAX_LENGTH = 4096
_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}" + EOS + "{% elif not loop.last %}>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def make_tokenizer(texts: Sequence[str]) -> "PreTrainedTokenizerFast":
    """Return a tokenizer with a token for each of the `texts` and for each printable character.

    A chat is its messages with > before an answer and <eos> after it.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    longest_first = sorted(texts, key=len, reverse=True)
    words = [PAD, EOS, UNKNOWN, *sorted(set(printable)), *longest_first]
    vocabulary = {word: index for index, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    pattern = "|".join([*map(re.escape, longest_first), r"[\s\S]"])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=EOS, pad_token=PAD, unk_token=UNKNOWN
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def make_model(
    tokenizer: "PreTrainedTokenizerFast", *, hidden: int, layers: int, heads: int, seed: int
) -> "LlamaForCausalLM":
    """Return a Llama with random weights, whose outputs are of order one at any width."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=-(-8 * hidden // 48) * 16,  # 8/3 of the width, in steps of 16
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=hidden**-0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        torch.nn.init.normal_(model.model.embed_tokens.weight)
    with torch.no_grad():
        for layer in model.model.layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight /= (2 * layers) ** 0.5
    return model
