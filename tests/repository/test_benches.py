"""Every script of bench/ runs with small options; its figures are not checked.

Python scripts run in this process, which imports torch and transformers only once.
"""

import gc
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.cli import ran
from tests.helpers.models import random_adapter
from tests.helpers.tables import table
from tests.helpers.trees import drawn
from unstable.cli import run
from unstable.config import dump, load
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model
from unstable.records.folder import RunFolder
from unstable.records.policies import write_policies
from unstable.solving.tree import grow
from unstable.studies.league.population import turns
from unstable.studies.sweep.config import read_sweep
from unstable.studies.sweep.trials import LeagueJob, SweepFolder, trials_of

BENCH = Path(__file__).parent.parent.parent / "bench"
SCRIPTS = sorted(p.name for p in (*BENCH.glob("*.py"), *BENCH.glob("*.sh")) if p.stem != "__init__")
SMALL = {
    "aivat.py": "measured --deals 16 --matches 4",
    "baselines.py": "--games kuhn --decisions 600 --seeds 1",
    "beside.py": "--in_flight 4 --games 2 --rounds 1",
    "capacity.py": "--machine 2x24gb --config qwen3_24gb",
    "cpu_engine.py": "--requests 2 --prompt_tokens 8 --new_tokens 2 --rounds 1 --games 1",
    "credit.py": f"outputs --config {BENCH}/ppo_kuhn.yaml --updates 1 --batches 2 --critic 1 "
    "--batch_size 64 --only 0 7",
    "curve.py": "run --out curve.svg",
    "driver.py": "--actors 1 --in-flight 8 --games 100 --warm 50 --batch 64 --pool 3 --parts",
    "endpoint.py": "--model tiny --games 4 --in_flight 4 --rounds 1 --max_tokens 4",
    "feedback.py": "--in_flight 4 --games 8 --rounds 1 --delay 0.01",
    "fit.py": "--games 200 --versions 5 --players 3 --rounds 1",
    "full_weights.py": "--updates 1 --turns 64 --rounds 1",
    "gate.py": "--places 32 --games 2000 --rounds 1",
    "gemma.sh": "worlds 1 -- --learner.batch_size 64",
    "gpu_hour.py": "--state hour --dry --only doctor",
    "judging.py": "--env Nim-v0 --model tiny --sample 2 --threads 1",
    "kernels.py": "--tokens 1000",
    "league_worth.py": "outputs/worth",
    "learner.py": "--model tiny --vocab 90 --samples 4 --threads 1 --rounds 1 --only padded ours",
    "learner_tiny.py": "--turns 64 --threads 1 --rounds 1 --algorithms reinforce",
    "orchestration.py": "--games 32 --in-flight 16",
    "padded.py": "--model tiny --samples 4 --prompt 16 --vocab 90 --rounds 1",
    "pipeline.py": "--updates 2 --cases 4x24gb-1.7b",
    "prompts.py": "--model tiny --games 1",
    "report.py": "--games 100",
    "rollout.py": "--engine embedded --model tiny --games 2 --in_flight 2 --rounds 1",
    "search.py": "outputs/searched 1 --continuations 2 --draws 1",
    "small_worlds.sh": "tiny_nim worlds 1 -- --steps 1 --learner.batch_size 64 --eval.every 0",
    "speedrun.py": "entry.yaml",
    "thinking.py": "--seeds 0 --steps 2 --games 2 --asked 8",
    "tiny_play.py": "--turns 32 --in_flight 8 --rounds 1 --steps 20",
    "tracking.py": "--games 32 --in-flight 16 --rounds 1",
    "untuned.sh": "worlds 1 -- --loop.steps 1 --learner.batch_size 64 "
    "--learner.micro_batch_size 64",
}
"""Options with which each script takes seconds."""


WORTH = """
config: tiny_nim
common: {eval.every: 0, tracking.keep_every: 1}
settings:
  - {name: mirror, loop.steps: 2}
  - {name: league, league: {members: {a: {}, b: {}}, generations: 2, updates: 1}}
seeds: [1, 2]
metric: exploit/Nim-v0/high
goal: min
"""


