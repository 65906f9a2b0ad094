"""Between a game and a model: an observation becomes token ids, an answer becomes an action.

A prompt is one chat: system, then the rules, the events, the board, a notice and what to answer.
The rules come first and stay, so that the turns and games of a seat share a prefix of ids.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from unstable.config import ConfigError, GameConfig
from unstable.plugins import load_target
from unstable.types import Observation

_MAX_UNPARSED = 200  # characters of an answer without an action that are passed on as one
_MARGIN = 32  # characters of the rules that follow the start whose ids are re-used
_KEPT_IDS = 2**20  # ids of prompts that are kept for when the same comes again
_SHORT_ANSWER = 16  # ids of an answer whose text is kept for when the same comes again
_MARK = "\ue000"  # a character that no template has
_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_BRACKETS = re.compile(r"\[[^\[\]]*[^\[\]\s][^\[\]]*\]")
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def observation_text(observation: Observation) -> str:
    """The observation as text: rules, events, board and notice, a blank line between them."""
    parts = (observation.rules, "\n".join(observation.events), observation.board)
    return "\n\n".join(part for part in (*parts, observation.notice) if part)


def compact_text(observation: Observation) -> str:
    """The observation in few tokens: what never changes, then the position and any notice."""
    parts = (observation.brief, observation.position, observation.notice)
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """How a game is put to a model.

    PromptStyle("answer", system="You play ...", request="Answer with ...", reasoning=False)
    """

    name: str
    system: str  # empty: no system message
    request: str  # the user text's last line: what to answer
    reasoning: bool  # the text around the action is private
    body: Callable[[Observation], str] = field(default=observation_text)
    parser: str = "brackets"  # that games.parser: auto stands for

    def render(self, observation: Observation) -> str:
        """The user text."""
        return "\n\n".join(part for part in (self.body(observation), self.request) if part)

    def messages(self, observation: Observation) -> list[dict[str, str]]:
        """The chat of a turn."""
        user = {"role": "user", "content": self.render(observation)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def read_action(self, parser: str, text: str) -> "Action":
        """The action in an answer, as `parse_action` finds it; the parser `auto` is the style's."""
        return parse_action(self.chosen(parser), text, reasoning=self.reasoning)

    def chosen(self, parser: str) -> str:
        """The parser's name; for `auto` the style's own."""
        return self.parser if parser == "auto" else parser


STYLES = {
    "answer": PromptStyle(
        "answer",
        system="",  # a small model follows the request better without one
        request="Answer with only your action in square brackets, nothing else.",
        reasoning=False,
        parser="exact",
    ),
    "compact": PromptStyle(
        "compact",
        system="",
        request="",  # stands in what never changes, before the position
        reasoning=False,
        body=compact_text,
        parser="bare",
    ),
    "think": PromptStyle(
        "think",
        system="You play a game to win. Follow its rules and make only moves that it allows.",
        request="It is your turn. Reason step by step, "
        "then give one action, in its square brackets, as \\boxed{[action]}.",
        reasoning=True,
    ),
}


@cache
def load_style(name: str) -> PromptStyle:
    """A built-in style, a `module:name` PromptStyle, or one whose user text a function writes.

    The function is given the Observation; what a model says around its action counts as reasoning.
    """
    if name in STYLES:
        return STYLES[name]
    target = load_target(name)
    if isinstance(target, PromptStyle):
        return target
    return PromptStyle(name, system="", request="", reasoning=True, body=target)


def _in_brackets(text: str) -> str | None:
    found = _BRACKETS.findall(text)
    return found[-1] if found else None


def _boxed(text: str) -> str | None:
    found = _BOXED.findall(text)
    content = found[-1].strip() if found else ""
    if not content:
        return None
    return content if "[" in content else f"[{content}]"


def _raw(text: str) -> str | None:
    return text or None


def _exact(text: str) -> str | None:
    return text if _BRACKETS.fullmatch(text) else None


def _bare(text: str) -> str | None:
    return f"[{text}]" if text and not re.search(r"[\[\]\n]", text) else None


