"""Panes of the dashboard: each draws a part of a `RunView` for a given width and height."""

from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from unstable.config import AnyAdapter, RunConfig
from unstable.records.reading import Measured
from unstable.records.tables import against, ends, least_won, worst_opponent
from unstable.records.text import NONE, bounds, duration, fixed, number, percent
from unstable.tracking.metrics import current_policy
from unstable.tracking.text import Text, sparkline
from unstable.tracking.view import RunView
from unstable.types import Rating
from unstable.types.metrics import SUMS, EvalKey, WorstKey, unit

LEARNER_FIRST = (
    "sft/held_out_loss",
    "collect/reward",
    "learn/loss",
    "learn/grad_norm",
    "learn/entropy",
    "learn/information/",
    "learn/mismatch_kl",
    "learn/importance_capped",
    "learn/staleness_mean",
    "learn/truncated_share",
)
SEAT_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")


def grid(*justify: str, wide: int = 0) -> Table:
    """Return a table without lines whose column `wide` takes the room that the others leave."""
    table = Table(box=None, pad_edge=False, expand=True, show_header=False, padding=(0, 1, 0, 0))
    for index, side in enumerate(justify):
        table.add_column(
            justify=side,  # type: ignore[arg-type]
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if index == wide else None,
        )
    return table


def _cells(*cells: str, style: str = "") -> list[Text]:
    """Return cells whose brackets are not parsed as markup."""
    return [Text(cell, style=style) for cell in cells]


def _to_come(facts: Mapping[str, str]) -> Table:
    """Return a pane that announces what it will show, by name."""
    table = grid("left", "left", wide=1)
    for name, value in facts.items():
        table.add_row(*_cells(name, value, style="dim"))
    return table


def head(view: RunView) -> RenderableType:
    """Return a line with games, model, mode, machine and name of the run."""
    config = view.config
    games = ", ".join(game.key for game in config.games)
    parts = [games, config.model.name, config.loop.mode, view.device, view.name]
    table = grid("left", "right")
    table.add_row(
        Text.assemble(
            (" unstable ", "bold reverse"), "  " + " · ".join(part for part in parts if part)
        ),
        Text(duration(view.clock() - view.started)),
    )
    return table


def brief(view: RunView) -> list[str]:
    """Return the run in a few short lines, for a terminal without room for panes."""
    left, phase = view.seconds_left(view.clock()), view.phase
    done = f" {number(phase.done)}/{number(phase.total)}" if phase.total else ""
    lines = [
        f"update {min(view.version + 1, view.config.loop.steps)} of {view.config.loop.steps}",
        f"{phase.name}{done}",
        f"{duration(left)} left" if left is not None else "first update",
        f"{view.games:,} games" + (f", {view.failures} failed" if view.failures else ""),
        *(f"{against(each)} {fixed(each.figures['score'])}" for each in view.summary.newest[:3]),
    ]
    return [*lines, *filter(None, (view.alarm or view.notice,))]


def foot(view: RunView, width: int) -> RenderableType:
    """Return the progress of the run and of its phase."""
    steps, phase = view.config.loop.steps, view.phase
    left = view.seconds_left(view.clock())
    table = Table.grid(padding=(0, 1), expand=True)
    least, most = min(28, width // 3), width // 2
    table.add_column(width=min(max(least, len(phase.name) + 2), most), no_wrap=True)
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
        Text(count or f"{duration(view.clock() - phase.started)} "),
    )
    return table


def last_line(view: RunView, *, has_machine: bool) -> Text | None:
    """Return the line that a person must read, alarms first; else the machine's, or None."""
    if view.alarm:
        count = f"{view.alarms} alarms, last: " if view.alarms > 1 else ""
        line = f" {count}{view.alarm}"
        return Text(line, style="bold red", no_wrap=True, overflow="ellipsis")
    if view.notice:
        return Text(f" {view.notice}", style="yellow", no_wrap=True, overflow="ellipsis")
    return None if has_machine or not view.machine else machine_line(view)


def machine_line(view: RunView) -> Text:
    """Return the machine's utilization in one line."""
    busy = [f"{bar.name} {bar.percent:.0f} %" for bar in bars(view) if bar.name != "memory"]
    parts = [*busy, f"memory {number(view.machine['device/process_memory_gb'])} GB"]
    return Text(" " + " · ".join(parts), style="dim")


class Bar(NamedTuple):
    """Utilization of a part of the machine in percent, with a text on its memory."""

    name: str
    percent: float
    memory: str = ""


def bars(view: RunView) -> list[Bar]:
    """Return processor, memory and every GPU, by memory if a GPU's utilization is unknown."""
    row = view.machine
    found = [Bar("CPU", row["device/cpu_percent"])] if "device/cpu_percent" in row else []
    if "device/memory_percent" in row:
        own = f" · this run {number(row['device/process_memory_gb'])} GB"
        found.append(Bar("memory", row["device/memory_percent"], own))
    for name, full in row.items():
        gpu = name.removeprefix("device/").removesuffix("_memory_percent")
        if name == f"device/{gpu}_memory_percent":
            memory = f" · {number(row[f'device/{gpu}_memory_gb'])} GB, {full:.0f} %"
            busy = row.get(f"device/{gpu}_percent")
            found.append(Bar(gpu, full) if busy is None else Bar(gpu, busy, memory))
    return found


