"""What a run measured of its game's exploitability: `python -m bench.open_spiel.figures RUN`."""

import sys
from pathlib import Path

from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows


def main() -> None:
    """Print a line for each measurement: version, low, high, mass of illegal answers."""
    for row in read_rows(RunFolder(Path(sys.argv[1])).metrics):
        own = {key: value for key, value in row.items() if key.startswith("exploit/")}
        found = {key.rpartition("/")[2]: value for key, value in own.items()}
        if found.get("low") is not None:
            low, high, illegal = (found[name] for name in ("low", "high", "illegal_mass"))
            print(f"version {row['version']}: {low:.3f} to {high:.3f}, illegal {illegal:.4f}")


if __name__ == "__main__":
    main()
