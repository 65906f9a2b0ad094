"""Minutes of training to an exact exploitability: one file per entry in `bench/speedruns/`.

    python -m bench.speedrun [ENTRY.yaml ...] [--folder outputs/speedrun]
    python -m bench.speedrun --verify ENTRY.yaml

An entry names a config with options of `unstable train`, a game, a threshold and seeds. It reaches
the threshold at the first measured version whose upper bound (`exploit/GAME/high`) is at most the
threshold. Minutes are the run's `time/total`, from the start of its processes to this version,
without evaluation games and exploitability, so measuring often costs an entry nothing.
`afterwards` is the highest exploitability that was measured later. An entry with `world` first
makes its model, outside the measured time. Finished seeds are skipped.

`--verify` trains all seeds again and exits with 1 unless each reaches the threshold in at most
1.25 times the recorded minutes. The lines below the table are the entries' new records.
Environment: UNSTABLE, the command.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unstable.config import ConfigError, WorldRun, load, load_as, read_text
from unstable.config.base import Section
from unstable.config.reading import read_section
from unstable.records.files import write_whole
from unstable.records.reading import read_rows
from unstable.records.text import fixed, markdown_table, number
from unstable.types.metrics import ExploitKey

ENTRIES = Path(__file__).parent / "speedruns"
SLACK = 1.25
"""Most minutes of a verified seed, by recorded minutes."""


class Record(Section):
    """Measured figures of an entry."""

    machine: str
    """CPU and cores"""
    date: str
    """day of the runs"""
    minutes: dict[int, float | None]
    """by seed; null if it did not reach the threshold"""


class Entry(Section):
    """A way to a threshold: config, options and seeds."""

    name: str
    """name of the entry"""
    config: str
    """config of the runs"""
    options: dict[str, Any] = {}
    """options of `unstable train`"""
    world: dict[str, Any] = {}
    """options of `unstable world`, which makes the model for the games of `options`"""
    game: str
    """key of the game whose exploitability counts"""
    threshold: float
    """greatest exploitability that ends the time"""
    seeds: list[int]
    """seeds of the runs"""
    record: Record | None = None
    """measured figures; null: none yet"""

    def world_options(self, out: Path) -> dict[str, Any]:
        """Return the options of `unstable world`."""
        games = {name: value for name, value in self.options.items() if name.startswith("games.")}
        return {**games, **self.world, "world.out": str(out)}


class Reached(NamedTuple):
    """First version at most at the threshold, and its minutes; None if there is none."""

    version: int | None
    minutes: float | None
    lowest: float
    afterwards: float | None


def reached(rows: Sequence[Mapping[str, Any]], game: str, threshold: float) -> Reached:
    """Return when a run's rows first reach a threshold in a game."""
    key, seconds, found = ExploitKey(game).name("high"), 0.0, None
    measured: list[float] = []
    for row in rows:
        evaluated = [row.get("time/evaluate")]
        evaluated += [row[name] for name in row if is_seconds(name)]
        seconds += (row.get("time/total") or 0) - sum(each or 0 for each in evaluated)
        if (value := row.get(key)) is None:
            continue
        measured.append(value)
        if found is None and value <= threshold:
            found, place = (row["version"], seconds / 60), len(measured)
    if not measured:
        raise ConfigError(f"game = {game}: the run has no {key}; use the name of its metrics")
    if found is None:
        return Reached(None, None, min(measured), None)
    return Reached(*found, min(measured), max(measured[place:], default=None))


def is_seconds(name: str) -> bool:
    """Return whether a metric is the duration of an exploitability's computation."""
    parsed = ExploitKey.parse(name)
    return parsed is not None and parsed[1] == "seconds"


def read_entry(path: Path) -> Entry:
    """Read an entry; raises `ConfigError` for one whose runs would fail or not be comparable."""
    entry = read_section(Entry, read_text(path, "entry"), str(path), "config")
    config = load(entry.config, entry.options)
    if entry.world:
        load_as(WorldRun, "default", entry.world_options(Path("world")))
    if config.loop.mode != "sync":  # else evaluation is concurrent, and not part of the time
        raise ConfigError(f"{path}: loop.mode = {config.loop.mode}: set sync")
    if not config.eval.exploitability.every:
        raise ConfigError(f"{path}: eval.exploitability.every = 0: set an interval of updates")
    return entry


