"""Test users' pairs: their formats, errors with file and line, and training on them."""

import json

from tests.helpers.learners import make_learner
from tests.helpers.mistakes import line_of
from tests.helpers.models import tiny_model, tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.config import AdapterConfig, GameConfig, ModelConfig
from unstable.datasets.examples import pair_group
from unstable.datasets.sources import jsonl_pairs
from unstable.prompts import PromptBuilder, load_style
from unstable.types import Batch

GAME = GameConfig()
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Your move."}]
OWN = {"observation": "the board", "chosen": "[4]", "rejected": "[0]"}
TALK = {"prompt": CHAT, "chosen": "The centre: [4]", "rejected": "I give up."}


def builder() -> PromptBuilder:
    return PromptBuilder(tiny_tokenizer(), load_style("answer").of_game(GAME), {}, 4096)


def read(path, *rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return jsonl_pairs(path, GAME, builder())


def test_row_is_observation_or_chat_with_two_answers(tmp_path):
    own, talk = read(tmp_path / "pairs.jsonl", OWN, TALK)
    assert (own.chosen.answer, own.rejected.answer) == ("4", "0")  # as the parser reads them
    assert own.chosen.tokens.prompt_ids == own.rejected.tokens.prompt_ids
    tokenizer = tiny_tokenizer()
    text = "<|system|>Be brief.<|end|><|user|>Your move.<|end|><|assistant|>"
    for example, answer in ((talk.chosen, TALK["chosen"]), (talk.rejected, TALK["rejected"])):
        assert tokenizer.decode(example.tokens.prompt_ids) == text
        assert tokenizer.decode(example.tokens.token_ids) == f"{answer}<|end|>"


SAID, WRONG = ({"role": "assistant", "content": text} for text in ("[4]", "[0]"))
FORMS = [
    {"prompt": CHAT, "chosen": "[4]", "rejected": "[0]"},
    {"prompt": CHAT, "chosen": [SAID], "rejected": [WRONG], "score": 3},
    {"prompt": CHAT, "chosen": [*CHAT, SAID], "rejected": [*CHAT, WRONG]},
    {"chosen": [*CHAT, SAID], "rejected": [*CHAT, WRONG]},
    {"prompt": "Your move.", "system": "Be brief.", "chosen": "[4]", "rejected": "[0]"},
    {
        "prompt": "Your move.",
        "chosen": [CHAT[1], SAID],
        "rejected": [CHAT[1], WRONG],
        "system": "Be brief.",
    },
]


def test_formats_of_other_tools_give_same_pair(tmp_path):
    found = read(tmp_path / "theirs.jsonl", *FORMS)
    assert len({(each.chosen.key, each.rejected.key) for each in found[:4]}) == 1
    assert len({(each.chosen.key, each.rejected.key) for each in found}) == 1


def test_labeled_answers_are_half_pairs(tmp_path):
    rows = [{"prompt": CHAT, "completion": [SAID], "label": True}]
    rows += [{"prompt": "Your move.", "completion": "[0]", "label": False}]
    good, bad = read(tmp_path / "labels.jsonl", *rows)
    assert (good.chosen.answer, good.rejected, bad.chosen, bad.rejected.answer) == (
        *("[4]", None, None),
        "[0]",
    )
    first, second = pair_group(good, 0), pair_group(bad, 1)
    assert [each.outcome for each in (*first.trajectories, *second.trajectories)] == [1.0, -1.0]


@every_row(
    "line, words",
    ("{", "not JSON"),
    ("{}", "unknown format (keys: none); use observation or prompt, chosen and rejected"),
    ({"chosen": "[1]", "rejected": "[2]"}, "no prompt; add prompt, or chats as chosen and"),
    (OWN | {"prompt": CHAT}, "(keys: observation, chosen, rejected, prompt); use "),
    (TALK | {"chosen": CHAT}, "chosen: last message from user, not assistant"),
    ({"prompt": "x", "completion": "y", "label": 1}, "label = 1: must be true or false"),
    ({"chosen": [*CHAT, SAID], "rejected": [CHAT[1], SAID]}, "chosen and rejected have differ"),
    (OWN | {"chosen": 4}, "chosen = 4: must be non-empty UTF-8 text"),
    (OWN | {"rejected": " "}, "rejected = ' ': must be non-empty UTF-8 text"),
    (OWN | {"rejected": "[4]"}, "chosen and rejected are the same answer; remove the line"),
    (OWN | {"rejected": "4"}, "games.parser = 'plain': reads '4'"),
    (TALK | {"prompt": []}, "prompt = []: must be a string or message list"),
    (
        TALK | {"prompt": [{"role": "user"}]},
        "prompt.0.content = None: must be non-empty UTF-8 text",
    ),
)
def test_file_errors_name_file_and_line(tmp_path, line, words):
    path = tmp_path / "pairs.jsonl"
    message = line_of(read, path, OWN, "", line)
    assert message.startswith(f"{path}:3: ") and words in message and "\n" not in message


@every_row("name", "dpo", "simpo", "kto", "rft")
def test_learner_trains_on_pairs(tmp_path, name):
    pairs = read(tmp_path / "pairs.jsonl", OWN, TALK)
    tiny_model().save_pretrained(tmp_path / "model")
    model = ModelConfig(
        name=str(tmp_path / "model"), dtype="float32", adapter=AdapterConfig(rank=4, alpha=8)
    )
    algorithm = {"name": name} | ({"baseline": "group"} if name == "kto" else {})
    learner = make_learner(model, algorithm=algorithm, updates=8, learning_rate=5e-3)
    answers = [each.tokens for pair in pairs for each in (pair.chosen, pair.rejected)]

    def preferred():
        scores = [sum(each) for each in learner.logprobs(answers)]
        return [scores[0] - scores[1], scores[2] - scores[3]]

    before = preferred()
    groups = tuple(pair_group(pair, number) for number, pair in enumerate(pairs))
    for version in range(8):
        metrics = learner.update(Batch(version=version, groups=groups)).metrics
    assert all(after > old + 0.1 for after, old in zip(preferred(), before, strict=True))
    if name in ("dpo", "simpo"):
        assert metrics["learn/pairs"] == 2
