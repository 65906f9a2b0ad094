"""Scores of runs over their versions, as a picture: what docs/results.md shows.

    python -m bench.curve RUN [RUN ...] --out docs/curve.svg

Every evaluation of a run is a panel: an env against an opponent, the score of each version with its
95 % interval. Several runs share the panels. Needs matplotlib (`pip install -e '.[bench]'`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib import pyplot

Row = dict[str, Any]


def evaluations(rows: list[Row]) -> list[str]:
    """`env/opponent`, and how it was sampled, of every evaluation, in the order of the names."""
    names = {name for row in rows for name in row if name.startswith("eval/")}
    return sorted(n.removeprefix("eval/").removesuffix("/score") for n in names if "/score" in n)


def draw(axes: pyplot.Axes, rows: list[Row], evaluation: str, label: str) -> None:
    shown = [row for row in rows if row.get(f"eval/{evaluation}/score") is not None]
    versions = [row["version"] for row in shown]
    score, low, high = (
        [row[f"eval/{evaluation}/{name}"] for row in shown] for name in ("score", "low", "high")
    )
    (line,) = axes.plot(versions, score, marker="o", markersize=3, label=label)
    axes.fill_between(versions, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Scores of runs over their versions")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--labels", nargs="*", help="names of the runs; default: their folders'")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    pyplot.rcParams["svg.hashsalt"] = "unstable"  # the same runs give the same file
    runs = {
        run: [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in arguments.runs
    }
    panels = list(dict.fromkeys(name for rows in runs.values() for name in evaluations(rows)))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4 * len(panels), 3), sharey=True, squeeze=False
    )
    labels = arguments.labels or [run.name for run in runs]
    for panel, evaluation in zip(axes[0], panels, strict=True):
        for label, rows in zip(labels, runs.values(), strict=True):
            draw(panel, rows, evaluation, label)
        env, opponent, *how = evaluation.split("/")
        panel.set_title(", ".join([f"{env} against {opponent}", *how]), fontsize=9)
        panel.set_xlabel("version")
        panel.set_ylim(0, 1)
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("score")
    if len(runs) > 1:
        axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(arguments.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