def run(entry: Entry, seed: int, folder: Path) -> Reached:
    """Train a seed, unless its result is there."""
    done, own = (folder / f"{entry.name}-{seed}{end}" for end in (".json", ""))
    if done.is_file():
        return Reached(**json.loads(done.read_text(encoding="utf-8")))
    options, world = dict(entry.options), (folder / f"{entry.name}-world").absolute()
    if entry.world:
        if not world.exists():
            unstable("world", entry.world_options(world), world)
        options["model.name"] = world
    shutil.rmtree(own, ignore_errors=True)
    unstable("train", {"config": entry.config, **options, "seed": seed, "run_dir": own}, own)
    result = reached(read_rows(own / "metrics.jsonl"), entry.game, entry.threshold)
    write_whole(done, json.dumps(result._asdict()).encode())
    return result


def unstable(command: str, options: Mapping[str, Any], log: Path) -> None:
    """Run a command of the package, with its output in a file beside its folder."""
    program = os.environ.get("UNSTABLE") or Path(sys.executable).with_name("unstable")
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with log.with_suffix(".log").open("w", encoding="utf-8") as lines:
        subprocess.run([program, command, *words], stdout=lines, stderr=lines, check=True)


def machine() -> str:
    """Return the processor's name and the number of its cores for this process."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0] if names else 'unknown processor'}, {cores} cores"


def slower(record: Record | None, results: Mapping[int, Reached]) -> list[int]:
    """Return the seeds that contradict a record: not reached, or `SLACK` times as slow."""
    known = record.minutes if record else {}
    limits = {seed: minutes * SLACK for seed, minutes in known.items() if minutes is not None}
    took = {seed: result.minutes for seed, result in results.items()}
    return [seed for seed, most in limits.items() if (took.get(seed) or float("inf")) > most]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("entries", nargs="*", type=Path, help="default: all of bench/speedruns")
    parser.add_argument("--folder", type=Path, default=Path("outputs/speedrun"))
    parser.add_argument("--verify", type=Path, metavar="ENTRY", help="compare with its record")
    arguments = parser.parse_args(argv)
    paths = [arguments.verify] if arguments.verify else arguments.entries
    entries = [read_entry(path) for path in paths or sorted(ENTRIES.glob("*.yaml"))]
    folder = arguments.folder / "verified" if arguments.verify else arguments.folder
    if arguments.verify:
        if entries[0].record is None:
            raise ConfigError(
                f"{paths[0]}: record = none: nothing to compare with; measure it first"
            )
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    rows, records, wrong = [], {}, list[int]()
    for entry in entries:
        results = {seed: run(entry, seed, folder) for seed in entry.seeds}
        for seed, found in results.items():
            recorded = entry.record.minutes.get(seed) if entry.record else None
            figures = [fixed(found.lowest, 3), fixed(found.afterwards, 3), number(recorded)]
            version = "–" if found.version is None else str(found.version)
            cells = [entry.name, f"{entry.threshold:g}", str(seed), version, number(found.minutes)]
            rows.append([*cells, *figures])
        minutes = {
            seed: found.minutes and round(found.minutes, 2) for seed, found in results.items()
        }
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        records[entry.name] = {"record": {"machine": machine(), "date": date, "minutes": minutes}}
        wrong += slower(entry.record, results)
    columns = "entry, threshold, seed, version, minutes, lowest, afterwards, recorded minutes"
    print(f"{machine()}\n\n{markdown_table(columns.split(', '), rows)}\n")
    if arguments.verify:
        print(f"differs from the record: seeds {wrong}" if wrong else "as recorded")
        return bool(wrong)
    for name, record in records.items():
        print(f"# {name}\n{yaml.safe_dump(record, sort_keys=False)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
