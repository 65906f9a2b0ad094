"""Every script of bench/ runs, small: its figures say nothing here, only that it still works."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.models import random_adapter
from unstable.cli import run
from unstable.config import load
from unstable.config.sweep import read_sweep
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model

BENCH = Path(__file__).parent.parent.parent / "bench"
SCRIPTS = sorted(p.name for p in (*BENCH.glob("*.py"), *BENCH.glob("*.sh")) if p.stem != "__init__")
SMALL = {
    "beside.py": "--in_flight 4 --games 2 --rounds 1",
    "cpu_engine.py": "--requests 2 --prompt_tokens 8 --new_tokens 2 --rounds 1 --games 1",
    "curve.py": "run --out curve.svg",
    "driver.py": "--actors 1 --in-flight 8 --games 200 --warm 100 --batch 64 --pool 9 --parts",
    "fit.py": "--games 200 --versions 5 --players 3 --rounds 1",
    "gate.py": "--places 32 --games 2000 --rounds 1",
    "gpu_hour.py": "--state hour --dry --only doctor prefix",
    "judging.py": "--model tiny --sample 2 --threads 1",
    "learner.py": "--model tiny --vocab 90 --samples 4 --threads 1 --rounds 1 --only padded ours",
    "learner_tiny.py": "--turns 64 --threads 1 --rounds 1 --algorithms reinforce",
    "orchestration.py": "--games 32 --in-flight 16",
    "pipeline.py": "--updates 2 --cases 4x24gb-1.7b",
    "prompts.py": "--games 1",
    "report.py": "--games 100",
    "rollout.py": "--engine embedded --model tiny --games 2 --in_flight 2 --rounds 1",
    "small_worlds.sh": "tiny_nim worlds 1 -- --steps 1 --learner.batch_size 64 --eval.every 0",
    "tiny_play.py": "--turns 32 --in_flight 8 --rounds 1 --steps 20",
    "tracking.py": "--games 32 --in-flight 16 --rounds 1",
}
"""The options that make each take seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_bench_runs(script: str, tmp_path: Path) -> None:
    options = SMALL[script].split()
    if script == "curve.py":
        pytest.importorskip("matplotlib", reason="pip install -e '.[bench]'")
        (tmp_path / "run").mkdir()
        evaluated = {f"eval/Nim-v0/random/{name}": 0.5 for name in ("score", "low", "high")}
        (tmp_path / "run/metrics.jsonl").write_text(json.dumps({"version": 0, **evaluated}))
    program = ["bash", str(BENCH / script)]
    if script.endswith(".py"):
        program = [sys.executable, "-m", f"bench.{script.removesuffix('.py')}"]
    environment = {
        **{"PYTHONPATH": str(BENCH.parent), "OMP_NUM_THREADS": "1", "GAMES": "2"},
        "UNSTABLE": str(Path(sys.executable).with_name("unstable")),
    }
    done = subprocess.run(
        [*program, *options],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout or script == "curve.py"


@pytest.mark.parametrize("sweep", sorted((BENCH / "sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_sweep_of_the_benches_could_begin(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = read_sweep(sweep.read_text(), str(sweep))
    for setting in config.all_settings():
        for opponent in setting.fields.get("opponents.fixed", ()):  # made before, by another run
            model = load_model(load(config.config, {"model.adapter.rank": 4}).model)
            Path(opponent["path"]).mkdir(parents=True)
            write_adapter(random_adapter(model, "frozen", seed=0), Path(opponent["path"]))
    assert run(["sweep", str(sweep), "--plan"]) == 0
    assert capsys.readouterr().out.startswith("unstable train --config tiny")


def test_every_bench_has_a_small_form() -> None:
    assert set(SMALL) == set(SCRIPTS)
