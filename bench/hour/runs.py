"""The steps that run programs: the doctor, a training run, and earlier toolkits' loop."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from bench.hour.job import Job, Skip
from unstable.planning.machine import this_machine

_END_S = 60  # timeout of a run's end after SIGINT
_TIMES = ("play", "update", "evaluate", "publish")


def doctor(job: Job) -> None:
    """Check GPU, driver and compiler, and the plans of two configs."""
    machine = this_machine()
    problem = machine.build_problem or "there"
    job.note("C compiler and Python.h", problem, "", "there" if job.card else "")
    job.note("driver", machine.driver or "none", "", "≥ 580" if job.card else "")
    if shutil.which("nvidia-smi"):
        (job.folder / "nvidia-smi.txt").write_text(job.run("nvidia-smi", "-q").stdout)
    for name in ("default", "qwen3_24gb"):
        said = job.run(*job.unstable("doctor", "--config", name))
        (job.folder / f"doctor-{name}.txt").write_text(said.stdout + said.stderr)
        found = dict(re.findall(r"^(actors|learner|error) +(.*)", said.stdout, re.MULTILINE))
        where = [f"{kind}: {found[kind]}" for kind in ("actors", "learner") if kind in found]
        job.note(f"plan of {name}", "; ".join(where) or "none", "", "one")
        job.note(f"doctor --config {name}", found.get("error", "ok"), "", "ok")


def training(job: Job) -> None:
    """Measure a run of eight minutes: its waiting times, and the GPU's usage."""
    folder = job.folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    small = ["--loop.steps", "2", "--learner.batch_size", "16", "--learner.micro_batch_size", "8"]
    small += [
        "--learner.steps_per_batch",
        "1",
        "--eval.games",
        "2",
        "--actors.games_in_flight",
        "4",
    ]
    small += ["--eval.every", "2", "--model.name", job.small, "--actors.enforce_eager", "true"]
    small += ["--model.init", "fresh"]
    words = ["--config", "smollm2", "--run_dir", str(folder), "--actors.engine", job.engine]
    command = job.unstable("train", *words, *job.sized([], small))
    began = time.monotonic()
    with (job.folder / "run.log").open("w") as log:
        run = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            run.wait(job.left - _END_S)
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):  # its rows are already written
                run.wait(_END_S - 10)
    seconds = time.monotonic() - began
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise RuntimeError((job.folder / "run.log").read_text()[-2000:])
    _waits(job, [json.loads(line) for line in metrics.read_text().splitlines()], seconds)


def _waits(job: Job, rows: list[dict[str, Any]], seconds: float) -> None:
    updates = [row for row in rows if "learn/loss" in row]
    if not updates:
        raise RuntimeError("no update was made; see run.log")

    def total(name: str, among: list[dict[str, Any]] = updates) -> float:
        return sum(float(row.get(name) or 0) for row in among)

    whole = total("time/total")
    job.note("total seconds, start included", seconds, "s")
    job.note("updates", float(len(updates)))
    for name in _TIMES:
        job.note(f"time/{name} of time/total", 100 * total(f"time/{name}") / whole, "%")
    job.note("tokens trained", total("learn/tokens_trained") / whole, "tokens/s")
    cards = {key for row in updates for key in row if re.fullmatch(r"device/gpu\d+_percent", key)}
    for key in sorted(cards):
        job.note(f"100 - {key}", 100 - total(key) / len(updates), "% idle", "≤ 10")
    last = updates[-1]
    for key in ("learn/mismatch_kl", "collect/invalid_share", "eval/score"):
        found = [name for name in last if name.startswith(key)]
        for name in found[:1]:
            job.note(f"{name}, at the end", float(last[name] or 0))


def stepped(job: Job) -> None:
    """Measure games as earlier toolkits played them, on vLLM's synchronous engine."""
    if job.engine != "vllm":
        raise Skip("no vLLM")
    from bench import rollout

    games = str(job.sized(384, 2))
    sized = ["--games", games, "--in_flight", games, "--rounds", "1"]
    found = rollout.main([*sized, "--max_tokens", str(job.sized(64, 4)), "--model", job.small])
    ours, theirs = found["collector"][1], found["stepped"][1]
    job.note("collector", ours, "sampled tokens/s")
    job.note("the ancestor's way", theirs, "sampled tokens/s")
    job.note("collector of the ancestor's way", ours / theirs, "x")
