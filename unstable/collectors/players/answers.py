"""The answers by which a model makes legal moves."""

import math
from collections.abc import Sequence

from unstable.config import GameConfig
from unstable.engines.base import Engine
from unstable.prompts import PromptBuilder, write_answer


def legal_answers(
    game: GameConfig, prompts: PromptBuilder, moves: Sequence[str], max_tokens: int
) -> list[list[int]]:
    """Ids of each legal move's answer; all end with the stop token, so none begins another.

    Raises `ConfigError` where the game's parser cannot read a legal move, and `ValueError` for one
    that is longer than `max_tokens`.
    """
    answers = []
    for move in moves:
        token_ids = prompts.encode_answer(write_answer(game, prompts, move))
        if len(token_ids) > max_tokens:
            raise ValueError(
                f"sampling.max_tokens = {max_tokens}: the legal move {move!r} takes "
                f"{len(token_ids)} tokens; raise it to at least that"
            )
        answers.append(token_ids)
    return answers


async def answer_chances(
    engine: Engine,
    adapter: str | None,
    prompt_ids: Sequence[int],
    answers: Sequence[Sequence[int]],
) -> list[float]:
    """How likely a model is to give each answer to the prompt, at temperature 1."""
    scored = await engine.score(prompt_ids, answers, adapter=adapter)
    return [math.exp(sum(logprobs)) for logprobs in scored]
