"""Tables of policies: a seat's observation, and the probability of each legal action.

Files are CSV with one row per action, or JSON with one object per position.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import ConfigError, shown
from unstable.solving.best_response import Policy, table_at
from unstable.solving.tree import Node, Tree, in_words

_ROUNDING = 1e-6


class TableRow(NamedTuple):
    """One decision. TableRow(0, "K 1/1 +0: check bet", {"[check]": 0.25, "[bet]": 0.75})"""

    seat: int
    position: str  # the seat's observation as text
    probabilities: Mapping[str, float]  # the rest to 1 are illegal answers


def tabulated(tree: Tree, policy: Policy) -> list[TableRow]:
    """Tabulate a policy at every information set; with perfect information, at every position."""
    return [
        TableRow(node.seat, name, {a: table_at(policy, node).get(a, 0.0) for a in node.actions})
        for name, node in _named(tree)
    ]


def policy_of(tree: Tree, rows: Sequence[TableRow], place: str) -> Policy:
    """Return the policy of a table for a tree; raises `ConfigError` that begins with `place`."""
    given = {(row.seat, row.position): row.probabilities for row in rows}
    policy: dict[object, Mapping[str, float]] = {}
    for name, node in _named(tree):
        where = f"seat {node.seat} at {shown(name)}"
        if (row := given.pop((node.seat, name), None)) is None:
            raise ConfigError(
                f"{place}: missing {where}; list all positions as exploit --table does"
            )
        if others := [action for action in row if action not in node.actions]:
            raise ConfigError(
                f"{place}: {where}: illegal action {shown(others[0])}; use {' '.join(node.actions)}"
            )
        if min(row.values(), default=0.0) < 0 or not sum(row.values()) <= 1 + _ROUNDING:
            raise ConfigError(
                f"{place}: {where}: invalid probabilities {shown(dict(row))}; give numbers >= 0 "
                "with a sum <= 1"
            )
        policy[node.information_set if node.information_set >= 0 else node.key] = row
    for seat, name in given:
        raise ConfigError(f"{place}: seat {seat} never reaches {shown(name)}; remove it")
    return policy


def _named(tree: Tree) -> Iterator[tuple[str, Node]]:
    """Yield one position of each information set, with a name that is unique for its seat.

    The name is the observation as text, with a number if several sets of a seat share the text.
    """
    counts: dict[tuple[int, str], int] = {}
    for node in _decisions(tree):
        text = in_words(node.shown)
        count = counts[node.seat, text] = counts.get((node.seat, text), 0) + 1
        yield (text if count == 1 else f"{text} ({count})"), node


def _decisions(tree: Tree) -> Iterator[Node]:
    """Yield the first position of each information set, or each distinct observation."""
    seen: set[object] = set()
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        if not node.children or (node.seat >= 0 and node.information_set < 0):
            continue
        waiting += reversed(node.children)
        if node.seat >= 0 and node.information_set not in seen:
            seen.add(node.information_set)
            yield node
    yield from (node for node in tree.decisions if node.information_set < 0)


_COLUMNS = ("game", "seat", "position", "action", "probability")


def write_tables(
    path: Path, tables: Mapping[str, Sequence[TableRow]], *, check: bool = False
) -> None:
    """Write each game's table; with `check`, only validate the path, or raise `ConfigError`."""
    is_csv = _is_csv("--table", path)
    if path.exists():
        raise ConfigError(f"--table = {str(path)!r}: already exists; give another file")
    if not path.parent.is_dir():
        raise ConfigError(f"--table = {str(path)!r}: folder {path.parent} not found; create it")
    if check:
        return
    rows = [(game, row) for game, table in tables.items() for row in table]
    with path.open("w", encoding="utf-8", newline="") as file:
        if is_csv:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            for game, row in rows:
                for action, share in row.probabilities.items():
                    writer.writerow((game, row.seat, row.position, action, repr(share)))
        else:
            found = [{"game": game, **row._asdict()} for game, row in rows]
            json.dump(found, file, indent=1)


def read_tables(path: Path) -> dict[str, list[TableRow]]:
    """Read the table of each game from a file; raises `ConfigError` if the file is malformed."""
    place = f"--policy = {str(path)!r}"
    is_csv = _is_csv("--policy", path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _from_csv(file) if is_csv else json.load(file)
        found: dict[str, dict[tuple[int, str], dict[str, float]]] = {}
        for row in rows:
            key = int(row["seat"]), str(row["position"])
            table = found.setdefault(str(row["game"]), {}).setdefault(key, {})
            for action, share in row["probabilities"].items():
                if str(action) in table:
                    raise ValueError(f"{action} is listed twice at {key[1]}")
                table[str(action)] = float(share)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}; give a policy table") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "a CSV file with the columns " + ", ".join(_COLUMNS)
        if not is_csv:
            what = "a JSON list of objects with game, seat, position, probabilities"
        raise ConfigError(
            f"{place}: not {what} ({type(error).__name__}: {shown(str(error))}); use the format of "
            "exploit --table"
        ) from error
    return {
        game: [TableRow(seat, position, each) for (seat, position), each in table.items()]
        for game, table in found.items()
    }


def _from_csv(file: Any) -> list[dict[str, Any]]:
    return [
        {**row, "probabilities": {row["action"]: row["probability"]}}
        for row in csv.DictReader(file)
    ]


def _is_csv(option: str, path: Path) -> bool:
    if path.suffix not in (".csv", ".json"):
        raise ConfigError(f"{option} = {str(path)!r}: unsupported format; use .csv or .json")
    return path.suffix == ".csv"
