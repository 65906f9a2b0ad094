"""Events of a run as lines for people, and text for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.text
from rich.console import Console, OverflowMethod
from rich.table import Table

from unstable.config import escape_control
from unstable.records import tables
from unstable.records.text import TINY, against, bounds, duration, interval, number, percent, signed
from unstable.types import Alarm, EvalScore, Exploitability, Update
from unstable.types.metrics import VersusKey

BLOCKS = "▁▂▃▄▅▆▇█"


class Text(rich.text.Text):
    """Rich's text with control characters spelled out, so that no player can move the cursor."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(escape_control(text), *arguments, **options)

    def append(self, text: "str | rich.text.Text", style: Any = None) -> "Text":
        """Append text in a style; returns this object."""
        super().append(escape_control(text) if isinstance(text, str) else text, style)
        return self


def table(found: tables.Table, overflow: OverflowMethod = "ellipsis") -> Table:
    """Return a table without lines whose first column has words and whose others have numbers."""
    title = found.title or None
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(found.columns):
        made.add_column(
            column, justify="right" if index else "left", header_style="dim", overflow=overflow
        )
    for row in found.rows:
        made.add_row(*map(Text, row))
    return made


def wrapped(text: str, width: int) -> list[str]:
    """Return the text's lines, broken at spaces if they exceed `width` terminal cells.

    Control characters are spelled out; white space between words is kept.

    >>> wrapped("one two\\nthree", 5)
    ['one', 'two', 'three']
    """
    console = Console(width=width, color_system=None)
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, tab_size=4)]


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last `width` values as blocks, from the least to the greatest of them.

    Values that differ only by rounding have equal blocks; None is a space.

    >>> sparkline([0.0, None, 1.0, 0.5], width=4)
    '▁ █▄'
    """
    shown = values[-width:]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(
        " " if value is None else BLOCKS[int((value - low) / span * 7) if span > TINY else 3]
        for value in shown
    )


def update_line(row: Mapping[str, float | None], steps: int, left_s: float = 0.0) -> str:
    """Return an update as one line, for a terminal without a dashboard and for logs.

    `left_s` is the estimated number of seconds of the rest of the run, 0 at its end.
    """

    def count(name: str) -> int:
        return int(row[name] or 0)

    versus = VersusKey("others")
    others = count(versus.name("games"))
    games = f"{count('collect/games')} games"
    if others:
        won, drawn, lost = (
            round(others * (row[versus.name(share)] or 0)) for share in ("win", "draw", "loss")
        )
        games += f", {others} against others ({won} won, {drawn} drawn, {lost} lost)"
    parts = [f"update {count('version')}/{steps}"]
    if count("collect/games"):
        parts += [games, f"{count('collect/forfeits')} forfeits"]
    elif (epoch := row.get("offline/epoch")) is not None:
        parts.append(f"epoch {number(epoch)} of recorded games")
    else:
        parts.append("games from before the previous update")
    if count("collect/failures"):
        parts.append(f"{count('collect/failures')} failed")
    for label, name in (("reward", "collect/reward"), ("loss", "learn/loss")):
        if row.get(name) is not None:
            parts.append(f"{label} {number(row[name])}")
    parts.append(duration(row["time/total"] or 0.0))
    if left_s >= 1:
        parts.append(f"about {duration(left_s)} left")
    return " · ".join(parts)


def phase_line(name: str, done: float, total: float | None, seconds: float) -> str:
    """Return a phase as a line: its name, progress and duration.

    >>> phase_line("playing", 30, 128, 41.2), phase_line("loading the model", 0, None, 7)
    ('playing 30/128 · 41 s', 'loading the model · 7 s')
    """
    return f"{name}{f' {number(done)}/{number(total)}' if total else ''} · {duration(seconds)}"


def still_line(waits: Sequence[str], seconds: float) -> str:
    """Return the end of a line: what the run waits for, and for how long nothing has moved.

    >>> still_line(["learner: update"], 41.2), still_line([], 41.2)
    (' · waits for learner: update, 41 s', ' · no progress for 41 s')
    """
    shown = [*waits[:3], *([f"{len(waits) - 3} more"] if len(waits) > 3 else [])]
    if not shown:
        return f" · no progress for {duration(seconds)}"
    return f" · waits for {', '.join(shown)}, {duration(seconds)}"


def alarm_line(alarm: Alarm) -> str:
    """Return an alarm of the guard as a line."""
    side = "below" if alarm.figure < alarm.threshold else "above"
    return (
        f"guard at version {alarm.version} · {alarm.rule}: {alarm.name} {number(alarm.figure)} is "
        f"{side} {number(alarm.threshold)}, since version {alarm.since}"
    )


def action_line(actions: Sequence[str], best: int | None, shares: Mapping[str, float]) -> str:
    """Return the actions that alarms led to as a line."""
    mix = ", ".join(f"{kind} {number(share)}" for kind, share in shares.items())
    words = {
        "opponents": f"new opponent shares: {mix}",
        "rollback": f"rolled back to the weights of version {best}",
        "learning_rate": "learning rate lowered",
    }
    return "guard · " + " · ".join(words[action] for action in actions)


def refusal_line(update: Update) -> str:
    """Return a line on the skipped optimizer steps of an update, with reasons."""
    why = "; ".join(dict.fromkeys(update.refusals))
    count = len(update.refusals)
    steps = f"{count} optimizer steps" if count > 1 else "an optimizer step"
    return f"update {update.version}: skipped {steps}: {why}; the weights are unchanged"


def memory_line(version: int, halvings: int) -> str:
    """Return a line on an update that filled a GPU."""
    times = f"{halvings} times" if halvings > 1 else "once"
    return (
        f"update {version}: the learner's GPU ran out of memory, micro-batches halved {times}; "
        "lower learner.micro_batch_tokens or micro_batch_size"
    )


def score_line(score: EvalScore) -> str:
    """Return an evaluation against one opponent as one line."""
    return (
        f"evaluation of version {score.version} · {score.env} against "
        f"{against(score.opponent, score.key.mode)}: "
        f"{score_text(score)}{payoff_text(score)}{gain_text(score)}{needed_text(score)}"
    )


def score_text(score: EvalScore) -> str:
    """Return the score, its interval, and its components."""
    repeated = f" in {score.distinct} distinct games" if score.distinct < score.games else ""
    voted = ""
    if score.agreement is not None:
        voted = f" by majority of {score.votes} votes ({percent(score.agreement)} agree)"
    return (
        f"score {interval(score.score, score.low, score.high)}{voted} · {score.wins} won, "
        f"{score.draws} drawn, {score.losses} lost ({score.forfeits} by forfeit){repeated} · "
        f"{percent(score.legal_moves)} legal moves"
    )


def payoff_text(score: EvalScore) -> str:
    """Return the mean payoff of a game; "" if it only has wins and losses."""
    if score.payoff is None:
        return ""
    return f" · payoff {interval(score.payoff, score.payoff_low, score.payoff_high, signed)}"


def exploitability_line(found: Exploitability, of: str | None = None) -> str:
    """Return an exploitability as a line; `of` names a policy that is not a version."""
    prompts = f", {found.prompts:,} prompts" if found.prompts < found.decisions else ""
    sampled = f", {found.samples} samples each" if found.samples else ""
    figures, past = bounds(found.low, found.high), ""
    if (least := found.past) is not None:
        wins = bounds(least.low, least.high)
        rank = f"lowest of {least.compared}" if least.compared > 1 else "only one"
        past = f" · payoff {wins} against version {least.member}, the {rank} before it"
    return (
        f"exploitability of {of or f'version {found.version}'} · {found.env}: {figures} "
        f"(NashConv {bounds(2 * found.low, 2 * found.high)}) · "
        f"illegal mass {percent(found.illegal_mass)} · "
        f"{found.decisions:,} decisions{prompts}{sampled} in {duration(found.seconds)}{past}"
    )


def held_out_line(metrics: Mapping[str, float | None]) -> str:
    """Return the held-out loss of a version, and which version has the lowest."""
    best = metrics["offline/best"]
    lowest = "" if best is None else f" · the lowest is version {best:g}'s"
    return f"held-out loss {number(metrics['offline/held_out_loss'])}{lowest}"


def gain_text(score: EvalScore) -> str:
    """Return the difference to version 0 in equal games; "" if it is unknown."""
    if score.gain is None:
        return ""
    text = f" · {interval(score.gain, score.gain_low, score.gain_high, signed)} over version 0"
    if score.payoff_gain is None:
        return text
    ends = score.payoff_gain_low, score.payoff_gain_high
    return f"{text}, payoff {interval(score.payoff_gain, *ends, signed)}"


def needed_text(score: EvalScore) -> str:
    """Return the number of games that show a difference of 0.05; "" if more would not show more."""
    return "" if score.needed is None else f" · a difference of 0.05 needs {score.needed:,} games"
