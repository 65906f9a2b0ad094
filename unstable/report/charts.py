"""Charts as Vega-Lite specifications, which are plain values; the page sets the colors."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

Spec = dict[str, Any]
Chart = dict[str, Any]
"""Chart: {"title": ..., "caption": ..., "spec": ..., "wide": False}"""
Points = list[dict[str, Any]]
"""Points of one curve: {"x": version, "y": value} and, if it has an interval, "low", "high"."""
MOST_POINTS = 300
"""Maximum number of points per curve; longer curves are averaged."""
MOST_SERIES = 8
"""Maximum number of curves per chart; readers cannot distinguish more colors."""
HEIGHT = 220
FEW_POINTS = 40
NAMED_VERSIONS = 8
ROW_HEIGHT = 44
SHORT = 12  # characters of a name; three such names fit into a row on a phone


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """Return at most `most` points, each the mean of equally many neighbors, with the last one's x.

    >>> thinned([{"x": 0, "y": 1.0}, {"x": 1, "y": 2.0}], most=1)
    [{'x': 1, 'y': 1.5}]
    """
    size = -(-len(points) // most)
    if size <= 1:
        return points
    stretches = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        {name: fmean(p[name] for p in each) for name in each[0]} | {"x": each[-1]["x"]}
        for each in stretches
    ]


def _x(values: Points, unit: str = "version") -> Spec:
    axis: Spec = {"tickMinStep": 1, "format": ",d", "grid": False}
    versions = sorted({point["x"] for point in values})
    if len(versions) <= NAMED_VERSIONS:  # without values, the axis adds fractions
        axis["values"] = versions
    scale = {"nice": False, "zero": False}
    return {"field": "x", "type": "quantitative", "title": unit, "axis": axis, "scale": scale}


def _colour(names: Sequence[str]) -> Spec:
    legend = {
        "orient": "top",
        "title": None,
        "columns": 3 if max(map(len, names)) <= SHORT else 2,
        "labelLimit": 180,
        "symbolType": "circle",
        "symbolOpacity": 1,
    }
    return {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(names)},
        "legend": legend if len(names) > 1 else None,
    }


def _values(curves: Mapping[str, Points]) -> Points:
    return [{"series": name, **point} for name, points in curves.items() for point in points]


def _tooltip(unit: str, has_interval: bool, of: str = "version") -> list[Spec]:
    fields = [("series", "", None), ("x", of, ",d"), ("y", unit, ".4~g")]
    fields += [("low", "from", ".4~g"), ("high", "to", ".4~g")] if has_interval else []
    return [
        {"field": field, "title": title or " ", **({"format": form} if form else {})}
        for field, title, form in fields
    ]


def line_chart(
    title: str,
    unit: str,
    curves: Mapping[str, Points],
    caption: str = "",
    zero: bool = False,
    names: Sequence[str] = (),
    over: str = "version",
) -> Chart:
    """Return a chart of at most `MOST_SERIES` curves, with bands if they have intervals.

    `over` is the title of the x axis. Charts with equal `names` give each of these one color, even
    if it has no curve.
    """
    shown = dict(list(curves.items())[:MOST_SERIES])
    if len(shown) < len(curves):
        caption += f" {len(curves) - len(shown)} further curves are not shown."
    values = _values(shown)
    banded = any("low" in point for point in values)
    y = {"field": "y", "type": "quantitative", "title": unit, "scale": {"zero": zero}}
    band = {
        "mark": {"type": "area", "opacity": 0.16, "clip": True},
        "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
    }
    few = len(values) <= FEW_POINTS * len(shown)
    marks: list[Spec] = [
        {"mark": {"type": "line", "strokeWidth": 2, "point": few}, "encoding": {"y": y}},
        {
            "mark": {"type": "point", "size": 90, "opacity": 0, "filled": True},
            "encoding": {"y": y, "tooltip": _tooltip(unit, banded, over)},
        },
    ]
    spec = {
        "height": HEIGHT,
        "data": {"values": values},
        "encoding": {"x": _x(values, over), "color": _colour(names or list(shown))},
        "layer": [band, *marks] if banded else marks,
    }
    return {"title": title, "caption": caption.strip(), "spec": spec}


def area_chart(
    title: str, unit: str, curves: Mapping[str, Points], caption: str = "", share: bool = False
) -> Chart:
    """Return a chart of amounts stacked over versions; with `share` they fill the chart."""
    y: Spec = {"field": "y", "type": "quantitative", "title": unit, "stack": "zero"}
    if share:
        y |= {"stack": "normalize", "axis": {"format": "%"}}
    values = _values(curves)
    spec = {
        "height": HEIGHT,
        "data": {"values": values},
        "mark": {"type": "area", "opacity": 0.85, "line": False},
        "encoding": {
            "x": _x(values),
            "y": y,
            "color": _colour(list(curves)),
            "tooltip": _tooltip(unit, has_interval=False),
        },
    }
    return {"title": title, "caption": caption, "spec": spec}


def heat_map(
    title: str, cells: Sequence[Mapping[str, Any]], names: Sequence[str], caption: str
) -> Chart:
    """Return a heat map of mean outcomes, `row` against `column`, both in the order of `names`."""
    columns = [name for name in names if any(cell["column"] == name for cell in cells)]
    rows = [name for name in names if any(cell["row"] == name for cell in cells)]
    axis = {"labelAngle": -30, "orient": "top", "labelLimit": 110, "domain": False, "ticks": False}
    x = {"field": "column", "type": "nominal", "sort": columns, "title": "against", "axis": axis}
    y = {
        "field": "row",
        "type": "nominal",
        "sort": rows,
        "title": None,
        "axis": {"labelLimit": 110, "domain": False, "ticks": False},
    }
    most = max(1.0, *(abs(cell["mean"]) for cell in cells))
    colour = {
        "field": "mean",
        "type": "quantitative",
        "scale": {"domain": [-most, 0, most], "range": "diverging", "interpolate": "rgb"},
        "legend": None,
    }
    tooltip = [
        {"field": "row", "title": "player"},
        {"field": "column", "title": "against"},
        {"field": "mean", "title": "mean outcome", "format": "+.3f"},
        {"field": "count", "title": "results", "format": ",d"},
    ]
    number = {"type": "text", "fontSize": 11, "dy": -6}
    spec = {
        "height": ROW_HEIGHT * len(rows),
        "data": {"values": list(cells)},
        "encoding": {"x": x, "y": y, "tooltip": tooltip},
        "layer": [
            {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": {"color": colour}},
            {"mark": number, "encoding": {"text": {"field": "label"}}},
            {
                "mark": {**number, "fontSize": 9, "dy": 9, "opacity": 0.75},
                "encoding": {"text": {"field": "count", "format": ".3~s"}},
            },
        ],
    }
    return {"title": title, "caption": caption, "spec": spec}
