"""Checks that two checkouts play and learn bit by bit the same.

    python scripts/same_runs.py BEFORE AFTER [CONFIG...]

Both run each config: synchronous, seed 0, four updates without evaluations. The script compares the
games as sampled, the losses and the weights of the newest adapter; the exit status is 1 if they
differ. CONFIG is a file of `unstable/configs`, or FILE:ALGORITHM to train with another algorithm.
The folder in the environment variable `SAME_RUNS`, if set, caches results by commit.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONFIGS = ("tiny_nim", "tiny_kuhn", "tiny_leduc", "tiny")
UPDATES = 4
_GAME = ("game", "seed", "players", "outcomes", "reason")
_SEGMENT = ("token_ids", "logprobs", "finish_reason", "adapter")


def main(before: Path, after: Path, configs: list[str]) -> int:
    """Compare the checkouts by each config; returns the exit status."""
    differ = 0
    for config in configs or CONFIGS:
        one, two = (digests(checkout, config) for checkout in (before, after))
        for name in one:
            same = one[name] == two[name]
            differ += not same
            print(f"{config} {name}: {'same' if same else 'DIFFERENT'} ({two[name][:12]})")
    return int(differ > 0)


def digests(checkout: Path, config: str) -> dict[str, str]:
    """Return digests of games, losses and weights of a run with the checkout's code."""
    kept = _kept(checkout, config)
    if kept is not None and kept.exists():
        found: dict[str, str] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        _run(checkout, config, run)
        found = {
            "games": _digest(_games(run)),
            "losses": _digest(_losses(run)),
            "weights": _weights(run),
        }
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def _run(checkout: Path, config: str, run: Path) -> None:
    config, _, algorithm = config.partition(":")
    options = {
        **({"learner.algorithm.name": algorithm} if algorithm else {}),
        "loop.mode": "sync",
        "loop.steps": UPDATES,
        "seed": 0,
        "eval.every": 0,
        "eval.exploitability.every": 0,
        "actors.engine": "embedded",
        "tracking.run_dir": run,
        "tracking.dashboard": "off",
        "tracking.report": "false",
    }
    path = checkout.resolve() / "unstable/configs" / f"{config}.yaml"
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "unstable.cli", "train", "--config", str(path), *given]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(command, env=environment, cwd=run.parent, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{config} of {checkout} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _games(run: Path) -> list[Any]:
    """Return all games by number, with everything that was sampled."""
    lines = [line for path in sorted((run / "games").iterdir()) for line in _lines(path)]
    games = sorted(map(_flat, map(json.loads, lines)), key=lambda game: game["game"])
    return [
        {name: game[name] for name in _GAME} | {"turns": list(map(_turn, game["turns"]))}
        for game in games
    ]


def _flat(game: dict[str, Any]) -> dict[str, Any]:
    """Return a game of any format as one flat record: format 2 nests some fields in `spec`."""
    spec = game.get("spec", game)
    return {**spec, **game, "players": [seat["player"] for seat in spec["seats"]]}


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the sampled part of a turn of either format, with defaults filled in."""
    answer = turn.get("answer", turn)
    sampled = answer.get("sampled") or {"segments": []}
    return {
        **{name: turn[name] for name in ("seat", "index", "invalid")},
        **{name: answer[name] for name in ("player", "observation", "text", "action")},
        **{name: sampled.get(name) for name in ("version", "prompt_ids", "moves")},
        "temperature": sampled.get("temperature", 1.0),
        "rewards": turn.get("rewards"),
        "segments": [[segment.get(name) for name in _SEGMENT] for segment in sampled["segments"]],
    }


def _losses(run: Path) -> list[Any]:
    rows = [json.loads(line) for line in _lines(run / "metrics.jsonl")]
    wanted = ("learn/", "reward/", "advantage/")
    return [
        {k: v for k, v in row.items() if k.startswith(wanted) and not k.endswith("per_second")}
        for row in rows
    ]


def _weights(run: Path) -> str:
    checkpoints = [path for path in (run / "checkpoints").iterdir() if path.name.isdigit()]
    newest = max(checkpoints, key=lambda path: int(path.name))
    assert int(newest.name) == UPDATES, newest
    (adapter,) = newest.rglob("adapter_model.safetensors")
    return hashlib.sha256(adapter.read_bytes()).hexdigest()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _kept(checkout: Path, config: str) -> Path | None:
    folder = os.environ.get("SAME_RUNS")
    if folder is None:
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=40"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None if commit.endswith("-dirty") else Path(folder, f"{commit}-{config}.json")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
