"""Recorded turns of a run's version: prompts, answers and their log-probabilities."""

from pathlib import Path
from typing import NamedTuple

from tests.helpers.families import save_family
from tests.helpers.loop import make_context, played
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.types import GameResult

KINDS = ("gemma3_text", "granite", "qwen3")
SIZES = {
    **{"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"head_dim": 64, "intermediate_size": 64},
}
"""Heads as vLLM's kernels have them."""


class Recorded(NamedTuple):
    """A turn that a version sampled."""

    prompt_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


def parity(result: GameResult, seat: int) -> float:
    """A reward that differs by game and ignores the answers, for a model that knows nothing."""
    return float(result.spec.game_id % 2)


async def run_of(kind: str, folder: Path, **model: object) -> RunFolder:
    """Train a tiny model of this type, saved in `folder` / model, for two updates."""
    model_folder = save_family(kind, folder / "model", **SIZES)
    context = make_context(
        model_folder,
        folder / "run",
        model={"name": str(model_folder), "dtype": "float32", "adapter": {"rank": 8}, **model},
        buffer={"rewards": [{"term": f"{__name__}:parity"}]},
        learner={"batch_size": 8, "learning_rate": 1e-2},
        eval={"every": 0},
        loop={"mode": "sync", "steps": 2},
    )
    assert await train(context) == "all updates made"
    return context.folder


def recorded(folder: RunFolder, version: int) -> list[Recorded]:
    """The turns of a version, at least one."""
    found = [
        Recorded(turn["sampled"]["prompt_ids"], segment["token_ids"], segment["logprobs"])
        for game in played(folder)
        for turn in game["turns"]
        if turn.get("sampled")
        for segment in turn["sampled"]["segments"]
        if segment["adapter"] == f"main@{version}"
    ]
    assert found
    return found