def write_sweep(folder: SweepFolder) -> None:
    """Write a finished sweep with a league; its versions are random adapters."""
    config = read_sweep(WORTH, "worth")
    trials = trials_of(config)
    folder.make(config, [trial.record(folder) for trial in trials])
    model = load_model(load(config.config, {"model.adapter.rank": 4}).model)
    for seed, trial in enumerate(trials):
        job = trial.job(folder)
        runs = [RunFolder(job.root)]
        if isinstance(job, LeagueJob):
            job.words()
            runs = [job.folder.run(turn.name) for turn in turns(job.config)]
        for place, own in enumerate(runs):
            for version in range(3 if len(runs) == 1 else 2):
                own.checkpoint(version).mkdir(parents=True)
                adapter = random_adapter(model, "a", seed=100 * seed + 10 * place + version)
                write_adapter(adapter, own.checkpoint(version))
            own.status.write_text('{"state": "ended"}')


def write_policy(checkpoint: Path) -> None:
    """Write a trained adapter for `bench.credit`, so that the bench skips its training run."""
    model = load_model(load("tiny_kuhn").model)
    checkpoint.mkdir(parents=True)
    write_adapter(random_adapter(model, "a", seed=0, rank=32), checkpoint)


def write_evaluations(folder: Path) -> None:
    """Write results of `start-1` and `end-1`, so that `gemma.sh` evaluates only `bare-1`."""
    folder.mkdir()
    for name in ("start-1", "end-1"):
        (folder / f"{name}.done").touch()
        (folder / f"{name}.log").write_text(f"score of {name}")


def write_curve(run: Path) -> None:
    """Write a run with one evaluation."""
    run.mkdir()
    figures = "score low high games distinct wins draws losses forfeits legal_moves temperature"
    evaluated = {f"eval/Nim-v0/random/sampled/{name}": 0.5 for name in figures.split()}
    (run / "metrics.jsonl").write_text(json.dumps({"version": 0, **evaluated}) + "\n")


def write_speedrun(program: Path) -> None:
    """Write an entry of two updates and the command that trains it; version 0 reaches it."""
    write_program(program)
    os.environ["UNSTABLE"] = str(program)
    options = {"loop.steps": 2, "eval.exploitability.every": 1, "learner.batch_size": 64}
    options["learner.micro_batch_size"] = 64
    entry = {"name": "small", "config": "tiny_kuhn", "options": options, "game": "Kuhn"}
    Path("entry.yaml").write_text(json.dumps({**entry, "threshold": 5, "seeds": [1]}))


def write_program(program: Path) -> None:
    """Write the command `unstable`, which starts no processes."""
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.helpers.locally "$@"\n')
    program.chmod(0o755)


