"""Conversion between games and models: observations to prompt ids, sampled ids to answers."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from msgspec import structs

from unstable.config import ConfigError, ThoughtsConfig
from unstable.prompts.chat import ChatTemplate, Message
from unstable.prompts.cutting import left_out
from unstable.prompts.styles import Action, PromptStyle
from unstable.prompts.thoughts import AnswerText
from unstable.types import Observation

_MARGIN = 32  # characters of the rules after the reused start
_KEPT_IDS = 2**20  # token ids in the cache of prompts
_SHORT_ANSWER = 16  # token ids; readings of answers up to this length are cached
_SHORT_STATE = 256  # characters; ids of states up to this length are cached
_MARK = "\ue000"  # private-use character, in no template
_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_NOTHING_NEW: dict[str, Any] = {"events": [], "board": "", "notice": "", "position": ""}
_EARLIER = "Your earlier thoughts, oldest first:"


class Prompt(NamedTuple):
    """The ids of a turn's prompt, and its user text without earlier thoughts."""

    ids: list[int]  # shared by equal prompts: do not modify
    text: str
    cut_tokens: int  # tokens of the oldest events and thoughts, omitted to fit


class AnswerReading(NamedTuple):
    """A decoded answer: AnswerReading("<think>a</think>[4]", Action("[4]", True), 3)."""

    text: str
    action: Action
    thought: int  # token ids of the thought, including its closing tag