PARSERS: dict[str, Callable[[str], str | None]] = {
    "brackets": _in_brackets,
    "exact": _exact,
    "bare": _bare,
    "boxed": _boxed,
    "raw": _raw,
}
_STRICT = {"exact", "bare"}  # what they do not read is no action, even if an env finds one in it


class Action(NamedTuple):
    """What is given to the env, and whether the parser found it in the answer."""

    text: str
    formatted: bool


def parse_action(parser: str, text: str, *, reasoning: bool = False) -> Action:
    """The action in an answer, by a built-in parser or a `module:function(text) -> str | None`.

    Where there is none, the answer itself on one short line, or nothing if it is `reasoning` or the
    parser is strict (exact, bare): there, whatever else stands beside an action makes it none.
    """
    answer = strip_reasoning(text).strip()
    action = (PARSERS.get(parser) or load_target(parser))(answer)
    if action is not None:
        return Action(action, True)
    if reasoning or parser in _STRICT:
        return Action("", False)
    return Action(" ".join(answer.split())[:_MAX_UNPARSED], False)


def strip_reasoning(text: str) -> str:
    """The text without `<think>...</think>`, also where either of the two tags is missing."""
    answer = text.rpartition("</think>")[2]
    return answer.partition("<think>")[0]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn's prompt: what the engine is given, and the user text in it."""

    ids: list[int]  # one list for all prompts that are alike: not to be changed
    text: str
    cut_tokens: int  # of the oldest events, left out so that the prompt fits


