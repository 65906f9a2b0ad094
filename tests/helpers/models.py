"""Small real models for tests: random weights, made in milliseconds, no hub."""

import copy
import json
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, TokenizersBackend

from unstable.config import AdapterConfig, ModelConfig
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.models.shape import weight_shapes
from unstable.prompts import PromptStyle
from unstable.types import Adapter, Completion, Observation, TopLogprobs

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def tiny_model(
    vocab: int = 132,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    seed: int = 0,
    attention: str = "sdpa",
) -> LlamaForCausalLM:
    """A random Llama in fp32, frozen, in evaluation mode."""
    sizes: dict[str, Any] = {
        **{"vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 2 * hidden},
        **{"num_hidden_layers": layers, "num_attention_heads": heads},
        **{"num_key_value_heads": kv_heads, "max_position_embeddings": 4096},
    }
    config = LlamaConfig(**sizes, eos_token_id=0, bos_token_id=None, pad_token_id=0)
    config._attn_implementation = attention

    torch.manual_seed(seed)
    return LlamaForCausalLM(config).float().eval().requires_grad_(False)


def tiny_tokenizer() -> TokenizersBackend:
    """One token per ASCII character, four special ones first (ids 0 to 3; 0 ends an answer)."""
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    vocab.update({chr(code): len(SPECIAL) + code for code in range(128)})
    backend = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = TokenizersBackend(tokenizer_object=backend, eos_token="<|end|>", unk_token="?")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def chat_ids(tokenizer: Any, style: PromptStyle, seen: Observation) -> list[int]:
    """Return an observation's prompt, rendered by the tokenizer's chat template."""
    chat = style.messages(style.render(seen))
    ids: list[int] = tokenizer.apply_chat_template(
        chat, return_dict=False, add_generation_prompt=True
    )
    return ids


def hollow_files(folder: Path) -> None:
    """Write weights of zeros that take no disk, and a small tokenizer, beside a config."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in weight_shapes(ModelConfig(name=str(folder))).items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if enable_thinking %}{% endif %}" + CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)


def random_adapter(model: PreTrainedModel, name: str, seed: int, rank: int = 4) -> Adapter:
    """An adapter that changes the model's answers: A and B are both random."""
    lora = AdapterConfig(rank=rank, alpha=2 * rank)
    exported = TrainedLora(attach_lora(copy.deepcopy(model), lora, seed)).export(name)
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: value.shape for key, value in sorted(load(exported.weights).items())}
    tensors = {key: 0.1 * torch.randn(shape, generator=generator) for key, shape in shapes.items()}
    return Adapter(name=name, weights=save(tensors), config=exported.config)


def random_whole(model: PreTrainedModel, name: str, seed: int) -> Adapter:
    """A version whose weights all differ from the model's, by half of their spread or so."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        key: weight.float()
        + 0.3 * weight.std() * torch.randn(weight.shape, generator=generator)
        + 0.1 * torch.randn(weight.shape, generator=generator) * (weight.dim() == 1)
        for key, weight in model.named_parameters()
    }
    return Adapter(name=name, weights=save(tensors, metadata={"format": "pt"}), config={})


def with_weights(model: PreTrainedModel, whole: Adapter) -> PreTrainedModel:
    """A copy of the model with a version's weights, by transformers' own loading."""
    plain = copy.deepcopy(model)
    lacking, odd = plain.load_state_dict(load(whole.weights), strict=False)
    assert not odd and all(key == "lm_head.weight" for key in lacking)
    return plain


def heed_interrupts() -> None:
    """For `Popen(preexec_fn=...)`: what a shell starts in the background ignores Ctrl-C, what nohup
    starts SIGHUP, and so do its children, tests and their processes among them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def top_logprobs(
    model: torch.nn.Module,
    prompt_ids: Sequence[int],
    answer: Completion,
    temperature: float,
    allowed: Sequence[int] | None,
    count: int,
) -> TopLogprobs:
    """Compute the top log-probabilities at each token of an answer, by a plain forward."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt_ids, *answer.token_ids]])).logits[0]
    rows = logits[len(prompt_ids) - 1 : -1].float() / (temperature or 1.0)
    if allowed is not None:
        kept = torch.full_like(rows, -torch.inf)
        kept[:, allowed] = rows[:, allowed]
        rows = kept
    values, ids = rows.log_softmax(-1).topk(count if allowed is None else min(count, len(allowed)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return [list(zip(each, chances, strict=True)) for each, chances in pairs]


def assert_top_logprobs(found: TopLogprobs | None, expected: TopLogprobs, within: float) -> None:
    """Check for the same ids in the same order, with log-probabilities equal up to `within`."""
    assert found is not None
    for mine, other in zip(found, expected, strict=True):
        assert [token for token, _ in mine] == [token for token, _ in other]
        assert [v for _, v in mine] == pytest.approx([v for _, v in other], abs=within)