class PromptBuilder:
    """Builder of prompts with a tokenizer's chat template, and reader of answers."""

    def __init__(
        self,
        tokenizer: Any,
        style: PromptStyle,
        chat_template: dict,
        max_prompt_tokens: int,
        thoughts: ThoughtsConfig | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer, chat_template)
        self._encoder = self.template.encoder
        self._max_prompt_tokens = max_prompt_tokens
        self._start_ids = lru_cache(maxsize=256)(self._encode_start)
        self._around = lru_cache(maxsize=16)(self._find_around)
        self._read_short = lru_cache(maxsize=4096)(self._read)
        self._size = lru_cache(maxsize=4096)(self._count)
        self._move_ids = lru_cache(maxsize=4096)(self._encode_move)
        self._state_ids = lru_cache(maxsize=4096)(self._encode_state)
        self._kept: dict[str, list[int]] = {}  # token ids of prompts by user text
        self._room = _KEPT_IDS
        self._thoughts = thoughts or ThoughtsConfig()
        self._answers = AnswerText(tokenizer, self._thoughts)
        tags = self._answers.tags
        opening = self.template.render([{"role": "user", "content": "?"}])
        self.style = replace(style, tags=tags, opened=opening.rstrip().endswith(tags.open))

    def build(self, observation: Observation, keep: int | None = None) -> Prompt:
        """Build a prompt, without the oldest events, then thoughts, if it would be too long.

        Half of the room for events is cleared at once (see `cutting`). A game driver's chat is
        never cut. Raises `ValueError` if the prompt is still too long. `keep` is the most tokens of
        earlier thoughts, by default the config's.
        """
        if observation.chat:
            ids = self.template.encode(observation.chat, observation.tools)
            if len(ids) > self._max_prompt_tokens:
                raise ValueError(
                    f"the chat has {len(ids)} tokens, more than sampling.max_prompt_tokens = "
                    f"{self._max_prompt_tokens}"
                )
            return Prompt(ids, self.style.render(observation), 0)
        rules, text = observation.rules, self.style.render(observation)
        if observation.brief:  # the compact style
            rules = f"{observation.brief}\n"  # one token in a vocabulary of whole texts
        keep = self._thoughts.keep if keep is None else keep
        none = ("", 0, 0)
        thoughts, size, lost = self._earlier(observation, keep) if self._thoughts.keep else none
        whole = self.style.render(observation, thoughts) if thoughts else text
        if (kept_ids := self._kept.get(whole)) is not None:
            return Prompt(kept_ids, text, lost)
        ids = self._turn_ids(rules, whole)
        if len(ids) <= self._max_prompt_tokens:
            self._keep(whole, ids)
            return Prompt(ids, text, lost)

        def ids_without(count: int) -> list[int]:
            shorter = structs.replace(observation, events=observation.events[count:])
            return self._turn_ids(rules, self.style.render(shorter, thoughts))

        def fits(count: int) -> bool:
            return len(ids_without(count)) <= self._max_prompt_tokens

        # Ids common to all prompts of the game, so that all of them are cut in equal steps.
        fixed = self._turn_ids(
            rules, self.style.render(structs.replace(observation, **_NOTHING_NEW))
        )
        sizes = [self._size(event) for event in observation.events]
        count = left_out(sizes, self._max_prompt_tokens - len(fixed), fits)
        kept = ids_without(count)
        if len(kept) > self._max_prompt_tokens:
            if thoughts:
                return self.build(observation, max(0, size - len(kept) + self._max_prompt_tokens))
            raise ValueError(
                f"sampling.max_prompt_tokens = {self._max_prompt_tokens}: the prompt has "
                f"{len(kept)} tokens without any events; raise it"
            )
        text = self.style.render(structs.replace(observation, events=observation.events[count:]))
        return Prompt(kept, text, lost + len(ids) - len(kept))

    def _earlier(self, observation: Observation, keep: int) -> tuple[str, int, int]:
        """Return the seat's newest thoughts for the user text, their tokens and those omitted."""
        split = (self.style.split(answer)[0].strip() for answer in observation.answers)
        thoughts = [thought for thought in split if thought]
        sizes = [self._size(thought) for thought in thoughts]
        lost = left_out(sizes, keep, lambda count: sum(sizes[count:]) <= keep)
        shown = [_EARLIER, *thoughts[lost:]] if thoughts[lost:] else []
        return "\n\n".join(shown), sum(sizes[lost:]), sum(sizes[:lost])

    def _count(self, text: str) -> int:
        """Count the tokens of a text, and one for the separator after it."""
        return len(self._encoder.encode([text])) + 1

    def encode_answer(self, text: str) -> list[int]:
        """Return the ids of an answer as an engine would sample it, including the id that ends it.

        If the style has reasoning, the two tags around it are control tokens; otherwise they are
        plain text.
        """
        opening = "" if self.style.opened else self.style.tags.open
        reason, closing, rest = text.removeprefix(opening).rpartition(self.style.tags.close)
        has_reasoning = self.style.reasoning or self.style.opened
        if has_reasoning and closing and text.startswith(opening):
            parts = (reason, rest)
            ids = self._encoder.encode(parts, lambda texts: opening + closing.join(texts))
        else:
            ids = self._encoder.encode([text])
        return [*ids, self.template.stop_token_id]

    def encode_move(self, action: str) -> list[int]:
        """Return the ids of the answer that contains only this action; do not modify the list.

        Raises `ConfigError` if the parser reads the action from no answer (see `write_answer`).
        """
        return self._move_ids(action)

    def _encode_move(self, action: str) -> list[int]:
        return self.encode_answer(write_answer(self, action))

    def encode_state(self, text: str) -> list[int]:
        """Return the ids of a position's whole state, in no prompt; do not modify the list."""
        return self._state_ids(text) if len(text) <= _SHORT_STATE else self._encode_state(text)

    def _encode_state(self, text: str) -> list[int]:
        return self._encoder.encode([text])

    def encode_ending(self) -> list[int]:
        """Return the ids that end a thought at its budget: `ending` and the closing tag."""
        close = self.style.tags.close
        return self._encoder.encode([self._thoughts.ending], lambda texts: texts[0] + close)

    def is_thinking(self, token_ids: Sequence[int]) -> bool:
        """Return whether the next token after these ids of an answer is within a thought."""
        text, tags = self.decode(token_ids), self.style.tags
        begun = tags.open + text if self.style.opened else text
        return tags.open in begun.rpartition(tags.close)[2]

    def read_answer(self, token_ids: list[int]) -> AnswerReading:
        """Decode an answer's ids, and read its action by the style's parser."""
        if len(token_ids) > _SHORT_ANSWER:
            return self._read(token_ids)
        return self._read_short(tuple(token_ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode an answer's ids, without special tokens other than the tags of thoughts."""
        return self._answers.text(token_ids)

    def _keep(self, text: str, ids: list[int]) -> None:
        """Cache a prompt; clears the cache first if it is full."""
        if len(ids) > self._room:
            self._kept.clear()
            self._room = _KEPT_IDS
        self._kept[text] = ids
        self._room -= len(ids)

    def _chat_of_turn(self, messages: list[Message]) -> str:
        """Render a chat; skips the template if it only adds a constant prefix and suffix."""
        *head, user = messages
        text = user["content"]
        around = self._around(tuple((message["role"], message["content"]) for message in head))
        if around is None or text != text.strip():
            return self.template.render(messages)
        return around[0] + text + around[1]

    def _find_around(self, head: tuple[tuple[str, str], ...]) -> tuple[str, str] | None:
        """Return the text before and after a chat's last user text; None if it depends on the text.

        Tests user texts with each quoted word of the template, since a template can only search
        for these. No test text has white space at either end, which many templates strip.
        """
        first = [{"role": role, "content": content} for role, content in head]

        def chat(text: str) -> str:
            return self.template.render([*first, {"role": "user", "content": text}])

        before, _, after = chat(_MARK).partition(_MARK)
        template = str(getattr(self._tokenizer, "chat_template", ""))
        words = {word for pair in _QUOTED.findall(template) for word in pair}
        for word in sorted(words) + ["\\'\"{{ é }}<&>\u2028"]:
            for text in (word, f"{word}?", f"?{word}", f"?\n{word}\n?"):
                text = text.replace("\\n", "\n").strip()
                if text and chat(text) != before + text + after:
                    return None
        return before, after

    def _turn_ids(self, rules: str, text: str) -> list[int]:
        """Return a turn's ids; reuses the ids of its start, mostly rules, between turns."""
        encode = partial(self._encode_turn, rules)
        return self.template.encode_contents(self.style.messages(text), self._chat_of_turn, encode)

    def _encode_turn(self, rules: str, chat: str) -> list[int]:
        cut, place = rules.rfind(" ", 0, -_MARGIN), chat.find(rules)
        if min(cut, place) >= 0:
            start, rest = chat[: place + cut], chat[place + cut : place + len(rules)]
            if (start_ids := self._start_ids(start, rest)) is not None:
                return start_ids + self._encoder.ids(chat[len(start) :])
        return self._encoder.ids(chat)

    def _encode_start(self, start: str, rest: str) -> list[int] | None:
        """Return the ids of `start`; None if tokenizing it separately from `rest` changes ids."""
        encode = self._encoder.ids
        ids = encode(start)
        return ids if ids + encode(rest) == encode(start + rest) else None

    def _read(self, token_ids: Sequence[int]) -> AnswerReading:
        text, is_opened = self.decode(token_ids), self.style.opened
        thought = self._answers.thought_length(token_ids, text, is_opened=is_opened)
        return AnswerReading(text, self.style.read_action(text), thought)


def write_answer(prompts: PromptBuilder, action: str, reason: str = "") -> str:
    """Return an answer from which the style reads the action, with `reason` as its reasoning.

    Raises `ConfigError` if the style's parser finds the action in no form of answer.
    """
    boxed, bare = rf"\boxed{{{action}}}", action.strip("[]")
    plain = (bare, action, boxed, f"[{bare}]")
    forms = (boxed, action) if r"\boxed" in prompts.style.request else plain
    for form in forms:
        answer = f"{reason}\n\n{form}" if reason else form
        if prompts.style.opened:
            answer = f"{reason}\n{prompts.style.tags.close}\n\n{form}"
        if prompts.style.read_action(answer) == (action, True):
            return answer
    raise ConfigError(
        f"games.parser = {prompts.style.parser!r}: reads {action!r} neither from {action!r} nor "
        f"from {boxed!r}; choose another parser, or write the action as the parser reads it"
    )
