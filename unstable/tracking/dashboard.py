"""The live dashboard: panes over a `View`, drawn by Rich in a thread of its own."""

import io
import logging
import time
from collections.abc import Callable

from rich.box import ROUNDED
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from unstable.prompts import load_style
from unstable.tracking.device import DeviceProbe
from unstable.tracking.metrics import current_policy
from unstable.tracking.text import Text, bounds, duration, number, opponent_text, percent, sparkline
from unstable.tracking.view import View
from unstable.types import Rating

logger = logging.getLogger(__name__)

LEARNER_FIRST = (
    "collect/reward",
    "learn/loss",
    "learn/grad_norm",
    "learn/entropy",
    "learn/mismatch_kl",
    "learn/importance_capped",
    "learn/staleness_mean",
    "learn/truncated_share",
)
SEAT_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")
NARROW, SHORT = 50, 16  # below either there is no room for panes
TALL = 32
WIDE = 140


def start_dashboard(view: View, console: Console) -> Live | None:
    """The running display, or None where `tracking.dashboard` or the terminal says no."""
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


def screenshot(view: View, width: int = 120, height: int = 40) -> str:
    """The dashboard as it looks now, as an SVG."""
    console = Console(
        record=True, width=width, height=height, file=io.StringIO(), force_terminal=True
    )
    console.print(Dashboard(view), height=height)
    return console.export_svg(title=view.name)


class Dashboard:
    """All panes, laid out by the terminal's size."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._probe = DeviceProbe()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, device = self.view, self._probe.read()
        collection = _pane("collection", lambda w, h: collection_pane(view, w, h))
        game = _pane("last game", lambda w, h: game_pane(view, w, h))
        ratings = _pane("ratings", lambda w, h: ratings_pane(view, w, h))
        learner = _pane("learner", lambda w, h: learner_pane(view, w, h))
        evaluations = _pane("evaluation", lambda w, h: evaluation_pane(view, w, h))
        machine = Layout(_pane("device", lambda w, h: device_pane(device, w, h)), size=6)
        width, height = options.max_width, options.height or console.height
        if width < NARROW or height < SHORT:
            lines = [*brief(view), *[""] * height][:height]
            yield Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))
            return
        body = Layout(ratio=1)
        if width >= WIDE:
            body.split_row(
                _column(Layout(collection, size=15), Layout(game)),
                _column(Layout(learner, size=15), Layout(evaluations)),
                _column(Layout(ratings), machine),
            )
        elif height >= TALL:
            body.split_row(
                _column(Layout(collection, size=14), Layout(game)),
                _column(Layout(ratings), Layout(learner, size=10), Layout(evaluations), machine),
            )
        else:
            body.split_row(
                _column(Layout(collection, size=11), Layout(game)),
                _column(Layout(ratings), Layout(learner), Layout(evaluations)),
            )
        page = Layout()
        last = _last_line(view, None if width >= WIDE or height >= TALL else device)
        page.split_column(
            Layout(head(view), size=1),
            body,
            Layout(foot(view, width), size=2),
            *([Layout(last, size=1)] if last else []),
        )
        yield page


class _Fit:
    """A renderable that is drawn for the width and height at hand."""

    def __init__(self, draw: Callable[[int, int], RenderableType]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        try:
            yield self._draw(options.max_width, options.height or console.height)
        except Exception as error:  # a sink: what it cannot show must not freeze what it can
            _report(self._draw, error)
            yield Text("cannot be shown; see logs/loop.log", style="dim")


_reported: set[str] = set()


def _report(draw: Callable[[int, int], RenderableType], error: Exception) -> None:
    """Logs a pane's error, once for each kind."""
    kind = f"{draw.__qualname__} {error!r}"
    if kind not in _reported:
        _reported.add(kind)
        logger.error("a pane of the dashboard cannot be drawn", exc_info=error)


def _pane(title: str, draw: Callable[[int, int], RenderableType]) -> Panel:
    return Panel(_Fit(draw), title=title, title_align="left", border_style="dim", box=ROUNDED)


def _column(*layouts: Layout) -> Layout:
    column = Layout()
    column.split_column(*layouts)
    return column


def _grid(*justify: str) -> Table:
    """A table without lines whose first column gives way when it is narrow."""
    table = Table(box=None, pad_edge=False, expand=True, show_header=False, padding=(0, 1, 0, 0))
    for index, side in enumerate(justify):
        table.add_column(
            justify=side,  # type: ignore[arg-type]
            no_wrap=True,
            overflow="ellipsis",
            ratio=None if index else 1,
        )
    return table


def _cells(*cells: str, style: str = "") -> list[Text]:
    """Cells whose brackets are no markup."""
    return [Text(cell, style=style) for cell in cells]


