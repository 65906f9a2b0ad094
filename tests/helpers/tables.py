"""Rotating tests: rows of tables over other libraries, and long lifecycles of wings.

A table has one case per game, model or setting of another library; a wing is a part of the package
that a training run does not need. Each run of the slow tests plays a
table's core, which covers every feature, and a quarter of the other rows and lifecycles, selected
by the commit. All of them run under `-m tables`, and wherever one of their sources differs from the
recorded one.

    python -m tests.helpers.tables             print what a run of the slow tests selects here
    python -m tests.helpers.tables --record    record the sources, after a green run of `-m tables`
"""

import hashlib
import json
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "tests/data/tables.json"
TURNS = tomllib.loads((ROOT / "tests/data/turns.toml").read_text(encoding="utf-8"))
QUARTERS = 4
ONE_CORE = tuple(
    f"tests/{place}"
    for place in (
        *("chaos/test_kill.py", "chaos/test_soak.py", "commands/test_corrected.py"),
        *("commands/test_damaged_records.py", "commands/test_full_weights.py", "games/"),
        *("commands/test_relabel.py", "commands/test_teach.py", "engines/test_life.py"),
        *("loop/test_preference_learning.py", "models/test_families.py", "solving/"),
        *("repository/test_adding_a_game.py", "repository/test_benches.py"),
        *("repository/test_contributing.py", "repository/test_readme_commands.py"),
        *("repository/test_tutorials.py", "repository/test_wheel.py"),
        *("serving/test_command.py", "studies/test_tournament"),
    )
)
"""Where slow tests use one core each, as the rows of quick tests do; others use all cores."""
NODES = ("cluster", "crew", "files", "node_actor", "nodes", "placement")
SOURCES = {
    "benches": ("bench",),
    "families": ("unstable/models/support.py", "constraints.txt"),
    "gymnasium": ("unstable/contrib/environments/gymnasium.py", "constraints.txt"),
    "intervals": ("unstable/solving/sampled.py",),
    "learning": ("docs/adding_a_game.md",),
    "nodes": tuple(f"unstable/runtime/{name}.py" for name in NODES),
    "open_spiel": ("unstable/games/bridges/open_spiel.py", "constraints.txt"),
    "pettingzoo": ("unstable/contrib/environments/pettingzoo.py", "constraints.txt"),
    "serving": ("unstable/serving",),
    "soak": ("tests/chaos/test_soak.py",),
    "studies": (
        *("unstable/studies/several.py", "unstable/studies/sweep"),
        "unstable/studies/league",
    ),
    "textarena": ("unstable/games/textarena.py", "constraints.txt"),
    "vllm": ("unstable/engines/vllm", "unstable/models/quantize.py", "constraints.txt"),
}
"""The files and folders whose change makes each table or wing run whole."""
SOURCES |= {f"{name} rotating": tuple(each["sources"]) for name, each in TURNS.items()}


def table(name: str, rows: Iterable[Any], core: Collection[Any]) -> list[Any]:
    """Return the rows as slow pytest parameters: `core` for each run, the others by quarters.

    A row that is a tuple gives one value to each argument.
    """
    import pytest  # not installed when `.ci/run` prints the plan

    rows = [*rows]
    assert name in SOURCES and all(row in rows for row in core), f"{name}: unknown rows in the core"
    others = [row for row in rows if row not in core]
    quarters = {row: place % QUARTERS for place, row in enumerate(others)}
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            marks=(pytest.mark.slow, pytest.mark.tables(name, quarters.get(row))),
        )
        for row in rows
    ]


def take_turns(items: "Iterable[pytest.Item]") -> set[str]:
    """Mark the rotating rows of `tests/data/turns.toml`, and the slow tests of one core.

    Returns rows in the file that do not exist among `items`.
    """
    import pytest

    places = {
        f"tests/{test}": (name, quick)
        for name, each in TURNS.items()
        for test, quick in each["tests"].items()
    }
    unseen, seen = set(), set()
    for item in items:
        test, _, row = item.nodeid.partition("[")
        if test.startswith(ONE_CORE):
            item.add_marker(pytest.mark.one_core)
        if test in places:
            name, quick = places[test]
            unseen |= {f"{test}[{each}]" for each in quick}
            seen.add(item.nodeid)
            if row.removesuffix("]") not in quick:
                item.add_marker(pytest.mark.slow)
                item.add_marker(pytest.mark.one_core)
                quarter = zlib.crc32(item.nodeid.encode()) % QUARTERS
                item.add_marker(pytest.mark.tables(f"{name} rotating", quarter))
    return unseen - seen


def deselect(config: "pytest.Config", items: "list[pytest.Item]") -> None:
    """Remove the rows of other commits' quarters from `items`."""
    if "tables" in config.getoption("-m"):
        return
    left = {item for item in items for mark in item.iter_markers("tables") if not runs(*mark.args)}
    if left:
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


def runs(name: str, quarter: int | None) -> bool:
    """Return whether this commit runs a row of a table; a row of the core has no quarter."""
    assert name in SOURCES, f"{name}: no such table"
    return quarter in (None, quarter_of(commit())) or name in changed()


@cache
def commit() -> str:
    """The hash of the commit that is checked out; empty outside a git repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def quarter_of(commit: str) -> int:
    """The quarter that a commit runs, 0 to 3; 0 without a commit."""
    return int(commit or "0", 16) % QUARTERS


@cache
def changed() -> frozenset[str]:
    """Tables of which a source differs from the one that their last whole run had."""
    recorded = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    return frozenset(name for name, digest in digests() if recorded.get(name) != digest)


def digests() -> Iterator[tuple[str, str]]:
    """Each table's name and a digest of its sources."""
    for name, paths in SOURCES.items():
        files = (file for path in paths for file in _files(ROOT / path))
        texts = b"\0".join(file.read_bytes() for file in files)
        yield name, hashlib.sha256(texts).hexdigest()[:16]


def _files(path: Path) -> Iterator[Path]:
    """The path, or the sources of a folder in order."""
    if path.is_dir():
        yield from sorted(each for each in path.rglob("*.*") if each.suffix in (".py", ".sh"))
    else:
        yield path


def plan() -> str:
    """One line: the quarter of this commit and the tables that run whole."""
    whole = ", ".join(sorted(changed())) or "none"
    return (
        f"tables: core and quarter {quarter_of(commit()) + 1} of {QUARTERS} "
        f"(commit {commit()[:7] or 'unknown'}); complete, since sources changed: {whole}"
    )


if __name__ == "__main__":
    if "--record" in sys.argv:
        RECORD.write_text(json.dumps(dict(digests()), indent=1) + "\n", encoding="utf-8")
    else:
        print(plan())
