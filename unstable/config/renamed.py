"""Names that fields had in earlier releases."""

from pathlib import Path
from typing import Any

RENAMED = {
    "mini_batch_size": "micro_batch_size",
    "mini_batch_tokens": "micro_batch_tokens",
    "mask_truncated": "truncated_weight",
}
"""The fields' names now, by their old ones; fields of `learner` and of its algorithm."""
EXPERT_ALIAS = "minimax"
"""What the expert was called, as a kind of opponent and in evaluations, and may still be."""


def is_of_a_run(path: Path) -> bool:
    """Whether a run wrote this config, perhaps one of an earlier release."""
    return (path.parent / "checkpoints").is_dir()


def with_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """The config of a run, as it would be written now; what is no section stays as it is."""
    new = dict(data)
    learner, opponents = data.get("learner"), data.get("opponents")
    if isinstance(learner, dict):
        new["learner"] = {RENAMED.get(name, name): value for name, value in learner.items()}
        if isinstance(algorithm := learner.get("algorithm"), dict):
            new["learner"]["algorithm"] = _algorithm(algorithm)
    if isinstance(opponents, dict) and isinstance(fixed := opponents.get("fixed"), list):
        new["opponents"] = {**opponents, "fixed": [_named(entry) for entry in fixed]}
    return new


def _algorithm(algorithm: dict[str, Any]) -> dict[str, Any]:
    """A mask of truncated turns is a weight of 0, and the one estimator that there was is named."""
    new = dict(algorithm)
    if "mask_truncated" in new:
        new["truncated_weight"] = 0.0 if new.pop("mask_truncated") else 1.0
    if new.get("kl_loss"):
        new.setdefault("kl_estimator", "k3")
    return new


def _named(opponent: Any) -> Any:
    """An expert that was given its old name has the new one."""
    if not isinstance(opponent, dict):
        return opponent
    own = opponent.get("name") != EXPERT_ALIAS or opponent.get("kind") != EXPERT_ALIAS
    return opponent if own else {**opponent, "name": None}
