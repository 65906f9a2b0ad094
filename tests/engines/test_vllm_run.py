"""A whole run on the vLLM engine, as a person starts it."""

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tests.helpers.cli import PATIENCE_S, command, no_developers_lines, ran, written
from tests.helpers.families import save_family
from tests.helpers.loop import played
from tests.helpers.recorded_versions import SIZES
from tests.helpers.tables import table
from tests.helpers.vllm import needs_vllm, workers
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

pytestmark = needs_vllm


RUN = """
model: {init: fresh, adapter: {rank: 4}}
actors: {num: 1, engine: vllm, games_in_flight: 4, max_loras: 2, max_cpu_loras: 4}
sampling: {max_tokens: 4}
learner: {batch_size: 4, micro_batch_size: 4}
eval: {every: 0}
loop: {steps: 2, mode: sync}
"""


def wait_for(condition, seconds: float = PATIENCE_S):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


@pytest.mark.tables("vllm", 2)
def test_run_survives_death_of_its_actor(tmp_path: Path) -> None:
    """Two updates by the command line; the actor is killed in between and leaves no process."""
    (tmp_path / "run.yaml").write_text(RUN)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # Socket paths must be short.
    sockets = dict.fromkeys(["RAY_TMPDIR", "VLLM_RPC_BASE_PATH"], tempfile.gettempdir())
    run = subprocess.Popen(
        command(["train", "--config", "run.yaml", "--run_dir", "run"]),
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)} | sockets,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        wait_for(lambda: run.poll() is not None or written(metrics))
        assert run.poll() is None, run.stdout.read()
        (worker,) = wait_for(lambda: workers(psutil.Process(run.pid)))
        core = worker.parent()
        os.kill(core.parent().pid, signal.SIGKILL)
        wait_for(lambda: not worker.is_running() and not core.is_running())
        output, _ = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == 0, output
    assert not list(scratch.glob("unstable-adapters-*"))
    # In a path with a space the loader prints errors of vLLM's preloads (docs/engines.md).
    assert no_developers_lines("\n".join(x for x in output.splitlines() if "LD_PRELOAD" not in x))
    assert [row["version"] for row in read_rows(metrics)] == [0, 1, 2]
    assert "actor-0 died and is restarted" in (tmp_path / "run/logs/loop.log").read_text()
    for row in read_rows(metrics)[1:]:
        assert row["learn/mismatch_abs_mean"] < 0.2
        assert 20 < row["collect/engine/request_tokens"] < 300  # TicTacToe prompt and answer
    assert (tmp_path / "run/logs/engine-0.log").read_text(), "vLLM writes its log there"


WHOLE = """
model: {name: model, init: fresh, dtype: float32, adapter: none}
actors: {num: 1, engine: vllm, games_in_flight: 8, enforce_eager: true}
opponents: {draw: {self: 0.5, past: 0.5, fixed: 0.0}, fixed: [], pool_size: 2}
sampling: {max_tokens: 4}
buffer: {rewards: [{term: "tests.helpers.recorded_versions:parity"}]}
learner: {batch_size: 8, micro_batch_size: 8, learning_rate: 1.0e-2}
eval: {every: 0}
loop: {steps: 3, mode: sync}
"""


@pytest.mark.parametrize("kind", table("vllm", ["qwen3"], core=[]))
def test_whole_model_run_plays_past_versions(kind: str, tmp_path: Path) -> None:
    """Logprobs of the training version match the learner's, and past versions play."""
    save_family(kind, tmp_path / "model", **SIZES)
    (tmp_path / "run.yaml").write_text(WHOLE)
    run = ran(
        command(["train", "--config", "run.yaml", "--run_dir", "run"]),
        tmp_path,
        PYTHONPATH=str(Path(__file__).parents[2]),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    assert [row["version"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["learn/mismatch_abs_mean"] < 1e-3
    answered = {  # an untrained model forfeits with its first answer
        (max(game["players"]), segment["adapter"])
        for game in played(RunFolder(tmp_path / "run"))
        for turn in game["turns"]
        for segment in turn["sampled"]["segments"]
    }
    assert answered >= {(name, name) for name in ("main@1", "main@2")}
    assert any(adapter < newest for newest, adapter in answered), "a past version played"