def head(view: View) -> RenderableType:
    """Name, model, games and machine."""
    config = view.config
    games = ", ".join(game.key for game in config.games)
    parts = [games, config.model.name, config.loop.mode, view.device, view.name]
    table = _grid("left", "right")
    table.add_row(
        Text.assemble(
            (" unstable ", "bold reverse"), "  " + " · ".join(part for part in parts if part)
        ),
        Text(duration(time.monotonic() - view.started)),
    )
    return table


def brief(view: View) -> list[str]:
    """The run in a few short lines, for a terminal that has no room for panes."""
    left, phase = view.seconds_left(time.monotonic()), view.phase
    done = f" {number(phase.done)}/{number(phase.total)}" if phase.total else ""
    lines = [
        f"update {min(view.version + 1, view.config.loop.steps)} of {view.config.loop.steps}",
        f"{phase.name}{done}",
        f"{duration(left)} left" if left is not None else "first update",
        f"{view.games:,} games" + (f", {view.failures} failed" if view.failures else ""),
        *(f"{opponent_text(score)} {score.score:.2f}" for score in view.scores[:3]),
    ]
    return [*lines, *filter(None, (view.alarm or view.notice,))]


def foot(view: View, width: int) -> RenderableType:
    """Progress of the run and of its phase."""
    steps, phase = view.config.loop.steps, view.phase
    left = view.seconds_left(time.monotonic())
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(width=min(28, width // 3), no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(
        Text(f" update {min(view.version + 1, steps)} of {steps}"),
        ProgressBar(total=max(steps, 1), completed=view.version),
        Text(f"{duration(left)} left " if left is not None else "first update "),
    )
    count = f"{number(phase.done)}/{number(phase.total)} " if phase.total else ""
    table.add_row(
        Text(f" {phase.name}"),
        ProgressBar(total=phase.total or 1, completed=phase.done if phase.total else 0),
        Text(count or f"{duration(time.monotonic() - phase.started)} "),
    )
    return table


def _last_line(view: View, device: dict[str, float] | None) -> Text | None:
    """What a person has to know, alarms first, else the machine if it has no pane."""
    if view.alarm:
        return Text(f" {view.alarm}", style="bold red", no_wrap=True, overflow="ellipsis")
    if view.notice:
        return Text(f" {view.notice}", style="yellow", no_wrap=True, overflow="ellipsis")
    return device_line(device) if device is not None else None


def device_line(device: dict[str, float]) -> Text:
    """The machine in one line."""
    busy = [
        f"{name[7:-8]} {value:.0f} %"
        for name, value in device.items()
        if name.endswith("_percent") and not name.endswith("memory_percent")
    ]
    parts = [*busy, f"memory {number(device['device/process_memory_gb'])} GB"]
    return Text(" " + " · ".join(parts), style="dim")


def device_pane(device: dict[str, float], width: int, height: int) -> RenderableType:
    """How full processor, memory and GPUs are, as bars."""
    names = {
        "device/cpu_percent": "processor",
        "device/memory_percent": f"memory (ours {number(device['device/process_memory_gb'])} GB)",
    }
    table = _grid("left", "left", "right")
    table.columns[1].ratio = 1
    for name, value in device.items():
        if name.endswith("_percent"):
            label = names.get(name, name[7:-8].replace("_", " "))
            bar = ProgressBar(total=100, completed=min(value, 100))
            table.add_row(Text(label), bar, Text(f"{value:.0f} %"))
    return table


def collection_pane(view: View, width: int, height: int) -> RenderableType:
    """How playing goes: speed, waste, and results by opponent."""
    engine, buffer = view.engine, view.buffer
    seconds = time.monotonic() - view.recent[0].finished if len(view.recent) > 1 else None
    rate = f" · {number(len(view.recent) / seconds)}/s" if seconds else ""
    tokens = number(engine.get("collect/engine/tokens_per_second"))
    cached = percent(engine.get("collect/engine/cached_share"))
    flying = number(engine.get("collect/engine/games_in_flight"))
    running = number(engine.get("collect/engine/running"))
    facts = _grid("left", "right")
    rows = {
        "games": f"{view.games:,}{rate}" + (f" · {view.failures} failed" if view.failures else ""),
        "tokens/s": f"{tokens} · {cached} cached",
        "in flight": f"{flying} games · {running} requests",
        "buffer": f"{number(buffer.get('buffer/size'))} samples",
        "legal moves": f"{percent(view.legal_moves())} · forfeits {percent(view.forfeits())}",
    }
    for name, value in rows.items():
        facts.add_row(Text(name, style="dim"), Text(value))
    facts.columns[0].ratio, facts.columns[1].ratio = None, 1
    results = _grid("left", "right", "right", "right", "right")
    results.add_row(
        *_cells(f"last {len(view.recent)}", "games", "won", "drawn", "lost", style="dim")
    )
    recent = view.results()
    # What is fixed is shown by name, and "others" are the sum of what is shown.
    kinds = [kind for kind in ("alone", "self", "past") if kind in recent]
    names = sorted(set(recent) - {*kinds, "others", "fixed"})
    for name in [*kinds, *names][: max(height - len(rows) - 1, 0)]:
        counts = recent[name]
        total = counts["win"] + counts["draw"] + counts["loss"]
        shares = (counts[standing] / total for standing in ("win", "draw", "loss"))
        results.add_row(*_cells(name, f"{counts['games']}", *map(percent, shares)))
    return Group(facts, results)


def game_pane(view: View, width: int, height: int) -> RenderableType:
    """The last training game: who played, every move, and the board before the last one."""
    result = view.last_game
    if result is None:
        return Text("none yet", style="dim")
    text = Text(overflow="ellipsis")
    for seat, spec in enumerate(result.spec.seats):
        style = SEAT_STYLES[seat % len(SEAT_STYLES)]
        text.append(" against " if seat else "").append(spec.player.name, style=style)
        text.append(f" ({result.outcomes[seat]:+g})", style="dim")
    text.append("\n")
    for turn in result.turns:
        style = SEAT_STYLES[turn.seat % len(SEAT_STYLES)]
        action = " ".join(turn.action.split())
        text.append(action[:width], style=f"{style} strike" if turn.invalid else style).append(" ")
    if result.forfeit is not None:
        text.append(f"forfeit by seat {result.forfeit}", style="red")
    lines = list(text.wrap(Console(width=width), width))
    request = load_style(view.config.game_by_key[result.spec.env].prompt).request
    seen = result.turns[-1].observation if result.turns else ""
    board = seen.removesuffix(request).rstrip().splitlines()
    room = height - len(lines)
    tail = [Text(line, no_wrap=True, overflow="ellipsis") for line in board[-room:] if room > 0]
    return Group(*lines, *tail)


def ratings_pane(view: View, width: int, height: int) -> RenderableType:
    """Players by strength; freq is the share of recent games that had them as the opponent."""
    wide = width >= 46
    header = ["player", "mu", "±", *(["games", "won", "lost"] if wide else []), "freq"]
    table = _grid("left", *(["right"] * (len(header) - 1)))
    table.add_row(*_cells(*header, style="dim"))
    frequencies, current = view.frequencies(), current_policy(view.ratings)

    def precedence(rating: Rating) -> tuple[bool, bool, float]:
        is_past = rating.player.version is not None
        return rating.player != current, is_past, -rating.mu

    shown = sorted(view.ratings, key=precedence)[: max(height - 1, 0)]
    for rating in sorted(shown, key=lambda rating: -rating.mu):
        games = [f"{rating.games:,}", f"{rating.wins:,}", f"{rating.losses:,}"] if wide else []
        numbers = [f"{rating.mu:.1f}", f"{rating.sigma:.1f}", *games]
        style = "bold cyan" if rating.player == current else ""
        frequency = percent(frequencies.get(rating.player, 0.0))
        table.add_row(*_cells(rating.player.name, *numbers, frequency, style=style))
    return table


def learner_pane(view: View, width: int, height: int) -> RenderableType:
    """The learner's last numbers and how they came about."""
    last = view.rows[-1] if view.rows else {}
    rest = sorted(name for name in last if name.startswith("learn/"))
    names = dict.fromkeys([*(name for name in LEARNER_FIRST if name in last), *rest])
    table = _grid("left", "right", "left")
    for name in list(names)[:height]:
        series = view.series(name)
        known = [value for value in series if value is not None]
        curve = sparkline(series, max(width - 30, 6))
        label = name.removeprefix("learn/").removeprefix("collect/")
        value = number(known[-1] if known else None)
        table.add_row(Text(label), Text(value), Text(curve, style="cyan"))
    return table if names else Text("no update yet", style="dim")


def evaluation_pane(view: View, width: int, height: int) -> RenderableType:
    """The newest evaluations: score with its interval, legal moves."""
    if not view.scores and not view.exploitability:
        return Text("none yet", style="dim")
    several = len(view.config.games) > 1
    wide = width >= 46
    header = ["against", "version", "score", "95 %", *(["legal"] if wide else [])]
    table = _grid("left", *(["right"] * (len(header) - 1)))
    table.add_row(*_cells(*header, style="dim"))
    for found in view.exploitability.values():
        cells = [f"exploit. {found.env}", str(found.version), bounds(found), ""]
        table.add_row(*_cells(*cells, *([percent(1 - found.residual)] if wide else [])))
    for score in view.scores[: max(height - 1 - len(view.exploitability), 0)]:
        opponent = opponent_text(score)
        name = f"{opponent} ({score.env})" if several else opponent
        interval = f"{score.low:.2f}–{score.high:.2f}"
        cells = [name, str(score.version), f"{score.score:.2f}", interval]
        table.add_row(*_cells(*cells, *([percent(score.legal_moves)] if wide else [])))
    return table
