"""Names that fields had in earlier releases."""

from pathlib import Path
from typing import Any

RENAMED = {
    "mini_batch_size": "micro_batch_size",
    "mini_batch_tokens": "micro_batch_tokens",
}
"""The fields' names now, by their old ones; all are fields of `learner`."""
EXPERT_ALIAS = "minimax"
"""What the expert was called, as a kind of opponent and in evaluations, and may still be."""


def is_of_earlier_run(path: Path, data: dict[str, Any]) -> bool:
    """Whether a run wrote this config before files named their format."""
    return "format" not in data and (path.parent / "checkpoints").is_dir()


def with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """The config of an earlier run, as it would be written now."""
    learner = data.get("learner") or {}
    opponents = data.get("opponents") or {}
    fixed = [_named(entry) for entry in opponents.get("fixed") or []]
    return {
        **data,
        "learner": {RENAMED.get(name, name): value for name, value in learner.items()},
        "opponents": {**opponents, "fixed": fixed} if "fixed" in opponents else opponents,
    }


def _named(opponent: dict[str, Any]) -> dict[str, Any]:
    """An expert that was given its old name has the new one."""
    own = opponent.get("name") != EXPERT_ALIAS or opponent.get("kind") != EXPERT_ALIAS
    return opponent if own else {**opponent, "name": None}
