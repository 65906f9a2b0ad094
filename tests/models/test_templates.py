"""Chat templates: the tokenizer's own, the plain one or a user's; each prompt has one BOS."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.helpers.mistakes import refused
from tests.helpers.models import SPECIAL, tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.commands.prepare import settle
from unstable.config import ConfigError, ModelConfig, load
from unstable.models.base import check_model, load_tokenizer, named_stop_token_ids
from unstable.models.merge import write_tokenizer
from unstable.prompts import PromptBuilder, load_style

CHAT = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "1 or 2?"}]
ONE_TEXT = [{"role": "user", "content": "Be good.\n\n1 or 2?"}]
LAST = "<{{ messages[-1]['content'] }}"
PLAIN = "Be good.\n\n1 or 2?\n\nAnswer:\n"


def base_tokenizer(*, bos: bool = False, template: str | None = None) -> PreTrainedTokenizerBase:
    """Tokenizer of a base model; with `bos`, its own config begins each text with <|user|>."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    if bos:
        tokenizer.bos_token = SPECIAL[2]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL[2]} $A", special_tokens=[(SPECIAL[2], 2)]
        )
    return tokenizer


def saved(folder: Path, tokenizer: PreTrainedTokenizerBase, **fields: object) -> ModelConfig:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return ModelConfig.model_validate({"name": str(folder), **fields})


def prompt(model: ModelConfig) -> list[int]:
    tokenizer = load_tokenizer(model)
    built = PromptBuilder(tokenizer, load_style("answer"), model.template_arguments, 4096)
    ids = built.template.encode(CHAT)
    chat = CHAT if built.template.has_system else ONE_TEXT
    assert ids == tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return ids


def test_base_model_gets_the_plain_template(tmp_path: Path) -> None:
    model = saved(tmp_path, base_tokenizer())
    tokenizer = load_tokenizer(model)
    assert tokenizer.decode(prompt(model)) == PLAIN
    built = PromptBuilder(tokenizer, load_style("answer"), {}, 4096)
    assert built.template.stop_token_id == tokenizer.eos_token_id
    assert built.encode_answer("[1]")[-1] == tokenizer.eos_token_id


@every_row("template", None, "{{ bos_token }}{{ messages[-1].content }}", LAST)
def test_prompt_has_one_bos_if_the_tokenizer_adds_it(template, tmp_path):
    ids = prompt(saved(tmp_path / "with", base_tokenizer(bos=True, template=template)))
    assert ids[0] == 2 and ids.count(2) == 1
    assert 2 not in prompt(saved(tmp_path / "without", base_tokenizer()))


def test_configured_template_replaces_the_tokenizers(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(LAST)
    own = tiny_tokenizer()
    own.chat_template = "{% if short %}!{% endif %}" + own.chat_template
    arguments = saved(tmp_path / "own", own, chat_template={"short": False})
    assert prompt(arguments)[0] == 1  # <|system|> of its own template
    for asked, text in {"plain": PLAIN, str(file): "<Be good.\n\n1 or 2?"}.items():
        model = saved(tmp_path / "own", own, chat_template=asked)
        assert load_tokenizer(model).decode(prompt(model)) == text


def test_run_and_export_keep_the_template(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(LAST)
    model = saved(tmp_path / "base", base_tokenizer(bos=True), chat_template=str(file))
    fields = {"model.name": model.name, "model.chat_template": str(file)}
    kept = settle(load("default", fields)).model
    file.unlink()
    assert kept.chat_template == LAST
    (tmp_path / "export").mkdir()
    write_tokenizer(kept, tmp_path / "export")
    other = AutoTokenizer.from_pretrained(tmp_path / "export")
    ids: Any = other.apply_chat_template(ONE_TEXT, add_generation_prompt=True, return_dict=False)
    assert ids == prompt(kept) and ids[0] == 2


SHOWN = "changes or omits a user's message"
CONTENT = "{% for m in messages %}{{ m.content }}"


@every_row(
    "asked, line",
    ("{% raise_exception %}", "invalid Jinja template"),
    ("{{ raise_exception('no') }}", "cannot be rendered (no"),
    ("{{ 1 / 0 }}", "cannot be rendered (division by zero)"),
    ("{{ 10 ** messages }}", "cannot be rendered (unsupported operand"),
    ("{% for a in range(90000) %}" * 2 + "{% endfor %}" * 2, "cannot be rendered (timed out"),
    ("{# no game #}hello", SHOWN),
    ("{{ messages[0].content | length }}", SHOWN),
    ("{{ messages[0].content[:5] }}", SHOWN),
    ("{{ messages[0].content | upper }}", SHOWN),
    (CONTENT + "<|im_end|>{% endfor %}", "ends an answer with '<|im_end|>', not a token"),
    ({"shrt": True}, "model.chat_template.shrt: unused by the tokenizer's chat template"),
    ({"tokenize": True}, "model.chat_template.tokenize: set by unstable"),
    ({"messages": []}, "model.chat_template.messages: set by unstable"),
    ({"chat_template": "{{ 1 }}"}, "model.chat_template.chat_template: set by unstable"),
)
def test_unusable_template_is_one_line(asked, line, tmp_path, monkeypatch):
    monkeypatch.setattr("unstable.models.templates.PATIENCE_S", 0.2)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if short %}!{% endif %}" + tokenizer.chat_template
    refused(re.escape(line), load_tokenizer, saved(tmp_path, tokenizer, chat_template=asked))


def test_engines_stop_at_the_templates_end_of_answer(tmp_path: Path) -> None:
    """A base model names only its end of text; its chat template ends answers differently."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("<|end|>", "<|system|>")
    model = saved(tmp_path, tokenizer)
    ids = named_stop_token_ids(model, load_tokenizer(model))
    assert ids >= {tokenizer.eos_token_id, 1}
    built = PromptBuilder(load_tokenizer(model), load_style("answer"), {}, 4096)
    assert built.encode_answer("[1]")[-1] == built.template.stop_token_id == 1


def test_token_without_embedding_row_is_one_line(tiny_folder, tmp_path):
    """Fine-tuners add tokens and forget to resize the embedding."""
    shutil.copytree(tiny_folder, tmp_path / "model")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    tokenizer.chat_template = "<|new|>" + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"uses '<\|new\|>', token 132, .* has 132 rows; "):
        check_model(ModelConfig(name=str(tmp_path / "model")))