def machine_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return bars of processor, memory and GPUs, and one line per actor."""
    table = grid("left", "left", "right", wide=1)
    actors = sorted(view.actors.items())
    for bar in bars(view)[:height]:
        drawn = ProgressBar(total=100, completed=min(bar.percent, 100))
        table.add_row(Text(bar.name), drawn, Text(f"{bar.percent:.0f} %{bar.memory}"))
    facts = grid("left", "right", wide=1)
    room = max(height - len(bars(view)), 0)
    shown = actors if len(actors) <= room else actors[: max(room - 1, 0)]
    for index, row in shown:
        tokens = number(row.get("collect/engine/tokens_per_second"))
        games = number(row.get("collect/engine/games_in_flight"))
        running = number(row.get("collect/engine/running"))
        line = f"{tokens} tokens/s · {games} games · {running} requests"
        facts.add_row(Text(f"actor {index}"), Text(line))
    if len(shown) < len(actors) and room:
        facts.add_row(Text(f"{len(actors) - len(shown)} more actors", style="dim"), Text(""))
    return Group(table, facts)


def collection_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return figures of playing: speed, waste, and results by opponent."""
    engine, buffer = view.engine, view.buffer
    seconds = view.clock() - view.recent[0].finished if len(view.recent) > 1 else None
    rate = f" · {number(len(view.recent) / seconds)}/s" if seconds else ""
    tokens = number(engine.get("collect/engine/tokens_per_second"))
    cached = percent(engine.get("collect/engine/cached_share"))
    flying = number(engine.get("collect/engine/games_in_flight"))
    running = number(engine.get("collect/engine/running"))
    facts = grid("left", "right", wide=1)
    rows = {
        "games": f"{view.games:,}{rate}" + (f" · {view.failures} failed" if view.failures else ""),
        "tokens/s": f"{tokens} · {cached} cached",
        "in flight": f"{flying} games · {running} requests",
        "buffer": f"{number(buffer.get('buffer/size'))} samples",
        "legal moves": f"{percent(view.legal_moves())} · forfeits {percent(view.forfeits())}",
    }
    for name, value in rows.items():
        facts.add_row(Text(name, style="dim"), Text(value))
    results = grid("left", "right", "right", "right", "right")
    results.add_row(
        *_cells(f"last {len(view.recent)}", "games", "won", "drawn", "lost", style="dim")
    )
    recent = view.results()
    # Fixed opponents are listed by name; "others" is the sum of past and fixed ones.
    kinds = [kind for kind in ("alone", "self", "past") if kind in recent]
    names = sorted(set(recent) - {*kinds, *SUMS})
    for name in [*kinds, *names][: max(height - len(rows) - 1, 0)]:
        counts = recent[name]
        total = counts["win"] + counts["draw"] + counts["loss"]
        shares = (counts[standing] / total for standing in ("win", "draw", "loss"))
        results.add_row(*_cells(name, f"{counts['games']}", *map(percent, shares)))
    return Group(facts, results)


def game_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return the last training game: its players, every move, and the board before the last one."""
    game = view.newest_game()
    if game is None:
        games = {f"game {at}": each.key for at, each in enumerate(view.config.games, start=1)}
        return _to_come({"last game": "when a game ends", **games})
    text = Text(overflow="ellipsis")
    styles: dict[int, str] = {}  # by seat
    for place, (side, player, outcome) in enumerate(game.sides):
        style = SEAT_STYLES[place % len(SEAT_STYLES)]
        styles |= dict.fromkeys(side, style)
        text.append(" against " if place else "").append(player, style=style)
        text.append(f" ({outcome:+g})", style="dim")
    text.append("\n")
    for seat, action, invalid in game.moves:
        style = styles[seat]
        words = " ".join(action.split())[:width]
        text.append(words, style=f"{style} strike" if invalid else style).append(" ")
    if game.forfeit is not None:
        text.append(f"forfeit by seat {game.forfeit}", style="red")
    lines = list(text.wrap(Console(width=width), width))
    room = height - len(lines)
    board = game.board.splitlines()[-room:] if room > 0 else []
    return Group(*lines, *(Text(line, no_wrap=True, overflow="ellipsis") for line in board))


def ratings_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return players by strength; share is the share of recent games with them as the opponent."""
    if not view.summary.ratings:
        return _to_come({"ratings": "after the first games", **players_to_come(view.config)})
    wide = width >= 46
    header = ["player", "mu", "±", *(["games", "won", "lost"] if wide else []), "share"]
    table = grid("left", *(["right"] * (len(header) - 1)))
    table.add_row(*_cells(*header, style="dim"))
    shares, current = view.opponent_shares(), current_policy(view.summary.ratings)

    def precedence(rating: Rating) -> tuple[bool, bool, float]:
        is_past = rating.player.version is not None
        return rating.player != current, is_past, -rating.mu

    shown = sorted(view.summary.ratings, key=precedence)[: max(height - 1, 0)]
    for rating in sorted(shown, key=lambda rating: -rating.mu):
        games = [f"{rating.games:,}", f"{rating.wins:,}", f"{rating.losses:,}"] if wide else []
        numbers = [f"{rating.mu:.1f}", f"{rating.sigma:.1f}", *games]
        style = "bold cyan" if rating.player == current else ""
        share = percent(shares.get(rating.player, 0.0))
        table.add_row(*_cells(rating.player.name, *numbers, share, style=style))
    return table


