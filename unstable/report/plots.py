"""The plotting library that a report carries: Vega-Lite, out of the wheel of vl-convert-python."""

from importlib.metadata import version
from pathlib import Path

from unstable.records.files import write_whole

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def plot_library(cache: Path) -> str:
    """Its JavaScript, some 900 kB with Vega and its evaluator of expressions without `eval`.

    To bundle it takes seconds, so that it is kept in the folder `cache`. BSD-3-Clause.
    """
    kept = cache / f"vega-{version('vl-convert-python')}.js"
    if not kept.is_file():
        import vl_convert  # 80 MB, which only the first report on a machine needs

        write_whole(kept, vl_convert.javascript_bundle(_SNIPPET).encode())
    return kept.read_text(encoding="utf-8")
