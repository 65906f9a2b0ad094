"""Examples of experts: positions of games in which moves differ in worth, and the expert's move."""

import logging
import random
from collections.abc import Collection, Iterator
from itertools import zip_longest

from unstable.config import ConfigError, GameConfig
from unstable.datasets.examples import Example, make_example
from unstable.games.game import Game
from unstable.prompts import PromptBuilder, write_answer
from unstable.types.seeds import derive_seed

_PATIENCE = 200  # games in a row without a new position, after which there are taken to be no more

log = logging.getLogger(__name__)


def expert_examples(
    game: GameConfig, prompts: PromptBuilder, *, number: int, seed: int, rationale: bool = False
) -> list[Example]:
    """`number` different prompts of a game, evenly from its seats, with an expert's moves.

    They come from games in which every seat plays the expert's moves at a rate of its own and
    random ones otherwise; positions where all that is legal is as good are left out. Where
    `_PATIENCE` games bring nothing new, all that were found, and the log says how many. `rationale`
    puts a sentence of reasoning before the move. Raises `ConfigError` for a prompt style that has
    no place for it and for a parser that reads the move out of no form of answer, and `ValueError`
    for a game without an expert.
    """
    style = prompts.style
    if rationale and not style.reasoning:
        raise ConfigError(
            f"rationale = true: the prompt style {style.name!r} of {game.key} asks for the action "
            "alone; set games.prompt to think, or rationale to false"
        )
    pools: dict[int | None, list[Example]] = {seat: [] for seat in range(game.seats)}
    quota = -(-number // game.seats)
    seen: set[tuple[int, ...]] = set()
    played = idle = progress = 0
    while idle < _PATIENCE and min(map(len, pools.values())) < quota:
        for example in _play(game, prompts, derive_seed(seed, "sft", game.key, played), rationale):
            if (ids := tuple(example.tokens.prompt_ids)) not in seen:
                seen.add(ids)
                pools[example.seat].append(example)
        played += 1
        before, progress = progress, _progress(pools.values(), number, quota)
        idle = idle + 1 if progress == before else 0
    evenly = [example for turn in zip_longest(*pools.values()) for example in turn if example]
    if len(evenly) < number:
        log.warning(
            "%s: found %d different positions, not the %d asked for", game.key, len(evenly), number
        )
    return evenly[:number]


def _progress(pools: Collection[list[Example]], number: int, quota: int) -> int:
    """How far the pools are filled: in all up to `number`, and then each up to `quota`."""
    total = sum(map(len, pools))
    return total if total < number else number + sum(min(len(pool), quota) for pool in pools)


def _play(
    config: GameConfig, prompts: PromptBuilder, seed: int, rationale: bool
) -> Iterator[Example]:
    """A game's positions in which moves differ in worth, each with a move of the expert."""
    rng = random.Random(derive_seed(seed, "moves"))
    game = Game(config, seed)
    expert_share = [rng.random() for _ in range(config.seats)]
    while not game.done:
        observation = game.observe()
        mix, legal = game.expert_moves(), game.legal_moves()
        (action,) = rng.choices(list(mix), list(mix.values()))
        if len(mix) < len(legal) or len(set(mix.values())) > 1:
            reason = game.expert_reason(action) if rationale else ""
            answer = write_answer(config, prompts, action, reason)
            yield make_example(config, prompts, observation, answer)
        if rng.random() >= expert_share[observation.seat]:
            action = rng.choice(legal)
        game.step(action)
