"""Examples out of the games that a run has recorded."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unstable.config import ConfigError
from unstable.datasets.examples import Example
from unstable.prompts import TextEncoder
from unstable.records.files import read_lines
from unstable.records.games import read_game
from unstable.types import GameResult, SampledTokens, Segment, TokenSample, Turn

log = logging.getLogger(__name__)


def recorded_examples(
    files: Sequence[Path], tokenizer: Any, *, winners_only: bool = True, forfeits: bool = False
) -> list[Example]:
    """Turns of the policy out of `games/train-*.jsonl`, each pair of prompt and answer once.

    Their ids are taken as they were recorded. Only legal moves in answers that the parser read and
    that were not cut off count, none of an opening; with `winners_only` of winners alone, and a win
    by another seat's forfeit is none, unless `forfeits`. Left out, and counted in the log, are
    prompts in which text became control tokens, as older records may have them. Raises
    `ConfigError` for games of an evaluation, which are never trained on, and for those of another
    tokenizer.
    """
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Example] = {}
    encoder, forged = TextEncoder(tokenizer), 0
    for path in files:
        if path.name.startswith("eval-"):
            raise ConfigError(
                f"{path}: an evaluation's games, never trained on; give train-*.jsonl"
            )
        for place, row in read_lines(path):
            if row.get("purpose") == "eval":
                raise ConfigError(
                    f"{place}: a game of an evaluation, never trained on; leave it out"
                )
            game = read_game(place, row)
            for turn in game.turns[game.spec.opening :]:
                answer, tokens = turn.answer, turn.answer.sampled
                if tokens is None or not _teaches(turn, tokens, game, winners_only, forfeits):
                    continue
                if tokenizer.decode(tokens.token_ids, skip_special_tokens=True) != answer.text:
                    raise ConfigError(
                        f"{place}: its ids are another tokenizer's; set model.name to its run's"
                    )
                if not encoder.spells(answer.observation, tokens.prompt_ids):
                    forged += 1
                    continue
                example = _example(turn, tokens, game.spec.env)
                found.setdefault(example.key, example)
    if forged:
        log.warning("%d turns are left out: text became control tokens in their prompts", forged)
    return list(found.values())


def _teaches(
    turn: Turn, tokens: SampledTokens, game: GameResult, winners_only: bool, forfeits: bool
) -> bool:
    if tokens.version is None or turn.invalid or not turn.answer.formatted:
        return False
    if tokens.finish_reason != "stop":
        return False
    won = game.standing(turn.seat) == "win" and (forfeits or game.forfeit is None)
    return won or not winners_only


def _example(turn: Turn, tokens: SampledTokens, env: str) -> Example:
    segments = [Segment(token_ids=each.token_ids, scored=each.scored) for each in tokens.segments]
    return Example(
        env=env,
        seat=turn.seat,
        prompt=turn.answer.observation,
        answer=turn.answer.text,
        tokens=TokenSample(prompt_ids=tokens.prompt_ids, segments=tuple(segments)),
    )
