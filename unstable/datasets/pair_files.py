"""Pairs of a person's own, out of a JSONL file."""

from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.datasets.formats import is_text, preference_of, read_rows
from unstable.datasets.pairs import PairExample
from unstable.datasets.sources import action_example, chat_example
from unstable.prompts import PromptBuilder


def jsonl_pairs(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[PairExample]:
    """A person's own pairs of a game: JSON lines, or a list of rows.

    {"observation": text, "chosen": action, "rejected": action}: the text as a player of the game
    sees it, and two actions, written as the game's parser reads them. Else a preference in any of
    the forms of `formats.preference_of`, whose prompt and answers are taken as they are. Raises
    `ConfigError` naming file and row.
    """
    return [_pair(place, row, game, prompts) for place, row in read_rows(path)]


def _pair(place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder) -> PairExample:
    if row.keys() >= {"observation", "chosen", "rejected"} and "prompt" not in row:
        for name in ("chosen", "rejected"):
            if not is_text(row[name]):
                raise ConfigError(f"{place}: {name} = {row[name]!r} is no text; give a text")
        seen = row["observation"]
        pair = PairExample(
            chosen=action_example(place, seen, row["chosen"], game, prompts),
            rejected=action_example(place, seen, row["rejected"], game, prompts),
        )
    else:
        found = preference_of(place, row)
        if found is None:
            raise ConfigError(
                f"{place}: has {', '.join(row) or 'no keys'}; give observation or prompt, chosen "
                "and rejected"
            )
        sides = (
            None if answer is None else chat_example(found.prompt, answer, game, prompts)
            for answer in (found.chosen, found.rejected)
        )
        pair = PairExample(chosen=next(sides), rejected=next(sides))
    if len({example.key for example in pair.answers}) < len(pair.answers):
        raise ConfigError(f"{place}: chosen and rejected are the same answer; leave the line out")
    return pair
