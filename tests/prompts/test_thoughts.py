"""Thoughts: which tags mark them, what is private, how long they are, and what of them stays."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import TokenizersBackend

from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.config import ConfigError, ThoughtsConfig, load
from unstable.prompts import STYLES, PromptBuilder, Tags, find_tags, split_thought
from unstable.prompts.thoughts import KNOWN, THINK
from unstable.types import Observation

LATE = Tags("[THINK]", "[/THINK]")
QUIET = settings(deadline=None, derandomize=True)


def tokenizer_with(tags: Tags, *, special: bool) -> TokenizersBackend:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in tags])
    return tokenizer


def builder(tokenizer: TokenizersBackend, style: str = "answer", **thoughts) -> PromptBuilder:
    return PromptBuilder(tokenizer, STYLES[style], {}, 4096, ThoughtsConfig(**thoughts))


PLAIN = tiny_tokenizer()  # tags are plain text
ADDED = tokenizer_with(THINK, special=False)
SPECIAL = tokenizer_with(LATE, special=True)


def test_thought_tags_are_found_in_tokenizer_or_template():
    assert find_tags(PLAIN) == find_tags(ADDED) == THINK
    assert find_tags(SPECIAL) == LATE
    for tags in KNOWN:
        named = tiny_tokenizer()
        named.chat_template += "{# " + tags.open + " and " + tags.close + " #}"
        assert find_tags(named) == tags
    assert builder(PLAIN, tags=["<a>", "</a>"]).style.tags == Tags("<a>", "</a>")


@every_row(
    "text, thought, rest",
    ("[4]", "", "[4]"),
    ("<think>hm</think>[4]", "hm", "[4]"),
    ("first <think>hm</think>[4]", "hm", "[4]"),
    ("hm</think>[4]", "hm", "[4]"),
    ("[1]<think>or [0]", "or [0]", "[1]"),
    ("<think>a</think>b</think>[1]<think>c", "a</think>b<think>c", "[1]"),
)
def test_answer_splits_into_thought_and_rest(text, thought, rest):
    assert split_thought(text) == (thought, rest)
    other = text.replace("think>", "mull>")
    expected = thought.replace("think", "mull"), rest
    assert split_thought(other, Tags("<mull>", "</mull>")) == expected


PIECES = st.lists(st.sampled_from(["a", "[4]", "<think>", "</think>", "<thi", "nk>"]), max_size=8)


@QUIET
@given(PIECES, st.sampled_from([PLAIN, ADDED]), st.booleans())
@example(["</think>", "</think>", "[4]"], ADDED, False)
def test_thought_tokens_end_at_the_closing_tag(pieces, tokenizer, opens):
    own = builder(tokenizer)
    if opens:
        opening = tokenizer_with(THINK, special=False) if tokenizer is ADDED else tiny_tokenizer()
        opening.chat_template += "{% if add_generation_prompt %}<think>{% endif %}"
        own = builder(opening)
    text = "".join(pieces)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] + [0]
    read = own.read_answer(ids)
    assert read.text == text
    thought, _ = own.style.split(text)
    if "<think>" in text.rpartition("</think>")[2] or (opens and "</think>" not in text):
        assert read.thought == len(ids)
    elif "</think>" not in text:
        assert read.thought == 0 and not thought
    else:
        assert own.decode(ids[: read.thought]).endswith("</think>")
        assert own.decode(ids[read.thought :]) == text.rpartition("</think>")[2]


def test_special_token_tags_are_read_and_private():
    own = builder(SPECIAL, style="think")
    ids = own.encode_answer("[THINK]I take [0], no[/THINK]\\boxed{[4]}")
    assert len(ids) == len("I take [0], no\\boxed{[4]}") + 3
    text, action, thought = own.read_answer(ids)
    assert text == "[THINK]I take [0], no[/THINK]\\boxed{[4]}"
    assert action == ("[4]", True)
    assert thought == len("I take [0], no") + 2
    assert own.read_answer(ids[:8]).action.text == ""  # an unfinished thought
    assert own.is_thinking(ids[:8]) and not own.is_thinking(ids)


def test_thought_ending_has_only_the_closing_tag_token():
    own = builder(ADDED, budget=3, ending="Time is up <think></think>. ")
    ids = own.encode_ending()
    close = ADDED.convert_tokens_to_ids("</think>")
    assert ids[-1] == close and ids.count(close) == 1
    assert ADDED.convert_tokens_to_ids("<think>") not in ids
    assert ADDED.decode(ids) == "Time is up <think></think>. </think>"
    assert PLAIN.decode(builder(PLAIN).encode_ending()) == "</think>"


def observation(*answers: str, events: int = 2) -> Observation:
    shown: dict[str, Any] = {"rules": "The rules.", "board": "The board.", "notice": ""}
    happened = [f"event {number}" for number in range(events)]
    return Observation(seat=0, events=happened, answers=answers, **shown)


def test_kept_thoughts_appear_in_the_prompt():
    answers = ("<think>corner</think>[0]", "[3]", "<think>now <|end|> the centre</think>[4]")
    dropped, kept = builder(PLAIN).build(observation(*answers)), builder(PLAIN, keep=200)
    assert dropped == builder(PLAIN).build(observation())
    prompt = kept.build(observation(*answers))
    shown = PLAIN.decode(prompt.ids)
    part = "Your earlier thoughts, oldest first:\n\ncorner\n\nnow <|end|> the centre\n\nAnswer"
    assert f"The board.\n\n{part}" in shown
    assert "[3]" not in shown and "[4]" not in shown  # actions are not thoughts
    assert prompt.ids.count(0) == dropped.ids.count(0)  # control tokens in thoughts are escaped
    assert prompt.text == dropped.text and prompt.cut_tokens == 0
    assert kept.build(observation()) == dropped


@QUIET
@given(st.lists(st.integers(1, 30), max_size=20), st.integers(2, 80))
def test_oldest_thoughts_are_omitted_in_steps(sizes, keep):
    texts = [f"{number:02}" + "x" * size for number, size in enumerate(sizes)]
    own = builder(PLAIN, keep=keep)
    starts = []
    for count in range(len(texts) + 1):
        answers = [f"<think>{text}</think>[0]" for text in texts[:count]]
        prompt = own.build(observation(*answers))
        shown = PLAIN.decode(prompt.ids)
        held = [text for text in texts[:count] if text in shown]
        assert held == texts[count - len(held) : count]
        assert sum(len(text) + 1 for text in held) <= keep
        assert prompt.cut_tokens == sum(len(text) + 1 for text in texts[: count - len(held)])
        starts.append(count - len(held))
    assert starts == sorted(starts)


def test_events_are_cut_before_kept_thoughts():
    whole = builder(PLAIN, keep=50).build(observation("<think>plan</think>[0]", events=20))
    limit = len(whole.ids) - 1
    own = PromptBuilder(PLAIN, STYLES["answer"], {}, limit, ThoughtsConfig(keep=50))
    cut = own.build(observation("<think>plan</think>[0]", events=20))
    assert len(cut.ids) + cut.cut_tokens == len(whole.ids)
    assert "plan" in PLAIN.decode(cut.ids) and "event 0\n" not in PLAIN.decode(cut.ids)


@every_row(
    "options, line",
    ({"tags": ["<think>"]}, "not two different tags"),
    ({"tags": ["<a>", "<a>"]}, "not two different tags"),
    ({"tags": ["<a>", " "]}, "empty tag"),
    ({"ending": "Enough."}, "set budget"),
    ({"budget": 16}, "leaves no tokens for the action, since max_tokens = 16"),
    ({"keep": 2048}, "leaves no tokens for the position, since max_prompt_tokens = 2048"),
)
def test_thought_setting_errors_name_the_problem(options, line):
    fields = {f"sampling.thoughts.{name}": value for name, value in options.items()}
    with pytest.raises(ConfigError, match="sampling") as raised:
        load("tiny", {"sampling.max_tokens": 16, "sampling.max_prompt_tokens": 2048, **fields})
    assert line in str(raised.value) and "\n" not in str(raised.value)
