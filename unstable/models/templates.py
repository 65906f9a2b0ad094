"""The chat template that a tokenizer is used with: its own, the plain one, or a user's."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError, ModelConfig, shown
from unstable.records.files import read_small_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = "plain"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:\\n' }}{% endif %}"
)
"""For a base model: texts with an empty line between them, and a line before an answer."""
_FILES = ("chat_template.jinja", "chat_template.json")
_MOST_BYTES = 100_000


def template_text(model: ModelConfig) -> str | None:
    """The template that `model.chat_template` names; None where it is the tokenizer's own.

    Raises `ConfigError` for a file that cannot be read, or is none.
    """
    asked = model.chat_template
    if not isinstance(asked, str):
        return None
    if asked == PLAIN:
        return PLAIN_TEMPLATE
    place = f"model.chat_template = {shown(asked)}"
    text = asked
    if "{" not in asked:
        path = Path(asked).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"{place}: no such file; give a file in Jinja, plain, or arguments for the "
                "tokenizer's own template"
            )
        try:
            text = path.read_bytes()[: _MOST_BYTES + 1].decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{place}: no text in UTF-8; give a file in Jinja") from None
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{place}: has more than {_MOST_BYTES} characters; give a shorter one")
    _check_syntax(place, text)
    return text


def _check_syntax(place: str, text: str) -> None:
    from jinja2 import Environment, TemplateSyntaxError

    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except TemplateSyntaxError as error:
        if "generation" in str(error.message):  # a tag that transformers adds
            return
        raise ConfigError(
            f"{place}: is no template in Jinja (line {error.lineno}: {error.message}); mend it"
        ) from None


def has_own_template(folder: Path) -> bool:
    """Whether the tokenizer in a folder has a chat template; reads no more than JSON."""
    if any((folder / name).is_file() for name in _FILES):
        return True
    return bool((read_small_json(folder / "tokenizer_config.json") or {}).get("chat_template"))


def set_template(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> None:
    """Give the tokenizer the template that the config names, or the plain one if it has none.

    The template writes the BOS that the tokenizer would begin a text with, unless it does so
    already: what is rendered is encoded as it stands, here and by whoever loads an export.
    """
    from jinja2 import TemplateError

    text = template_text(model)
    if text is not None or not tokenizer.chat_template:
        tokenizer.chat_template = text or PLAIN_TEMPLATE
    if not isinstance(tokenizer.chat_template, str):
        return
    chat = [{"role": "user", "content": "?"}]
    try:
        begun: Any = tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, **model.template_arguments
        )
    except TemplateError as error:
        raise ConfigError(
            f"model.chat_template = {shown(model.chat_template)}: cannot be rendered ({error}); "
            "mend it, or set it to plain"
        ) from None
    bos = tokenizer.bos_token
    adds_bos = bos is not None and tokenizer.encode("?")[:1] == [tokenizer.bos_token_id]
    if adds_bos and not begun.startswith(bos):
        tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
