"""Between a game and a model: an observation becomes token ids, an answer becomes an action.

A prompt is one chat: system, then the rules, the events, the board, a notice and what to answer.
The rules come first and stay, so that the turns and games of a seat share a prefix of ids.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.config.plugins import load_target
from unstable.prompts.encoding import TextEncoder
from unstable.prompts.parsers import Action, parse_action
from unstable.types import Observation

_MARGIN = 32  # characters of the rules that follow the start whose ids are re-used
_KEPT_IDS = 2**20  # ids of prompts that are kept for when the same comes again
_SHORT_ANSWER = 16  # ids of an answer whose text is kept for when the same comes again
_MARK = "\ue000"  # a character that no template has
_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")


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
    form: str = "brackets"  # how the env takes an action: brackets or bare

    def render(self, observation: Observation) -> str:
        """The user text."""
        return "\n\n".join(part for part in (self.body(observation), self.request) if part)

    def messages(self, observation: Observation) -> list[dict[str, str]]:
        """The chat of a turn."""
        user = {"role": "user", "content": self.render(observation)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def read_action(self, parser: str, text: str) -> "Action":
        """The action in an answer, as `parse_action` finds it; the parser `auto` is the style's."""
        return parse_action(self.chosen(parser), text, reasoning=self.reasoning, form=self.form)

    def of_form(self, form: str) -> "PromptStyle":
        """The style as it is in a game whose env takes actions so; it asks for that form."""
        if self.name == "think" and form == "bare":
            request = self.request.replace("action, in its square brackets, as", "action as")
            request = request.replace("[action]", "action")
            return replace(self, form=form, request=request, parser="boxed")
        return replace(self, form=form)

    def chosen(self, parser: str) -> str:
        """The parser's name; for `auto` the style's own."""
        return self.parser if parser == "auto" else parser


STYLES = {
    "answer": PromptStyle(
        "answer",
        system="",  # a small model follows the request better without one
        request="Answer with only your action, nothing else.",
        reasoning=False,
        parser="plain",
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
        self._encoder = TextEncoder(tokenizer)
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
        return self._encode(messages, self._chat)

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer as an engine would have sampled it, the one that ends it included.

        Where the style has reasoning, the two tags around it are the model's own; else they are
        text like all the rest.
        """
        opening = "" if self.opens_reasoning else "<think>"
        reason, closing, rest = text.removeprefix(opening).rpartition("</think>")
        has_reasoning = self.style.reasoning or self.opens_reasoning
        if has_reasoning and closing and text.startswith(opening):
            parts = (reason, rest)
            ids = self._encoder.encode(parts, lambda texts: opening + closing.join(texts))
        else:
            ids = self._encoder.encode([text])
        return [*ids, self.stop_token_id]

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
        return self._encoder.ids(after)[0] if after else self._tokenizer.eos_token_id

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
        encode = partial(self._encode_turn, observation.rules)
        return self._encode(self.style.messages(observation), self._chat_of_turn, encode)

    def _encode(
        self,
        messages: list[dict[str, str]],
        chat: Callable[[list[dict[str, str]]], str],
        encode: Callable[[str], list[int]] | None = None,
    ) -> list[int]:
        """Ids of the chat, whose contents are text and nothing else."""

        def render(texts: Sequence[str]) -> str:
            pairs = zip(messages, texts, strict=True)
            return chat([{**message, "content": text} for message, text in pairs])

        return self._encoder.encode([message["content"] for message in messages], render, encode)

    def _encode_turn(self, rules: str, chat: str) -> list[int]:
        cut, place = rules.rfind(" ", 0, -_MARGIN), chat.find(rules)
        if min(cut, place) >= 0:
            start, rest = chat[: place + cut], chat[place + cut : place + len(rules)]
            if (start_ids := self._start_ids(start, rest)) is not None:
                return start_ids + self._encoder.ids(chat[len(start) :])
        return self._encoder.ids(chat)

    def _encode_start(self, start: str, rest: str) -> list[int] | None:
        """Ids of `start`, or None where the tokenizer does not begin anew between it and `rest`."""
        encode = self._encoder.ids
        ids = encode(start)
        return ids if ids + encode(rest) == encode(start + rest) else None

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode([*token_ids], skip_special_tokens=True)


def write_answer(game: GameConfig, prompts: PromptBuilder, action: str, reason: str = "") -> str:
    """An answer out of which play reads the action, with the reasoning where the style has it.

    Raises `ConfigError` where the game's parser finds the action in no form of answer.
    """
    boxed, bare = rf"\boxed{{{action}}}", action.strip("[]")
    plain = (bare, action, boxed, f"[{bare}]")
    forms = (boxed, action) if r"\boxed" in prompts.style.request else plain
    for form in forms:
        answer = f"{reason}\n\n{form}" if reason else form
        if prompts.opens_reasoning:
            answer = f"{reason}\n</think>\n\n{form}"
        if prompts.read_action(game.parser, answer) == (action, True):
            return answer
    parser = prompts.style.chosen(game.parser)
    raise ConfigError(
        f"games.parser = {parser!r}: reads {action!r} neither out of {action!r} nor out of "
        f"{boxed!r}; choose another parser, or give the action as it should be read"
    )
