"""The report of `.ci/run`: seconds of each part beside its budget, and the slowest tests.

    python scripts/ci_report.py FOLDER

FOLDER has `parts`, one line `NAME SECONDS` per part, and `NAME.jsonl`, the durations of its tests.
Exits with 1 and names each part or test that exceeds its budget in `tests/repository/budget.toml`
by more than half.
"""

import json
import sys
import tomllib
from pathlib import Path

BUDGET = Path(__file__).parent.parent / "tests/repository/budget.toml"
TOLERANCE = 1.5
"""Factor above a budget that fails; below it, differences of machines and runs are accepted."""
SHOWN = 20


def durations(folder: Path) -> dict[str, list[tuple[float, str]]]:
    """Return seconds and name of each test by part, slowest first."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found[path.stem] = sorted(((row["seconds"], row["test"]) for row in lines), reverse=True)
    return found


def main(folder: Path, budget_file: Path = BUDGET) -> int:
    """Print the report and return the exit code."""
    sections = tomllib.loads(budget_file.read_text(encoding="utf-8"))["ci"]
    budget = {
        section: {name: most for name, most in values.items() if name != "reason"}
        for section, values in sections.items()
    }
    rows = [line.split() for line in (folder / "parts").read_text(encoding="utf-8").splitlines()]
    parts = {name: int(seconds) for name, seconds in rows}
    tests = durations(folder)

    print(f"\n{'part':12} {'seconds':>8} {'budget':>8} {'tests':>7}")
    for name, seconds in parts.items():
        most, count = budget["seconds"].get(name, ""), len(tests.get(name, ())) or ""
        print(f"{name:12} {seconds:8} {most:8} {count:7}")
    print(f"{'all':12} {sum(parts.values()):8} {sum(budget['seconds'].values()):8}")
    print(f"\nthe {SHOWN} slowest tests")
    every = sorted((row for part in tests.values() for row in part), reverse=True)
    for duration, test in every[:SHOWN]:
        print(f"{duration:8.1f} s  {test}")

    over = [
        f"part {name} took {seconds} s, more than {TOLERANCE} x its budget of {most} s"
        for name, seconds in parts.items()
        if seconds > TOLERANCE * (most := budget["seconds"].get(name, 0))
    ]
    over += [
        f"{name} test {test} took {seconds:.0f} s, more than {TOLERANCE} x {most} s"
        for name, most in budget["slowest"].items()
        for seconds, test in tests.get(name, ())
        if seconds > TOLERANCE * most
    ]
    for line in over:
        print(f"over budget: {line}", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
