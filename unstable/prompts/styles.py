"""Styles: how a game is put to a model, and how the action is read out of its answer.

A prompt is one chat: system, then the rules, the events, the board, a notice and what to answer.
The rules come first and stay, so that the turns and games of a seat share a prefix of ids.
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

_MAX_UNPARSED = 200  # characters of an answer without an action that are passed on as one
_BRACKETS = re.compile(r"\[[^\[\]]*[^\[\]\s][^\[\]]*\]")
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
"""What they do not read is no action, even if an env finds one in it."""
_BRACKETING = {"brackets", "boxed", *_STRICT}


class Action(NamedTuple):
    """What is given to the env, and whether the parser found it in the answer."""

    text: str
    formatted: bool


def in_form(action: str, form: str) -> str:
    """An action in brackets as an env of that form takes it.

    >>> in_form("[3]", "bare")
    '3'
    """
    return action[1:-1].strip() if form == "bare" and _BRACKETS.fullmatch(action) else action


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
    parser: str = "brackets"  # a name of `PARSERS`, or a module:function(text) -> str | None
    opened: bool = False  # the chat template opens the reasoning, so an answer holds only its end
    form: str = "brackets"  # how the env takes an action (brackets, bare); `raw` gives it as it is
    tags: Tags = THINK  # what begins and ends a thought, whether the style asks for one or not

    def of_game(self, game: GameConfig) -> "PromptStyle":
        """The style as a game is played in: with its parser, in the form that its env takes."""
        style = replace(self, form=game.action_form)
        if self.name == "think" and style.form == "bare":
            request = self.request.replace("action, in its square brackets, as", "action as")
            style = replace(style, request=request.replace("[action]", "action"), parser="boxed")
        return style if game.parser == "auto" else replace(style, parser=game.parser)

    def render(self, observation: Observation, thoughts: str = "") -> str:
        """The user text, with the seat's own earlier thoughts, if any, before the request."""
        parts = (self.body(observation), thoughts, self.request)
        return "\n\n".join(part for part in parts if part)

    def messages(self, text: str) -> list[dict[str, str]]:
        """The chat of a turn with this user text."""
        user = {"role": "user", "content": text}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def split(self, text: str) -> tuple[str, str]:
        """The thought in an answer, which is private, and the rest, which holds the action."""
        return split_thought(self.tags.open + text if self.opened else text, self.tags)

    def read_action(self, text: str) -> Action:
        """The action in an answer, by the style's parser.

        Where there is none, the answer itself on one short line, or nothing if the style reasons or
        its parser is strict (exact, bare, plain): there, whatever stands beside an action makes it
        none.
        """
        answer = self.split(text)[1].strip()
        action = (PARSERS.get(self.parser) or load_target(self.parser))(answer)
        if action is not None:
            found = in_form(action, self.form) if self.parser in _BRACKETING else action
            return Action(found, True)
        if self.reasoning or self.parser in _STRICT:
            return Action("", False)
        return Action(" ".join(answer.split())[:_MAX_UNPARSED], False)


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

CHAT = PromptStyle("chat", system="", request="", reasoning=False, parser="raw")
"""Style of games that a program outside plays: it asks in its words, and reads the answer."""


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
