"""Whole life of a small run: it plays and learns at once, publishes, ends, and is resumed.

With a GPU, vLLM serves beside the learner, either in a split of the memory or alternating with it,
asleep and woken with versions resident (`-m gpu`). Without one, the same life runs on vLLM's build
for processors, if it is installed, and otherwise on the embedded engine.
"""

from pathlib import Path

import pytest

from tests.helpers.cli import in_process, no_developers_lines, unstable
from tests.helpers.locally import locally
from tests.helpers.records import lines
from unstable.planning.machine import this_machine
from unstable.records.reading import read_rows

LIFE = """
model: {{name: {model}, init: fresh, adapter: {adapter}}}
games: [{{env: TicTacToe-v0}}]
opponents: {{draw: {{self: 0.5, past: 0.5}}}}
sampling: {{max_tokens: 4}}
actors: {{num: 1, engine: {engine}, games_in_flight: 4, max_loras: 4, max_cpu_loras: 8, {more}}}
learner: {{batch_size: 8, micro_batch_size: 8, learning_rate: {rate}}}
buffer: {{max_staleness: 1}}
eval: {{every: 2, games: 2}}
loop: {{steps: 3, mode: {mode}}}
"""


def engine_here() -> str:
    return "vllm" if this_machine().has_vllm else "embedded"


def live(
    folder: Path,
    *,
    model: str,
    mode: str,
    more: str,
    adapter: str = "{rank: 8}",
    rate: float = 1e-3,
) -> None:
    """Three updates, one more after a resume, and what must be true of them afterwards."""
    text = LIFE.format(
        model=model, engine=engine_here(), mode=mode, more=more, adapter=adapter, rate=rate
    )
    (folder / "life.yaml").write_text(text)
    said = _run(folder, "--config", "life.yaml", "--run_dir", "run")
    said += _run(folder, "--resume", "run", "--loop.steps", "4")
    assert no_developers_lines(said), said
    assert "start-up probe" not in said, "the mismatch of engine and learner is usual"
    metrics = read_rows(folder / "run/metrics.jsonl")
    assert [row["version"] for row in metrics] == [0, 1, 2, 3, 4]
    for row in metrics[1:]:
        assert row["learn/mismatch_abs_mean"] < 0.2
    # Batches of games with equal results are skipped.
    assert any(row["learn/grad_norm"] > 0 for row in metrics[1:])
    # With max_staleness 1 the third update has no samples of version 0.
    players = trained_on(folder / "run")
    assert "main@0" in players, players
    assert players & {"main@1", "main@2"}, f"no version was published during play: {players}"
    scores = [key for key in metrics[4] if key.startswith("eval/") and key.endswith("/score")]
    assert scores, "the last version was not evaluated"
    assert (folder / "run/checkpoints/000004").is_dir()


def _run(folder: Path, *words: str) -> str:
    if engine_here() == "vllm":
        done = unstable(folder, "train", *words)
    else:
        with locally():
            done = in_process(folder, "train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def trained_on(run: Path) -> set[str]:
    """Names of the players of all training games."""
    games = [game for file in run.glob("games/train*.jsonl") for game in lines(file)]
    return {seat["player"] for game in games for seat in game["seats"]}


@pytest.mark.slow
def test_engine_on_cpu(tmp_path: Path) -> None:
    model = "smollm2-135m" if engine_here() == "vllm" else "tiny"
    more = "enforce_eager: true" if engine_here() == "vllm" else "policy_refresh: game"
    live(tmp_path, model=model, mode="async", more=more)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "mode, share, adapter, rate",
    [
        ("async", "split", "{rank: 8}", 1e-3),
        ("sync", "sleep", "{rank: 8}", 1e-3),
        ("async", "split", "none", 1e-5),
    ],
    ids=["split", "sleep", "all-weights"],
)
def test_engine_on_gpu(tmp_path: Path, mode: str, share: str, adapter: str, rate: float) -> None:
    if engine_here() != "vllm":
        pytest.skip("vLLM is not installed; pip install -e '.[gpu]'")
    before = _used()
    more = f"share_gpu: {share}, enforce_eager: true"
    live(tmp_path, model="smollm2-135m", mode=mode, more=more, adapter=adapter, rate=rate)
    assert _used() < before + 2e9, "GPU memory was not released"


def _used() -> float:
    """Bytes in use on all cards."""
    return sum(gpu.total_bytes - gpu.free_bytes for gpu in this_machine().gpus)
