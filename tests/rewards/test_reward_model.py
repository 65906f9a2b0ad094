"""A sequence classifier as reward model: a real one, of random weights, in a folder of its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig
from transformers import LlamaForSequenceClassification as Llama

from tests.helpers.builders import answering, game
from tests.helpers.judged import Entry, counts, judged, judged_by, rewards_of
from tests.helpers.mistakes import refused
from unstable.config import ConfigError, ModelConfig, parse
from unstable.models.base import load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model") / "rewards"
    tokenizer = load_tokenizer(ModelConfig(name="tiny"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=None,
    )
    config.num_labels = 2
    Llama(config).save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def term(folder: Path, **args: Any) -> Entry:
    given = {"path": str(folder), "device": "cpu", **args}
    return judged_by("reward_model", judged="turn", args=given, retries=0)


def alone(folder: Path, text: str, label: int) -> float:
    """Return the library's score of a single text."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = load_tokenizer(ModelConfig(name=str(folder))).encode(text)
    with torch.inference_mode():
        return float(model(torch.tensor([ids])).logits[0, label])


async def test_padded_batch_scores_equal_single_scores(folder: Path) -> None:
    played = []
    for number in range(7):
        one = game(game_id=number, turns=1)
        one.turns[0] = answering(one.turns[0], text="a move " * number + str(number))
        played.append(one)
    rewards = rewards_of(term(folder, template="{answer}!", label=1))
    found = await judged(rewards, played)
    assert counts(rewards)["calls"] == 1
    for one in played:
        expected = alone(folder, f"{one.turns[0].answer.text}!", 1)
        assert found[one.spec.game_id] == pytest.approx(expected, abs=1e-5)


async def test_chat_is_scored_with_the_chat_template(folder: Path) -> None:
    tokenizer = load_tokenizer(ModelConfig(name=str(folder)))
    chat = [{"role": "user", "content": "the board"}, {"role": "assistant", "content": "[4]"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    ids = tokenizer.encode(text, add_special_tokens=False)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        expected = float(model(torch.tensor([ids])).logits[0, 0])
    found = await judged(rewards_of(term(folder)), [game(turns=1)])
    assert found[0] == pytest.approx(expected, abs=1e-5)


async def test_long_text_keeps_its_last_tokens(folder: Path) -> None:
    short, long = game(turns=1), game(turns=1, game_id=1)
    short.turns[0] = answering(short.turns[0], text="x" * 4)
    long.turns[0] = answering(long.turns[0], text="y" * 50 + "x" * 4)
    args = {"template": "{answer}", "max_tokens": 2}
    found = await judged(rewards_of(term(folder, **args)), [short, long])
    assert found[0] == pytest.approx(found[1], abs=1e-6)


async def test_invalid_model_is_rejected(folder: Path, tiny_folder: Path, tmp_path: Path) -> None:
    rewards_of(term(folder)).check()
    refused(r"^judges.judge.args.path = .* score\.weight", rewards_of(term(tiny_folder)).check)
    found = await judged(rewards_of(term(folder, label=2)), [game()])
    assert "label = 2: the model has no such output; set a number from 0 to 1" in str(found[0])
    with pytest.raises(ConfigError, match=r"^judges.judge.args.path = .*: config.json not found"):
        rewards_of(term(tmp_path)).check()
    with pytest.raises(ConfigError, match=r"^judges.judge.args.device = 'gpu': input should"):
        entry = {"kind": "reward_model", "args": {"path": "x", "device": "gpu"}}
        parse({"judges": {"judge": entry}})