def write_measured(folder: RunFolder) -> None:
    """Write a run with policies of three versions, which play at random in Kuhn poker."""
    folder.root.mkdir()
    config = load("tiny_kuhn")
    folder.config.write_text(dump(config))
    tree = grow(config.games[0])
    for version in (1, 2, 3):
        policy = drawn(tree, version, legal=0.9)
        rows = [[*policy[node.key].values()] for node in tree.decisions]
        write_policies(folder, version, {config.games[0].key: dict(enumerate(rows))})


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder with one thread, and undo a bench's changes to the process."""
    monkeypatch.chdir(tmp_path)
    variables, path = dict(os.environ), [*sys.path]
    threads, chances = torch.get_num_threads(), (torch.get_rng_state(), random.getstate())
    on_sigterm, thresholds = signal.getsignal(signal.SIGTERM), gc.get_threshold()
    os.environ["PYTHONPATH"] = str(BENCH.parent)
    torch.set_num_threads(1)
    yield
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:] = path
    torch.set_num_threads(threads)
    torch.set_rng_state(chances[0])
    random.setstate(chances[1])
    signal.signal(signal.SIGTERM, on_sigterm)
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    "script", table("benches", [name for name in SCRIPTS if name.endswith(".py")], ["rollout.py"])
)
def test_python_bench_runs(script: str, restored: None, capsys: pytest.CaptureFixture[str]) -> None:
    match script:
        case "aivat.py":
            write_measured(RunFolder(Path("measured")))
        case "curve.py":
            pytest.importorskip("matplotlib", reason="pip install -e '.[bench]'")
            write_curve(Path("run"))
        case "baselines.py":
            pytest.importorskip("pyspiel", reason="pip install -e '.[open_spiel]'")
        case "speedrun.py":
            write_speedrun(Path("unstable").absolute())
        case "credit.py":
            write_policy(RunFolder(Path("outputs/policy")).checkpoint(1))
        case "search.py":
            folder = RunFolder(Path("outputs/searched"))
            write_policy(folder.checkpoint(1))
            folder.config.write_text(dump(load("tiny_kuhn")), encoding="utf-8")
        case "league_worth.py":
            write_sweep(SweepFolder(Path("outputs/worth")))
    main = import_module(f"bench.{script.removesuffix('.py')}").main
    main(SMALL[script].split())
    assert capsys.readouterr().out or script == "curve.py"
    if script == "credit.py":  # the run of the first estimator as one that learns
        Path("outputs/during-0").symlink_to(Path("outputs/estimator-0").absolute())
        main([*SMALL[script].split()[:-1], "--during", "2"])
        assert "| role baseline, update 2 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    "script",
    table("benches", [name for name in SCRIPTS if name.endswith(".sh")], []),
)
def test_shell_bench_runs(script: str, tmp_path: Path) -> None:
    program = tmp_path / "unstable"
    write_program(program)
    environment = {
        **{"PYTHONPATH": str(BENCH.parent), "OMP_NUM_THREADS": "1", "GAMES": "2"},
        **{"MODEL": "tiny", "NUMBER": "64", "EPOCHS": "1", "STEPS": "1"},
        "WORLDS": "kuhn3",
        "UNSTABLE": str(program),
    }
    if script == "gemma.sh":
        write_evaluations(tmp_path / "worlds")
    done = ran(["bash", str(BENCH / script), *SMALL[script].split()], tmp_path, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout and ("score of end-1" in done.stdout) == (script == "gemma.sh")


@pytest.mark.slow
def test_bench_runs_as_a_module() -> None:
    """A bench runs as a module from the repository's root, as docs/benchmarks.md documents."""
    program = [sys.executable, "-m", "bench.fit", *SMALL["fit.py"].split()]
    done = subprocess.run(program, cwd=BENCH.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(of 1, ") == 4


@pytest.mark.parametrize("sweep", sorted((BENCH / "sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_bench_sweep_can_be_planned(
    sweep: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bench").symlink_to(BENCH)
    config = read_sweep(sweep.read_text(), str(sweep))
    for setting in config.all_settings():
        for opponent in setting.fields.get("opponents.fixed", ()):  # adapters of an earlier run
            model = load_model(load(config.config, {"model.adapter.rank": 4}).model)
            Path(opponent["path"]).mkdir(parents=True)
            write_adapter(random_adapter(model, "frozen", seed=0), Path(opponent["path"]))
    assert run(["sweep", str(sweep), "--plan"]) == 0
    assert f"unstable train --config {config.all_settings()[0].config} " in capsys.readouterr().out


def test_every_bench_has_small_options() -> None:
    assert set(SMALL) == set(SCRIPTS)


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_credit_bias_excludes_errors_of_groups(bias: float) -> None:
    """Groups of 8 turns at one decision share the luck of one deal."""
    credit = import_module("bench.credit")
    chance, found = np.random.default_rng(0), []
    wrong_M = bias * np.tile([1.0, -1.0], 30)  # by move, two per decision
    truth_M = chance.normal(0, 2, 60)
    truth_M -= np.repeat(truth_M.reshape(30, 2).mean(axis=1), 2)
    slope = 1 + wrong_M @ truth_M / (truth_M @ truth_M)
    left_M = wrong_M - (slope - 1) * truth_M
    for _ in range(20):
        decisions_S = np.repeat(chance.integers(0, 30, 600), 8)
        moves_S = 2 * decisions_S + chance.integers(0, 2, 4800)
        luck_S = np.repeat(chance.normal(0, 2, 600), 8) * (1 - 2 * (moves_S % 2))  # by group
        estimates_S = truth_M[moves_S] + wrong_M[moves_S] + luck_S + chance.normal(0, 2, 4800)
        zeros, groups_S = np.zeros(4800), np.repeat(np.arange(600), 8)
        named = {"truth_S": truth_M[moves_S], "moves_S": moves_S, "decisions_S": decisions_S}
        rest = dict.fromkeys(credit.Turns._fields, zeros) | {"clusters_S": groups_S}
        turns = credit.Turns(**{**rest, **named})
        halves = [credit.split(groups_S, chance, again=False) for _ in range(5)]
        found.append(np.mean([credit.figures(estimates_S, turns, each)[1] for each in halves]))
    expected = left_M @ left_M / (slope**2 * truth_M @ truth_M)
    assert np.mean(found) == pytest.approx(expected, rel=0.1, abs=0.03)
    assert bias or min(found) < 0 < max(found)
