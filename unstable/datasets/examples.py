"""Supervised examples, and the order in which they are trained on.

Prompts come from the builder that play uses, and an answer is the ids that an engine would have
sampled for it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from msgspec import convert

from unstable.config import GameConfig
from unstable.prompts import PromptBuilder
from unstable.records.files import plain, read_lines, write_lines
from unstable.types import (
    Completion,
    Group,
    Observation,
    Reward,
    Sample,
    SampledTokens,
    Segment,
    TokenSample,
    Trajectory,
)
from unstable.types.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A prompt and the answer to learn, as text and as tokens.

    Example(env="Nim-v0", seat=0, prompt="Welcome ...", answer="[0 2]", tokens=TokenSample(...))
    """

    env: str  # a GameConfig's key
    seat: int | None  # None: unknown
    prompt: str  # the user text
    answer: str  # without the stop token
    tokens: TokenSample  # including the stop token

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of prompt and answer, which are equal for examples that teach the same."""
        return tuple(self.tokens.prompt_ids), tuple(self.tokens.token_ids)


Split = tuple[list[Example], list[Example]]
"""Examples to train on, and those held out."""


def make_example(
    game: GameConfig, prompts: PromptBuilder, observation: Observation, answer: str
) -> Example:
    """Return an example of an answer to an observation, with the prompt that a player would get."""
    prompt = prompts.build(observation)
    return Example(
        env=game.key,
        seat=observation.seat,
        prompt=prompt.text,
        answer=answer,
        tokens=answer_tokens(prompts, prompt.ids, answer),
    )


def answer_tokens(prompts: PromptBuilder, prompt_ids: list[int], answer: str) -> TokenSample:
    """Return a prompt with an answer as an engine would have sampled it."""
    segment = Segment(token_ids=prompts.encode_answer(answer))
    return TokenSample(prompt_ids=prompt_ids, segments=(segment,))


def split_by_prompt(examples: Sequence[Example], held_out: float, seed: int) -> Split:
    """Split examples into trained and held-out ones, about `held_out` of all prompts.

    A prompt's side depends only on the prompt and the seed, so that no prompt is ever on both.
    """
    sides: Split = ([], [])
    for each in examples:
        draw = random.Random(derive_seed(seed, "held out", each.tokens.prompt_ids)).random()
        sides[draw < held_out].append(each)
    return sides


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """Examples to train on, in order, and the duration of training."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    epochs: int
    patience: int  # epochs without a lower held-out loss before training stops
    batch_size: int
    seed: int

    def units(self, epoch: int) -> Sequence[Sequence[Example]]:
        """Return the units of an epoch, which batches keep whole; here each example is a unit."""
        return [[example] for example in self.train]

    def num_units(self, epoch: int) -> int:
        """Return the number of units of an epoch; `batch_size` counts units."""
        return len(self.train)

    def version(self, epoch: int) -> int:
        """Return the version that an epoch ends with: the number of optimizer steps until then."""
        epochs = range(1, epoch + 1)
        return sum(ceil(self.num_units(each) / self.batch_size) for each in epochs)

    def epoch(self, version: int) -> int:
        """Return the first epoch that ends with this version or a later one."""
        return next(each for each in range(self.epochs + 1) if self.version(each) >= version)

    def batches(self, epoch: int) -> list[list[TokenSample]]:
        """Return an epoch's batches in an order of its own; the last one may be smaller."""
        units = self.units(epoch)
        order = list(range(len(units)))
        random.Random(derive_seed(self.seed, "sft order", epoch)).shuffle(order)
        parts = (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))
        return [[each.tokens for index in part for each in units[index]] for part in parts]


_LENGTHS = (1, 1, 1, 2, 4)  # relative lengths of the first lessons; later ones keep the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons(FineTuning):
    """Epochs with new positions each, so that none is memorized.

    A position's examples, its legal moves, are in one batch, so their choice adds no noise.
    `train` has those of the first lesson's positions; later ones have up to four times as many.
    """

    positions: int  # positions of the first lesson
    draw: Callable[[int, int], Sequence[Sequence[Example]]]  # units, given epoch and size

    def units(self, epoch: int) -> Sequence[Sequence[Example]]:
        return self.draw(epoch, _length(epoch))

    def num_units(self, epoch: int) -> int:
        return _length(epoch) * self.positions


def _length(epoch: int) -> int:
    return _LENGTHS[min(epoch, len(_LENGTHS)) - 1]


def write_examples(path: Path, sides: Split) -> None:
    """Write trained and held-out examples, one line per example."""
    rows = [
        {"held_out": held_out, **plain(example)}
        for held_out, examples in zip((False, True), sides, strict=True)
        for example in examples
    ]
    write_lines(path, rows)


def read_examples(path: Path) -> Split:
    """Read examples that `write_examples` wrote."""
    sides: Split = ([], [])
    for _, row in read_lines(path):
        sides[row.pop("held_out")].append(convert(row, Example))
    return sides


@dataclass(frozen=True, slots=True, kw_only=True)
class PairExample:
    """A better and a worse answer to one prompt, as examples; at most one is None."""

    chosen: Example | None
    rejected: Example | None

    @property
    def answers(self) -> list[Example]:
        """Answers of the pair that are not None."""
        return [each for each in (self.chosen, self.rejected) if each is not None]


def pair_group(pair: PairExample, number: int) -> Group:
    """Return a pair as a group of two games of one turn, one won and one lost, with this number."""
    sides = (pair.chosen, 2 * number, 1.0), (pair.rejected, 2 * number + 1, -1.0)
    return Group(
        trajectories=tuple(
            _trajectory(example, number, game_id, outcome)
            for example, game_id, outcome in sides
            if example is not None
        )
    )


def _trajectory(example: Example, group_id: int, game_id: int, outcome: float) -> Trajectory:
    """Return an answer as a game of one turn; nothing sampled it, so log-probabilities are 0."""
    token_ids = example.tokens.token_ids
    completion = Completion(
        token_ids=token_ids, logprobs=[0.0] * len(token_ids), finish_reason="stop", adapter=None
    )
    tokens = SampledTokens(
        prompt_ids=example.tokens.prompt_ids, segments=(completion,), temperature=1.0, version=0
    )
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
