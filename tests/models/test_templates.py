"""A model is put in its tokenizer's own chat template, the plain one, or a user's; with one BOS."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.helpers.models import SPECIAL, tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.commands.prepare import settle
from unstable.config import ConfigError, ModelConfig, load
from unstable.models.base import load_tokenizer
from unstable.models.merge import write_tokenizer
from unstable.prompts import PromptBuilder, load_style

CHAT = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "1 or 2?"}]
PLAIN = "Be good.\n\n1 or 2?\n\nAnswer:\n"


def base_tokenizer(*, bos: bool = False, template: str | None = None) -> PreTrainedTokenizerBase:
    """Of a base model; with `bos` <|user|> begins each text, as its own config has it."""
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
    assert ids == tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    return ids


def test_a_base_model_gets_the_plain_template(tmp_path: Path) -> None:
    model = saved(tmp_path, base_tokenizer())
    tokenizer = load_tokenizer(model)
    assert tokenizer.decode(prompt(model)) == PLAIN
    built = PromptBuilder(tokenizer, load_style("answer"), {}, 4096)
    assert built.template.stop_token_id == tokenizer.eos_token_id
    assert built.encode_answer("[1]")[-1] == tokenizer.eos_token_id


@every_row("template", [None, "{{ bos_token }}{{ messages[-1].content }}", "?"])
def test_a_prompt_begins_with_one_bos_where_the_tokenizer_begins_so(
    template: str | None, tmp_path: Path
) -> None:
    ids = prompt(saved(tmp_path / "with", base_tokenizer(bos=True, template=template)))
    assert ids[0] == 2 and ids.count(2) == 1
    assert 2 not in prompt(saved(tmp_path / "without", base_tokenizer()))


def test_a_template_of_the_config_takes_the_place_of_the_tokenizers(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("<{{ messages[-1]['content'] }}>")
    own = tiny_tokenizer()
    arguments = saved(tmp_path / "own", own, chat_template={"enable_thinking": False})
    assert prompt(arguments)[0] == 1  # <|system|>, as its own template has it
    for asked, text in {"plain": PLAIN, str(file): "<1 or 2?>", "[{{ 1 }}]": "[1]"}.items():
        model = saved(tmp_path / "own", own, chat_template=asked)
        assert load_tokenizer(model).decode(prompt(model)) == text


def test_a_run_keeps_the_text_of_the_file_and_an_export_has_the_template(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("<{{ messages[-1]['content'] }}>")
    model = saved(tmp_path / "base", base_tokenizer(bos=True), chat_template=str(file))
    fields = {"model.name": model.name, "model.chat_template": str(file)}
    kept = settle(load("default", fields)).model
    file.unlink()
    assert kept.chat_template == "<{{ messages[-1]['content'] }}>"
    (tmp_path / "export").mkdir()
    write_tokenizer(kept, tmp_path / "export")
    other = AutoTokenizer.from_pretrained(tmp_path / "export")
    ids: Any = other.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert ids == prompt(kept) and ids[0] == 2


def test_a_template_that_cannot_be_used_is_a_line(tmp_path: Path) -> None:
    lines = {"{% raise_exception %}": "no template in Jinja", "{{ raise_exception('no') }}": "no"}
    for asked, line in lines.items():
        with pytest.raises(ConfigError, match=line) as error:
            load_tokenizer(saved(tmp_path, base_tokenizer(), chat_template=asked))
        assert "\n" not in str(error.value)
