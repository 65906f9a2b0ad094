"""Prompts: how styles render them, which events they leave out, and how any answer is parsed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import TokenizersBackend

from tests.helpers.models import CHAT_TEMPLATE, SPECIAL, chat_ids, tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.prompts import PARSERS, STYLES, PromptBuilder, PromptStyle, load_style, split_thought
from unstable.types import Observation

QUIET = settings(deadline=None, derandomize=True)
TINY = tiny_tokenizer()
BUILT_IN = tuple(PARSERS)


def observation(**changes) -> Observation:
    fields: dict[str, Any] = {"seat": 0, "rules": "The rules.", "board": "The board."}
    return Observation(**fields | {"events": ["first", "second", "third"], "notice": ""} | changes)


def builder(style: str = "answer", max_prompt_tokens: int = 2048, **chat_template) -> PromptBuilder:
    return PromptBuilder(TINY, load_style(style), chat_template, max_prompt_tokens)


def style(parser: str, *, reasoning: bool = False) -> PromptStyle:
    return PromptStyle("own", system="", request="", reasoning=reasoning, parser=parser)


@every_row(
    "parser, text, action, formatted",
    ("brackets", "[4]", "[4]", True),
    ("brackets", "Not [0], rather [Bid: 3, 4].", "[Bid: 3, 4]", True),
    ("brackets", "[[4]]", "[4]", True),
    ("brackets", "[4] or [", "[4]", True),
    ("brackets", "I take [ ]", "I take [ ]", False),
    ("brackets", " four\n\tplease ", "four please", False),
    ("boxed", r"So \boxed{4}.", "[4]", True),
    ("boxed", r"\boxed{[0]} no, \boxed{ [col 4] }", "[col 4]", True),
    ("boxed", r"\boxed{\text{call}}", r"[\text{call}]", True),
    ("boxed", r"\boxed{} [4]", r"\boxed{} [4]", False),
    ("boxed", r"\boxed{4", r"\boxed{4", False),
    ("raw", " I offer peace. ", "I offer peace.", True),
    ("raw", "  ", "", False),
    ("brackets", "<think>maybe [0]</think>[1]", "[1]", True),
    ("brackets", "maybe [0]</think>[1]", "[1]", True),
    ("brackets", "[1]<think>or rather [0]", "[1]", True),
    ("brackets", "<think>maybe [0]", "", False),
    ("raw", "<think>secret</think> hello", "hello", True),
    ("exact", " [4]\n", "[4]", True),
    ("exact", "<think>maybe [0]</think>[1]", "[1]", True),
    ("exact", "[4]8]6", "", False),
    ("exact", "I take [4]", "", False),
    ("exact", "[4][4]", "", False),
    ("exact", "4", "", False),
    ("plain", "4", "[4]", True),
    ("plain", "<think>no</think>[4]\n", "[4]", True),
    ("plain", "I take [4]", "", False),
    ("plain", "[4]8]6", "", False),
    ("plain", "4\n4", "", False),
    ("bare", " 0 2 ", "[0 2]", True),
    ("bare", "check", "[check]", True),
    ("bare", "[4]", "", False),
    ("bare", "4]", "", False),
    ("bare", "4\n5", "", False),
    ("bare", "", "", False),
)
def test_parsers_read_actions(parser, text, action, formatted):
    assert style(parser).read_action(text) == (action, formatted)


def only_digits(text: str) -> str | None:
    return text if text.isdigit() else None


def test_custom_parser_and_reasoning_without_action():
    own = style(f"{__name__}:only_digits")
    assert own.read_action("<think>no</think> 4 ") == ("4", True)
    assert own.read_action("four") == ("four", False)
    reasons = style("boxed", reasoning=True)
    assert reasons.read_action("I hold the king, so") == ("", False)
    assert reasons.read_action(r"I hold the king: \boxed{bet}") == ("[bet]", True)


PIECES = st.sampled_from(
    ["[", "]", "{", "}", "\\boxed{", "<think>", "</think>", "4", " ", "\n", "\0", "ö", "\u2028"]
)


@QUIET
@given(st.lists(PIECES | st.text(max_size=5), max_size=60).map("".join), st.sampled_from(BUILT_IN))
def test_any_answer_is_parsed(text, parser):
    action, formatted = style(parser).read_action(text)
    assert "<think>" not in action and "</think>" not in action
    if formatted:
        assert action.strip() == action != ""
    else:
        assert len(action) <= 200 and action == " ".join(action.split())
    if parser == "brackets" and formatted:
        assert action.startswith("[") and action.endswith("]") and action in text


@QUIET
@given(st.text(), st.text())
def test_reasoning_is_removed(secret, answer):
    cleaned = split_thought(f"<think>{secret}</think>{answer}")[1]
    assert cleaned == split_thought(answer)[1]


@every_row("parser", *BUILT_IN)
def test_long_answers_are_parsed_quickly(parser):
    for piece in ("[", "\\boxed{", "\\boxed{{", "<think>", "[]", "a "):
        style(parser).read_action(piece * 20_000)
    style(parser).read_action("[" + "a" * 60_000)


@every_row("style", *STYLES.values())
def test_prompt_follows_the_chat_template_with_rules_first(style):
    prompt = builder(style.name).build(
        observation(notice="Not so.", brief="In brief.", position="X12")
    )
    user = f"The rules.\n\nfirst\nsecond\nthird\n\nThe board.\n\nNot so.\n\n{style.request}"
    if style.name == "compact":
        user = "In brief.\nX12\nNot so."
    assert prompt.text == user
    system = f"<|system|>{style.system}<|end|>" if style.system else ""
    assert TINY.decode(prompt.ids) == f"{system}<|user|>{user}<|end|><|assistant|>"
    assert prompt.cut_tokens == 0


def trained_tokenizer(splits_words: bool):
    """Byte-level BPE like the models' own; without splitting, it merges across words."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_words)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"special_tokens": SPECIAL, "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, **options)

    backend.train_from_iterator([RULES, EVENTS] * 4, trainer)
    tokenizer = TokenizersBackend(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


RULES = (
    "You may bet, call or fold.  On your turn: [bet] adds a chip to the pot, and so does [call]."
)
EVENTS = "Player 1 bets a chip.\nPlayer 0 may call or fold.\n\nYour turn: [bet] [call]"
TOKENIZERS = [trained_tokenizer(True), trained_tokenizer(False), TINY]
TEXTS = st.text("ab \n.,'[]é") | st.just(RULES) | st.just(EVENTS)


@QUIET
@given(st.data(), st.sampled_from(TOKENIZERS))
def test_ids_equal_the_chat_templates(data, tokenizer):
    built = PromptBuilder(tokenizer, STYLES["answer"], {}, 100_000)
    rules = data.draw(TEXTS | st.tuples(TEXTS, TEXTS).map("".join))
    for _ in range(3):
        seen = observation(rules=rules, events=data.draw(st.lists(TEXTS, max_size=3)))
        assert built.build(seen).ids == chat_ids(tokenizer, STYLES["answer"], seen)


def templated(user: str):
    """A tokenizer whose template renders user texts by `user`."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role == 'user' %}<|user|>" + user + "<|end|>"
        "{% else %}<|{{ message.role }}|>{{ message.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return tokenizer


PLAIN = templated("{{ message.content }}")
LOOKING = [
    PLAIN,
    *map(templated, ["{{ message.content | trim }}", "{{ message.content.strip('a') }}"]),
    *map(templated, ["{{ message.content | upper }}", "{{ message.content.split('b')[-1] }}"]),
    templated("{{ message.content }}{% if 'ab' in message.content %}!{% endif %}"),
    templated("{% if message.content.endswith('.') %}?{% endif %}{{ message.content }}"),
    templated("{{ message.content | replace('a', 'b') }}"),
    templated("{{ message.content }}{{ message.content }}"),
]


@QUIET
@given(st.sampled_from(LOOKING), st.lists(st.text("ab .\n", max_size=6), min_size=1, max_size=6))
def test_ids_equal_for_templates_that_transform_text(tokenizer, boards):
    for style in STYLES.values():
        built = PromptBuilder(tokenizer, style, {}, 100_000)
        for board in [*boards, *boards]:  # cached the second time
            seen = observation(board=board, position=board)
            assert built.build(seen).ids == chat_ids(tokenizer, style, seen)
            assert built.build(seen).text == style.render(seen)


def test_plain_template_is_not_rendered_per_turn(monkeypatch):
    rendered = []
    whole = PLAIN.apply_chat_template

    def counted(*arguments, **options):
        rendered.append(arguments)
        return whole(*arguments, **options)

    monkeypatch.setattr(PLAIN, "apply_chat_template", counted)
    built = PromptBuilder(PLAIN, STYLES["think"], {}, 100_000)
    built.build(observation())
    known = len(rendered)
    assert known > 3
    for board in ("one", "two"):
        built.build(observation(board=board))
    assert len(rendered) == known


def test_prompt_cache_is_bounded(monkeypatch):
    built = builder()
    first = built.build(observation()).ids
    assert built.build(observation()).ids is first
    monkeypatch.setattr("unstable.prompts.builder._KEPT_IDS", 2 * len(first))
    built = builder()
    boards = ["one", "two", "three", "one", "two", "three"]
    prompts = [built.build(observation(board=board)) for board in boards]
    assert [prompt.ids for prompt in prompts[:3]] == [prompt.ids for prompt in prompts[3:]]
    assert len(built._kept) <= 2


def test_repeated_answers_are_read_identically():
    built = builder()
    for text in ("[4]", "[4]", "a longer answer than is kept", "[4]"):
        ids = [*TINY.encode(text), 0]
        assert built.read_answer(ids)[:2] == (text, built.style.read_action(text))
        assert built.decode(ids) == text


def test_start_is_reused_and_empty_parts_leave_no_gap():
    reused = []
    for tokenizer in TOKENIZERS:
        built = PromptBuilder(tokenizer, STYLES["answer"], {}, 100_000)
        for event in ("one", "two", "three"):
            built.build(observation(rules=RULES, events=[event]))
        reused.append(built._start_ids.cache_info().hits)
    assert reused[0] == 2
    prompt = builder().build(observation(events=[], board=""))
    assert prompt.text == f"The rules.\n\n{STYLES['answer'].request}"


SHORT_EVENTS = st.lists(st.text("ab", min_size=1, max_size=30), max_size=12)


@QUIET
@given(SHORT_EVENTS, st.integers(0, 200))
def test_oldest_events_are_omitted_until_prompt_fits(events, spare):
    bare = builder().build(observation(events=[]))
    whole = builder().build(observation(events=events))
    limit = len(bare.ids) + spare
    prompt = builder(max_prompt_tokens=limit).build(observation(events=events))
    assert len(prompt.ids) <= limit
    assert len(prompt.ids) + prompt.cut_tokens == len(whole.ids)
    kept = [events[k:] for k in range(len(events) + 1) if build_length(events[k:]) <= limit]
    assert prompt.ids in [builder().build(observation(events=each)).ids for each in kept]
    if prompt.cut_tokens and kept[0]:  # a cut clears at most half of the room
        room = limit - len(builder().build(observation(events=[], board="")).ids)
        left = len(prompt.ids) - len(bare.ids)
        assert left + max(map(len, events)) + 2 >= room // 2 - len("The board.\n\n")


@QUIET
@given(st.lists(st.integers(1, 30), min_size=5, max_size=60), st.integers(150, 400))
def test_prompt_prefix_is_stable_between_cuts(sizes, room):
    """Cuts are rare: half of the room is filled between two of them."""
    texts = [f"{number:02}" + "x" * size for number, size in enumerate(sizes)]
    bare = builder().build(observation(events=[], board=""))
    prompts = builder(max_prompt_tokens=len(bare.ids) + len("The board.\n\n") + room)
    built = [prompts.build(observation(events=texts[:each])).text for each in range(len(texts) + 1)]
    events = [text.split("\n\n")[1].split("\n") if "x" in text else [] for text in built]
    steps = [0]
    for count, (before, now) in enumerate(zip(events, events[1:], strict=False), 1):
        if now[:1] != before[:1] and before:
            steps.append(count)
        else:
            assert now == [*before, texts[count - 1]]
    for first, second in zip(steps[1:], steps[2:], strict=False):
        assert sum(len(text) + 1 for text in texts[first:second]) + 2 * 33 >= room // 2


def build_length(events: list[str]) -> int:
    return len(builder().build(observation(events=events)).ids)


def test_oversized_prompt_error_names_the_setting():
    with pytest.raises(ValueError, match="sampling.max_prompt_tokens = 30"):
        builder(max_prompt_tokens=30).build(observation())


def shout(observation: Observation) -> str:
    return observation.rules.upper()


LOUD = PromptStyle("loud", system="Listen.", request="Well?", reasoning=False, body=shout)


def test_custom_styles_are_loaded():
    by_function = load_style(f"{__name__}:shout")
    assert by_function.render(observation()) == "THE RULES."
    assert by_function.messages("Go.") == [{"role": "user", "content": "Go."}]
    assert by_function.reasoning
    assert load_style(f"{__name__}:LOUD") is LOUD
    assert LOUD.render(observation()) == "THE RULES.\n\nWell?"


@every_row(
    "refusal",
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}",
    "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}",
)
def test_unsupported_system_text_precedes_user_text(refusal: str) -> None:
    """Gemma's and Mistral's first templates reject a system message; others omit it."""
    tokenizer = tiny_tokenizer()
    usual = PromptBuilder(tokenizer, STYLES["think"], {}, 2048)
    system, user = usual.style.messages("The board.")
    assert system["content"] in tokenizer.decode(usual.template.encode([system, user]))
    tokenizer.chat_template = refusal + CHAT_TEMPLATE
    chat = PromptBuilder(tokenizer, STYLES["think"], {}, 2048).template
    assert chat.encode([system, user]) == chat.encode(
        [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}]
    )


def test_template_arguments_apply_and_may_open_thoughts():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template += "{% if enable_thinking %}<think>\n{% endif %}"
    for thinking in (True, False):
        built = PromptBuilder(tokenizer, STYLES["think"], {"enable_thinking": thinking}, 2048)
        assert built.style.opened is thinking
        assert tokenizer.decode(built.build(observation()).ids).endswith("<think>\n") is thinking
