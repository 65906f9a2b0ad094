"""Prompt styles: the text of a prompt, and the parser that reads the action from an answer.

A prompt is one chat: system message, rules, events, board, notice, and the requested answer. The
rules come first and do not change, so that the turns and games of a seat share a prefix of ids.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from unstable.config import GameConfig
from unstable.config.plugins import load_target
from unstable.prompts.thoughts import THINK, Tags, split_thought
from unstable.types import Observation

_MAX_UNPARSED = 200  # characters; longest action from an answer without one
_BRACKETS = re.compile(r"\[\s*[^\[\]\s][^\[\]]*\]")
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


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


def _plain(text: str) -> str | None:
    return _exact(text) or _bare(text)


PARSERS: dict[str, Callable[[str], str | None]] = {
    "brackets": _in_brackets,
    "exact": _exact,
    "bare": _bare,
    "plain": _plain,
    "boxed": _boxed,
    "raw": _raw,
}
_STRICT = {"exact", "bare", "plain"}
"""Parsers whose failure means that there is no action, even if an env would find one."""
_BRACKETING = {"brackets", "boxed", *_STRICT}


class Action(NamedTuple):
    """The text that the env receives, and whether the parser found it in the answer."""

    text: str
    formatted: bool


def in_form(action: str, form: str) -> str:
    """Convert an action in brackets to the form that an env takes.

    >>> in_form("[3]", "bare")
    '3'
    """
    return action[1:-1].strip() if form == "bare" and _BRACKETS.fullmatch(action) else action


def observation_text(observation: Observation) -> str:
    """Render an observation: rules, events, board and notice, separated by blank lines."""
    parts = (observation.rules, "\n".join(observation.events), observation.board)
    return "\n\n".join(part for part in (*parts, observation.notice) if part)


def compact_text(observation: Observation) -> str:
    """Render an observation in few tokens: the constant brief, the position and any notice."""
    parts = (observation.brief, observation.position, observation.notice)
    return "\n".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """A way to prompt a model with observations and to read actions from its answers.

    PromptStyle("answer", system="You play ...", request="Answer with ...", reasoning=False)
    """

    name: str
    system: str  # system message; empty: none
    request: str  # last line of the user text: form of the answer
    reasoning: bool  # text around the action is private
    body: Callable[[Observation], str] = field(default=observation_text)
    parser: str = "brackets"  # name in `PARSERS`, or module:function(text) -> str | None
    opened: bool = False  # the chat template opens the thought; answers only close it
    form: str = "brackets"  # of the env's actions: brackets, bare, or raw (unchanged)
    tags: Tags = THINK  # of a thought, even if the style requests none

    def of_game(self, game: GameConfig) -> "PromptStyle":
        """Return the style with a game's parser and with the action form of its env."""
        style = replace(self, form=game.action_form)
        if self.name == "think" and style.form == "bare":
            request = self.request.replace("action, in its square brackets, as", "action as")
            style = replace(style, request=request.replace("[action]", "action"), parser="boxed")
        return style if game.parser == "auto" else replace(style, parser=game.parser)

    def render(self, observation: Observation, thoughts: str = "") -> str:
        """Return the user text, with the seat's earlier thoughts, if any, before the request."""
        parts = (self.body(observation), thoughts, self.request)
        return "\n\n".join(part for part in parts if part)

    def messages(self, text: str) -> list[dict[str, str]]:
        """Return the chat of a turn with this user text."""
        user = {"role": "user", "content": text}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def chat(self, observation: Observation) -> list[dict[str, str]]:
        """Return the chat of an observation for an endpoint: its own, or the style's."""
        own = [{"role": each["role"], "content": each["content"]} for each in observation.chat]
        return own or self.messages(self.render(observation))

    def split(self, text: str) -> tuple[str, str]:
        """Split an answer into its private thought and the rest, which contains the action."""
        return split_thought(self.tags.open + text if self.opened else text, self.tags)

    def read_action(self, text: str) -> Action:
        """Return the action in an answer, by the style's parser.

        If the parser finds none, the action is the answer itself on one short line, or empty if the
        style has reasoning or its parser is strict (exact, bare, plain). A strict parser rejects
        answers with any text next to the action.
        """
        answer = self.split(text)[1].strip()
        action = (PARSERS.get(self.parser) or load_target(self.parser))(answer)
        if action is not None:
            found = in_form(action, self.form) if self.parser in _BRACKETING else action
            return Action(found, True)
        if self.reasoning or self.parser in _STRICT:
            return Action("", False)
        return Action(" ".join(answer.split())[:_MAX_UNPARSED], False)

    def read_free_action(self, text: str) -> Action:
        """Return the action in an answer of a program that may write more than the action."""
        action = self.read_action(text)
        return action if action.formatted else replace(self, parser="brackets").read_action(text)


STYLES = {
    "answer": PromptStyle(
        "answer",
        system="",  # small models follow the request better without one
        request="Answer with only your action, nothing else.",
        reasoning=False,
        parser="plain",
    ),
    "compact": PromptStyle(
        "compact",
        system="",
        request="",  # part of the constant brief, before the position
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

CHAT = PromptStyle("chat", system="", request="", reasoning=False, parser="raw")
"""Style of games with a game driver, which writes the prompts and reads the answers."""

OWN = PromptStyle("own", system="", request="", reasoning=True, parser="raw")
"""Style of envs that write the prompts and read the answers, with reasons, by themselves."""


@cache
def load_style(name: str) -> PromptStyle:
    """Load a built-in style, a `module:name` PromptStyle, or a function that writes the user text.

    The function takes the Observation; text around the action in an answer counts as reasoning.
    """
    if name in STYLES:
        return STYLES[name]
    target = load_target(name)
    if isinstance(target, PromptStyle):
        return target
    return PromptStyle(name, system="", request="", reasoning=True, body=target)
