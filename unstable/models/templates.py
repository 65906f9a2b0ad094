"""The chat template of a tokenizer: its own, the plain one, or a user's."""

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError, ModelConfig, nearest, shown
from unstable.config.plugins import time_limit
from unstable.models.tensors import reason
from unstable.records.files import read_small_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = "plain"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:\\n' }}{% endif %}"
)
"""Template for a base model: texts separated by an empty line, and a line before an answer."""
_FILES = ("chat_template.jinja", "chat_template.json")
_FUNCTIONS = ("raise_exception", "strftime_now")
"""Functions that transformers gives to each template."""
PATIENCE_S = 10.0
"""Seconds that a template may take for a chat of two messages."""
_MOST_BYTES = 100_000
_SAMPLE = "aZ9 <&> \ue000\n" * 20 + "."
"""Message that no template contains, and that shows any change by a template."""


def template_text(model: ModelConfig) -> str | None:
    """Return the template that `model.chat_template` names; None for the tokenizer's own.

    Raises `ConfigError` for a file that cannot be read or is no template.
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
                f"{place}: no such file; give a Jinja file, plain, or arguments of the "
                "tokenizer's own template"
            )
        try:
            text = path.read_bytes()[: _MOST_BYTES + 1].decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{place}: not UTF-8; give a Jinja file") from None
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{place}: longer than {_MOST_BYTES} characters; shorten it")
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
            f"{place}: invalid Jinja template (line {error.lineno}: {error.message}); fix it"
        ) from None


def own_template(folder: Path) -> str:
    """Return the chat template of the tokenizer in a folder; empty if it has none."""
    for name in _FILES:
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8", errors="replace")
    return str((read_small_json(folder / "tokenizer_config.json") or {}).get("chat_template") or "")


def set_template(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> None:
    """Set the tokenizer's template to the one in the config, or to the plain one if it has none.

    The template also writes the BOS with which the tokenizer would begin a text: rendered text is
    encoded unchanged, here and by programs that load an export. Raises `ConfigError` if a template
    cannot be rendered, does not show the whole of a message, or ends an answer with text; and for
    arguments that it does not read.
    """
    text = template_text(model)
    if text is not None or not tokenizer.chat_template:
        tokenizer.chat_template = text or PLAIN_TEMPLATE
    if not isinstance(tokenizer.chat_template, str):
        return
    _check_arguments(tokenizer, model)
    begun = _rendered(tokenizer, model, [{"role": "user", "content": _SAMPLE}])
    if _SAMPLE not in begun:
        raise ConfigError(
            f"{_place(model)}: changes or omits a user's message, so the model would not see "
            "the game; fix it, or set it to plain"
        )
    bos = tokenizer.bos_token
    adds_bos = bos is not None and tokenizer.encode("?")[:1] == [tokenizer.bos_token_id]
    if adds_bos and not begun.startswith(bos):
        tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    after = _after_answer(tokenizer, model)
    if after and answer_end(tokenizer, model) is None:
        raise ConfigError(
            f"{_place(model)}: ends an answer with {shown(after)}, not a token of the "
            "tokenizer, so engines would not stop there; fix it, or set it to plain"
        )


def answer_end(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> int | None:
    """Return the id of the added token that the chat template writes after an answer, if any."""
    after = _after_answer(tokenizer, model)
    added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
    found = [content for content in added if after.startswith(content)]
    return added[max(found, key=len)] if found else None


def _after_answer(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> str:
    chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAMPLE}]
    return _rendered(tokenizer, model, chat, False).rpartition(_SAMPLE)[2].lstrip()


def _rendered(
    tokenizer: "PreTrainedTokenizerBase",
    model: ModelConfig,
    chat: list[dict[str, str]],
    is_asked: bool = True,
) -> str:
    """Render the chat as text; `is_asked` adds the opening of an answer."""
    from jinja2 import TemplateError

    try:
        with time_limit(PATIENCE_S, f"timed out after {PATIENCE_S:g} s"):
            rendered: Any = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=is_asked, **model.template_arguments
            )
    except (
        *(TemplateError, ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError),
        *(TimeoutError, TypeError, ValueError),
    ) as error:
        raise ConfigError(
            f"{_place(model)}: cannot be rendered ({reason(error)}); fix it, or set it to plain"
        ) from None
    return str(rendered)


def _check_arguments(tokenizer: "PreTrainedTokenizerBase", model: ModelConfig) -> None:
    """Refuse arguments that transformers sets itself, or that the template does not read."""
    from jinja2 import Environment, TemplateSyntaxError, meta

    given = model.template_arguments
    own = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"} - {"kwargs"}
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(tokenizer.chat_template)
        known = meta.find_undeclared_variables(tree) - own
    except TemplateSyntaxError:  # a tag that transformers adds
        known = set(given)
    for name in given:
        if name in own:
            raise ConfigError(f"model.chat_template.{name}: set by unstable; leave it out")
        if name not in known:
            names = sorted(known - {*tokenizer.special_tokens_map, *_FUNCTIONS})
            remedy = nearest(name, names) if names else "set model.chat_template to {}"
            raise ConfigError(
                f"model.chat_template.{name}: unused by the tokenizer's chat template; {remedy}"
            )


def _place(model: ModelConfig) -> str:
    """Name the field that a template comes from."""
    if isinstance(model.chat_template, str):
        return f"model.chat_template = {shown(model.chat_template)}"
    return f"model.name = {shown(model.name)}: its chat template"
