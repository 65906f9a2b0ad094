"""Pairs of a person's own, out of a JSONL file."""

from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.datasets.pairs import PairExample
from unstable.datasets.sources import own_example
from unstable.prompts import PromptBuilder
from unstable.records.files import read_lines

_SIDES = ("chosen", "rejected")


def jsonl_pairs(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[PairExample]:
    """A person's own pairs of a game, one JSON object a line, in either of two forms.

    {"observation": text, "chosen": action, "rejected": action}: the text as a player of the game
    sees it, and two actions, written as the game's parser reads them. {"prompt": [{"role": ...,
    "content": ...}, ...], "chosen": text, "rejected": text}: a chat and two answers, taken as they
    are. Raises `ConfigError` naming file and line.
    """
    return [_pair(place, row, game, prompts) for place, row in read_lines(path)]


def _pair(place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder) -> PairExample:
    if row.keys() not in ({"observation", *_SIDES}, {"prompt", *_SIDES}):
        raise ConfigError(
            f"{place}: has {', '.join(row) or 'no keys'}; give observation or prompt, chosen and "
            "rejected"
        )
    if "prompt" in row and not isinstance(row["prompt"], list):
        raise ConfigError(
            f"{place}: prompt = {str(row['prompt'])[:40]!r} is no chat; give a list of messages, "
            "or an observation"
        )
    for name, value in row.items():
        if name != "prompt" and not (isinstance(value, str) and value.strip()):
            raise ConfigError(f"{place}: {name} = {value!r} is no text; give a text")
    chosen, rejected = (
        own_example(place, _example_row(row, row[side]), game, prompts) for side in _SIDES
    )
    if chosen.key == rejected.key:
        raise ConfigError(f"{place}: chosen and rejected are the same answer; leave the line out")
    return PairExample(chosen=chosen, rejected=rejected)


def _example_row(row: dict[str, Any], answer: Any) -> dict[str, Any]:
    """The row of a single example with this answer."""
    if "observation" in row:
        return {"observation": row["observation"], "action": answer}
    return {"messages": [*row["prompt"], {"role": "assistant", "content": answer}]}