class PromptBuilder:
    """Makes prompts with a tokenizer's chat template."""

    def __init__(
        self, tokenizer: Any, style: PromptStyle, chat_template: dict, max_prompt_tokens: int
    ) -> None:
        self.style = style
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        self._max_prompt_tokens = max_prompt_tokens
        self._start_ids = lru_cache(maxsize=256)(self._encode_start)
        self._around = lru_cache(maxsize=16)(self._find_around)
        self._decode_short = lru_cache(maxsize=4096)(self._decode)
        self._kept: dict[tuple[str, ...], list[int]] = {}  # prompts' ids by the chat's texts
        self._room = _KEPT_IDS
        opening = self._chat([{"role": "user", "content": "?"}])
        self.opens_reasoning = opening.rstrip().endswith("<think>")

    def build(self, observation: Observation) -> Prompt:
        """The prompt, less the oldest events if it would be too long; ValueError if it still is."""
        chat = self.style.messages(observation)
        text, key = chat[-1]["content"], tuple(message["content"] for message in chat)
        if (kept_ids := self._kept.get(key)) is not None:
            return Prompt(kept_ids, text, 0)
        ids = self._ids(observation)
        if len(ids) <= self._max_prompt_tokens:
            self._keep(key, ids)
            return Prompt(ids, text, 0)

        def without(left_out: int) -> Observation:
            return replace(observation, events=observation.events[left_out:])

        def fits(left_out: int) -> bool:
            return len(self._ids(without(left_out))) <= self._max_prompt_tokens

        fewest = bisect_left(range(len(observation.events)), True, key=fits)
        shorter = without(fewest)
        kept = self._ids(shorter)
        if len(kept) > self._max_prompt_tokens:
            raise ValueError(
                f"sampling.max_prompt_tokens = {self._max_prompt_tokens}: the prompt has "
                f"{len(kept)} tokens even without its events; raise it"
            )
        return Prompt(kept, self.style.render(shorter), len(ids) - len(kept))

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Ids of any chat, up to where its answer begins."""
        return self._encode(self._chat(messages))

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer as an engine would have sampled it, the one that ends it included."""
        return [*self._encode(text), self.stop_token_id]

    def read_answer(self, token_ids: list[int]) -> str:
        """The text of sampled ids, less the tokens that only mark something."""
        if len(token_ids) > _SHORT_ANSWER:
            return self._decode(token_ids)
        return self._decode_short(tuple(token_ids))

    def read_action(self, parser: str, text: str) -> Action:
        """The action in a model's answer, as `parse_action` finds it."""
        # Where the template itself opens the reasoning, the answer holds only its end.
        answer = f"<think>{text}" if self.opens_reasoning else text
        return self.style.read_action(parser, answer)

    @cached_property
    def stop_token_id(self) -> int:
        """What the template puts after an answer, or else the tokenizer's end of sequence."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, **self._chat_template)
        after = text.rpartition("!")[2].lstrip()
        return self._encode(after)[0] if after else self._tokenizer.eos_token_id

    def _chat(self, messages: list[dict[str, str]]) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self._chat_template
        )

    def _keep(self, key: tuple[str, ...], ids: list[int]) -> None:
        """Remember a prompt; where there is no room left, all that came before goes."""
        if len(ids) > self._room:
            self._kept.clear()
            self._room = _KEPT_IDS
        self._kept[key] = ids
        self._room -= len(ids)

    def _chat_of_turn(self, messages: list[dict[str, str]]) -> str:
        """As `_chat`, rendered only where the template does more than to put something around."""
        *head, user = messages
        text = user["content"]
        around = self._around(tuple((message["role"], message["content"]) for message in head))
        if around is None or text != text.strip():
            return self._chat(messages)
        return around[0] + text + around[1]

    def _find_around(self, head: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
        """What a chat has before and after its last user text, or None where that depends on it.

        It is tried with texts that hold each word of the template itself, since a template can only
        look for these. White space at either end is left out: many templates strip it.
        """
        first = [{"role": role, "content": content} for role, content in head]

        def chat(text: str) -> str:
            return self._chat([*first, {"role": "user", "content": text}])

        before, _, after = chat(_MARK).partition(_MARK)
        template = str(getattr(self._tokenizer, "chat_template", ""))
        words = {word for pair in _QUOTED.findall(template) for word in pair}
        for word in sorted(words) + ["\\'\"{{ é }}<&>\u2028"]:
            for text in (word, f"{word}?", f"?{word}", f"?\n{word}\n?"):
                text = text.replace("\\n", "\n").strip()
                if text and chat(text) != before + text + after:
                    return None
        return before, after

    def _ids(self, observation: Observation) -> list[int]:
        """The chat's ids; those of its start, mostly rules, are re-used from turn to turn."""
        text, rules = self._chat_of_turn(self.style.messages(observation)), observation.rules
        cut, place = rules.rfind(" ", 0, -_MARGIN), text.find(rules)
        if min(cut, place) >= 0:
            start, rest = text[: place + cut], text[place + cut : place + len(rules)]
            if (start_ids := self._start_ids(start, rest)) is not None:
                return start_ids + self._encode(text[len(start) :])
        return self._encode(text)

    def _encode_start(self, start: str, rest: str) -> list[int] | None:
        """Ids of `start`, or None where the tokenizer does not begin anew between it and `rest`."""
        ids = self._encode(start)
        return ids if ids + self._encode(rest) == self._encode(start + rest) else None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode([*token_ids], skip_special_tokens=True)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def write_answer(game: GameConfig, prompts: PromptBuilder, action: str, reason: str = "") -> str:
    """An answer out of which play reads the action, with the reasoning where the style has it.

    Raises `ConfigError` where the game's parser finds the action in no form of answer.
    """
    boxed, bare = rf"\boxed{{{action}}}", action.strip("[]")
    forms = (boxed, action) if r"\boxed" in prompts.style.request else (action, boxed, bare)
    for form in forms:
        answer = f"{reason}\n\n{form}" if reason else form
        if prompts.opens_reasoning:
            answer = f"{reason}\n</think>\n\n{form}"
        if prompts.read_action(game.parser, answer) == (action, True):
            return answer
    parser = prompts.style.chosen(game.parser)
    raise ConfigError(
        f"games.parser = {parser!r}: reads {action!r} neither out of {forms[0]!r} nor out of "
        f"{forms[1]!r}; choose another parser, or give the action as it should be read"
    )
