"""Plot of runs' scores over their versions, as in docs/results.md.

    python -m bench.curve RUN [RUN ...] --out docs/curve.svg

Every evaluation of a run is a panel: an env against an opponent, with the score of each version and
its 95 % interval. Several runs share the panels. Requires matplotlib (`pip install -e '.[bench]'`).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot

from unstable.records.reading import Measured, by_key, measured, read_rows
from unstable.records.text import against
from unstable.types.metrics import EvalKey


def draw(axes: pyplot.Axes, scores: Sequence[Measured[EvalKey]], label: str) -> None:
    versions = [each.version for each in scores]
    score, low, high = (
        [each.figures[name] for each in scores] for name in ("score", "low", "high")
    )
    (line,) = axes.plot(versions, score, marker="o", markersize=3, label=label)
    axes.fill_between(versions, low, high, color=line.get_color(), alpha=0.15, linewidth=0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--labels", nargs="*", help="names of the runs; default: their folders'")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    runs = {
        run: by_key(measured(EvalKey, read_rows(run / "metrics.jsonl"), "score"))
        for run in arguments.runs
    }
    keys = {key for scores in runs.values() for key in scores}
    panels = sorted(keys, key=lambda key: key.name("score"))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4 * len(panels), 3), sharey=True, squeeze=False
    )
    labels = arguments.labels or [run.name for run in runs]
    for panel, key in zip(axes[0], panels, strict=True):
        for label, scores in zip(labels, runs.values(), strict=True):
            draw(panel, scores.get(key, []), label)
        panel.set_title(f"{key.env} against {against(key.opponent, key.mode)}", fontsize=9)
        panel.set_xlabel("version")
        panel.set_ylim(0, 1)
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("score")
    if len(runs) > 1:
        axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    with pyplot.rc_context({"svg.hashsalt": "unstable"}):  # the same runs give the same file
        figure.savefig(arguments.out, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
