"""Files of policies as tables: CSV, a row for each action, or JSON, one for each position."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, shown
from unstable.solving.table import TableRow

COLUMNS = ("game", "seat", "position", "action", "probability")


def write_tables(
    path: Path, tables: Mapping[str, Sequence[TableRow]], *, check: bool = False
) -> None:
    """Write each game's table; with `check` only see that it can be: raises `ConfigError`."""
    is_csv = _is_csv("--table", path)
    if path.exists():
        raise ConfigError(f"--table = {str(path)!r} exists; give a file that does not")
    if not path.parent.is_dir():
        raise ConfigError(f"--table = {str(path)!r}: {path.parent} is no folder; make it first")
    if check:
        return
    rows = [(game, row) for game, table in tables.items() for row in table]
    with path.open("w", encoding="utf-8", newline="") as file:
        if is_csv:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for game, row in rows:
                for action, share in row.probabilities.items():
                    writer.writerow((game, row.seat, row.position, action, repr(share)))
        else:
            found = [{"game": game, **row._asdict()} for game, row in rows]
            json.dump(found, file, indent=1)


def read_tables(path: Path) -> dict[str, list[TableRow]]:
    """The table of each game in a file; raises `ConfigError` for one that is none."""
    place = f"--policy = {str(path)!r}"
    is_csv = _is_csv("--policy", path)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = _from_csv(file) if is_csv else json.load(file)
        found: dict[str, dict[tuple[int, str], dict[str, float]]] = {}
        for row in rows:
            key = int(row["seat"]), str(row["position"])
            table = found.setdefault(str(row["game"]), {}).setdefault(key, {})
            table |= {str(a): float(p) for a, p in row["probabilities"].items()}
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}; give a table's file") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = "a CSV file with the columns " + ", ".join(COLUMNS)
        if not is_csv:
            what = "a JSON list of objects with game, seat, position, probabilities"
        raise ConfigError(
            f"{place}: is not {what} ({type(error).__name__}: {shown(str(error))}); write it as "
            "exploit --table does"
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
        raise ConfigError(f"{option} = {str(path)!r}: give a name that ends with .csv or .json")
    return path.suffix == ".csv"
