"""Pairs of a person's own: two answers to a prompt, of which one is the better."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.datasets.examples import Example
from unstable.datasets.sources import own_example
from unstable.prompts import PromptBuilder
from unstable.records.files import read_lines
from unstable.types import Batch, Completion, Group, Reward, Sample, SampledTokens, Trajectory

_SIDES = ("chosen", "rejected")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairExample:
    """The better and the worse answer, as examples with the same prompt."""

    chosen: Example
    rejected: Example


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


def pair_batch(pairs: Iterable[PairExample], version: int) -> Batch:
    """The pairs as a batch that the learner takes, a group each."""
    groups = (pair_group(pair, number) for number, pair in enumerate(pairs))
    return Batch(version=version, groups=tuple(groups))


def pair_group(pair: PairExample, number: int) -> Group:
    """A pair as a group of two games of one turn, one won and one lost, whose number it has."""
    return Group(
        trajectories=(
            _trajectory(pair.chosen, number, 2 * number, 1.0),
            _trajectory(pair.rejected, number, 2 * number + 1, -1.0),
        )
    )


def _trajectory(example: Example, group_id: int, game_id: int, outcome: float) -> Trajectory:
    """An answer as a game of one turn. Nobody sampled it: its log-probabilities are 0."""
    token_ids = example.tokens.token_ids
    completion = Completion(
        token_ids=token_ids, logprobs=[0.0] * len(token_ids), finish_reason="stop", adapter=None
    )
    tokens = SampledTokens(prompt_ids=example.tokens.prompt_ids, segments=(completion,), version=0)
    return Trajectory(
        game_id=game_id,
        env=example.env,
        seat=example.seat or 0,
        group_id=group_id,
        outcome=outcome,
        forfeit=False,
        samples=(Sample(turn=0, tokens=tokens, rewards={}),),
        rewards={"preference": Reward(outcome, outcome)},
    )
