"""Samples made by hand, for the learner's tests."""

from typing import Any

from unstable.types import Reward, Sample


def make_sample(
    prompt_ids: list[int], token_ids: list[int], reward: float = 1.0, **changes: Any
) -> Sample:
    """A sample that only says what a test cares about; it was as likely as e^-1 a token."""
    fields: dict[str, Any] = {
        "game_id": 0,
        "env": "env",
        "seat": 0,
        "turn": 0,
        "group_id": 0,
        "version": 0,
        "prompt_ids": prompt_ids,
        "token_ids": token_ids,
        "logprobs": [-1.0] * len(token_ids),
        "temperature": 1.0,
        "finish_reason": "stop",
        "prompt_cut": 0,
        "rewards": {"outcome": Reward(reward, reward)},
        "outcome": reward,
        "forfeit": False,
    }
    return Sample(**(fields | changes))
