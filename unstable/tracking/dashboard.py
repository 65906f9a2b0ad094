"""Live dashboard: panes over a `RunView`, drawn by Rich in a separate thread."""

import io
import logging
from collections.abc import Callable

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel

from unstable.config.plugins import faults_to
from unstable.tracking.panes import (
    bars,
    brief,
    collection_pane,
    evaluation_pane,
    foot,
    game_pane,
    head,
    last_line,
    learner_pane,
    machine_pane,
    ratings_pane,
)
from unstable.tracking.text import Text
from unstable.tracking.view import RunView

logger = logging.getLogger(__name__)
NARROW, SHORT = 50, 16  # smallest width and height with panes
TALL = 32
WIDE = 140


def start_dashboard(view: RunView, console: Console) -> Live | None:
    """Start the live display; None if `tracking.dashboard` or the terminal rules it out."""
    wanted = view.config.tracking.dashboard
    able = console.is_terminal and not console.is_dumb_terminal
    if wanted == "off" or (wanted == "auto" and not able):
        return None
    dashboard = Dashboard(view)
    live = Live(
        get_renderable=lambda: dashboard, console=console, screen=True, refresh_per_second=4
    )
    live.start()
    return live


def screenshot(view: RunView, width: int = 120, height: int = 40) -> str:
    """Return the current dashboard as an SVG."""
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True
    )
    console.print(Dashboard(view), height=height)
    return console.export_svg(title=view.name)


class Dashboard:
    """All panes, arranged by the terminal's size."""

    def __init__(self, view: RunView) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view = self.view
        view.refresh()
        collection = _pane("collection", lambda w, h: collection_pane(view, w, h))
        game = _pane("last game", lambda w, h: game_pane(view, w, h))
        ratings = _pane("ratings", lambda w, h: ratings_pane(view, w, h))
        learner = _pane("learner", lambda w, h: learner_pane(view, w, h))
        evaluations = _pane("evaluation", lambda w, h: evaluation_pane(view, w, h))
        width, height = options.max_width, options.height or console.height
        if width < NARROW or height < SHORT:
            lines = [*brief(view), *[""] * height][:height]
            yield Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
            return
        body = Layout(ratio=1)
        most = height // 2 if width >= WIDE else height // 4
        machine = []  # empty for a finished run
        if wanted := len(bars(view)) + len(view.actors):
            pane = _pane("machine", lambda w, h: machine_pane(view, w, h))
            machine = [Layout(pane, size=min(wanted + 2, most))]
        if width >= WIDE:
            body.split_row(
                _column(Layout(collection, size=15), Layout(game)),
                _column(Layout(learner), Layout(evaluations)),
                _column(Layout(ratings), *machine),
            )
        elif height >= TALL:
            body.split_row(
                _column(Layout(collection, size=14), Layout(game)),
                _column(Layout(ratings), Layout(learner, size=10), Layout(evaluations), *machine),
            )
        else:
            body.split_row(
                _column(Layout(collection, size=11), Layout(game)),
                _column(Layout(ratings), Layout(learner), Layout(evaluations)),
            )
        page = Layout()
        last = last_line(view, has_machine=width >= WIDE or height >= TALL)
        page.split_column(
            Layout(head(view), size=1),
            body,
            Layout(foot(view, width), size=2),
            *([Layout(last, size=1)] if last else []),
        )
        yield page


class _SizedPane:
    """Renderable that is drawn for the current width and height."""

    def __init__(self, draw: Callable[[int, int], RenderableType]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._drawn(options.max_width, options.height or console.height)

    def _drawn(self, width: int, height: int) -> RenderableType:
        faults: list[BaseException] = []
        with faults_to(faults.append):  # the other panes stay live
            return self._draw(width, height)
        _report(self._draw, faults[0])
        return Text(f"cannot be shown ({type(faults[0]).__name__})", style="dim")


_reported: set[str] = set()


def _report(draw: Callable[[int, int], RenderableType], error: BaseException) -> None:
    """Log a pane's error, once for each kind of error."""
    kind = f"{draw.__qualname__} {error!r}"
    if kind not in _reported:
        _reported.add(kind)
        logger.error("a dashboard pane failed", exc_info=error)


def _pane(title: str, draw: Callable[[int, int], RenderableType]) -> Panel:
    return Panel(_SizedPane(draw), title=title, title_align="left", border_style="dim", box=ROUNDED)


def _column(*layouts: Layout) -> Layout:
    column = Layout()
    column.split_column(*layouts)
    return column