def learner_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return the learner's last figures and their curves."""
    last = {name: value for row in view.summary.rows[-2:] for name, value in row.items()}
    rest = sorted(name for name in last if name.startswith("learn/"))
    first = [
        name
        for wanted in LEARNER_FIRST
        for name in last
        if name == wanted or (wanted.endswith("/") and name.startswith(wanted))
    ]
    names = dict.fromkeys([*first, *rest])
    table = grid("left", "right", "left")
    for name in list(names)[:height]:
        series = [row.get(name) for row in view.summary.rows]
        known = [value for value in series if value is not None]
        curve = sparkline(series, max(width - 30, 6))
        label = name.partition("/")[2]
        value = number(known[-1] if known else None)
        of = f" {unit(name)}" if width >= 46 and unit(name) else ""
        table.add_row(Text(label), Text(f"{value}{of}"), Text(curve, style="cyan"))
    return table if names else _to_come(learning_to_come(view.config))


def evaluation_pane(view: RunView, width: int, height: int) -> RenderableType:
    """Return exploitability, first to last, and the newest evaluations with their intervals."""
    summary, wide = view.summary, width >= 46
    solved = summary.exploitability.values()
    if not summary.evaluations and not solved and not summary.worst:
        return _to_come(evaluation_to_come(view.config))
    falls, scores = grid("left", *(["right"] * (2 + wide))), grid("left", *(["right"] * (3 + wide)))
    for first, *_, last in ((found[0], *found) for found in solved):
        fall = " → ".join(dict.fromkeys(map(ends, (first, last))))
        legal = [f"{percent(1 - last.figures['illegal_mass'])} legal"] if wide else []
        falls.add_row(*_cells(f"exploit. {last.key.env}", f"{last.version}", fall, *legal))
        won, member, _ = least_won(last)
        if won != NONE:
            cells = ["worst past payoff", f"@{member}", won]
            falls.add_row(*_cells(*cells, *([""] if wide else [])))
    for worst in summary.worst.values():
        cells = [f"worst vs. {worst_opponent(worst)}", *_score(worst)]
        falls.add_row(*_cells(*cells, *([""] if wide else [])))
    if not summary.evaluations:
        return falls
    several = len(view.config.games) > 1
    header = ["against", "version", "score", "95 %", *(["legal"] if wide else [])]
    scores.add_row(*_cells(*header, style="dim"))
    for each in summary.newest[: max(height - 1 - falls.row_count, 0)]:
        name = f"{against(each)} ({each.key.env})" if several else against(each)
        legal = [percent(each.figures["legal_moves"])] if wide else []
        scores.add_row(*_cells(name, f"{each.version}", *_score(each), *legal))
    return Group(falls, scores)


def _score(found: Measured[EvalKey] | Measured[WorstKey]) -> tuple[str, str]:
    """Return a score and its interval as text."""
    score, low, high = (found.figures[name] for name in ("score", "low", "high"))
    return fixed(score), bounds(low, high, between="–", digits=2)


Facts = dict[str, str]


def players_to_come(config: RunConfig) -> Facts:
    """Return the shares of draws by opponent."""
    draw = config.opponents.draw
    shares = {"itself": draw.self, "past versions": draw.past}
    found = {name: f"{number(share)} of draws" for name, share in shares.items() if share}
    for opponent in config.opponents.fixed:
        found[opponent.key] = f"shares {number(draw.fixed)} of draws" if draw.fixed else "–"
    return found


def learning_to_come(config: RunConfig) -> Facts:
    """Return the most important settings of learning."""
    learner = config.learner
    return {
        "first metrics": "after the first update",
        "algorithm": learner.algorithm.name,
        "turns per update": f"{learner.batch_size:,}",
        "learning rate": number(learner.learning_rate),
        **_trained(config.model.adapter),
    }


def _trained(adapter: AnyAdapter) -> Facts:
    return {"trained": "all weights"} if adapter == "none" else {"LoRA rank": f"{adapter.rank}"}


def evaluation_to_come(config: RunConfig) -> Facts:
    """Return the evaluations that the config requests."""
    found, given = {}, config.eval
    if given.every:
        found = {
            "evaluation": f"every {given.every} updates, from version 0",
            "games": f"{given.games:,} per opponent",
            "against": ", ".join(given.opponents),
        }
    if given.exploitability.every:
        found["exploitability"] = f"every {given.exploitability.every} updates"
    return found or {"evaluation": "off"}
