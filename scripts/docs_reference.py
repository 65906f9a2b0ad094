"""The tables of the documentation that are made of the code.

    .venv/bin/python scripts/docs_reference.py

Each stands between `<!-- metrics: GROUP -->` and `<!-- end -->` in docs/metrics.md.
"""

import re
from pathlib import Path

from unstable.records.text import markdown_table
from unstable.types.metrics import METRICS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
BLOCK = re.compile(r"(<!-- metrics: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """A page whose tables are as the registry has them."""
    return BLOCK.sub(lambda block: f"{block[1]}{table(block[2])}\n{block[3]}", page)


def table(group: str) -> str:
    """The metrics of a group; "row" are those that say what a row is."""
    rows = [
        (f"`{each.name}`", each.meaning, each.unit)
        for each in METRICS
        if (each.name.split("/")[0] if "/" in each.name else "row") == group
    ]
    return markdown_table(["name", "meaning", "unit"], rows)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), encoding="utf-8")
