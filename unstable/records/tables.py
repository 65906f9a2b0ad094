"""Tables of a run's results, identical in the terminal, in a report and on a model card."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from unstable.records import text
from unstable.records.reading import Measured
from unstable.records.summary import RESULTS, RunSummary
from unstable.records.text import NONE, bounds, difference, fixed, number, percent
from unstable.types import PlayerId
from unstable.types.metrics import SUMS, EvalKey, ExploitKey, WorstKey

TOP_RATINGS = 10
_PAID = ("payoff", "payoff_gain")
MOST_VERSIONS = 10
"""Maximum number of versions to list per rule."""


class Table(NamedTuple):
    """Table whose cells are text, row by row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: Sequence[bool] = ()  # rows to highlight in the report

    def only(self, *columns: str) -> "Table":
        """Return the table with these columns only; it may lack some of them."""
        at = [self.columns.index(name) for name in columns if name in self.columns]
        rows = [[row[place] for place in at] for row in self.rows]
        return self._replace(columns=[self.columns[place] for place in at], rows=rows)


def merged(tables: Mapping[str, Table]) -> Table:
    """Return several runs' tables of one kind as one table, with the run's name in each row."""
    first, *_ = tables.values()
    columns = list(dict.fromkeys(name for each in tables.values() for name in each.columns))
    rows = []
    for run, each in tables.items():
        for row in each.rows:
            cells = dict(zip(each.columns, row, strict=True))
            rows.append([run, *(cells.get(name, NONE) for name in columns)])
    return first._replace(columns=["run", *columns], rows=rows)


def facts(summary: RunSummary) -> list[tuple[str, str]]:
    """Return the size and duration of a run as pairs of label and text."""
    names = ("games", "trained_turns", "forfeits", "failures")
    labels = ("training games", "trained turns", "forfeits", "failed")
    counts = (f"{summary.totals[f'collect/{name}']:,.0f}" for name in names)
    time = text.duration(summary.totals["time/total"])
    return [
        ("version", f"{summary.version:,}"),
        *zip(labels, counts, strict=True),
        ("time", time),
    ]


def newest_score(summary: RunSummary) -> str:
    """Return the newest evaluation, against the first opponent on a tie; "" without any."""
    scores = [
        (last.version, f"{fixed(last.figures['score'])} against {against(last)}")
        for *_, last in summary.evaluations.values()
    ]
    scores += [
        (last.version, f"exploitability {number(last.figures['high'])}")
        for *_, last in summary.exploitability.values()
    ]
    return max(scores, key=lambda each: each[0], default=(0, ""))[1]


def against(found: Measured[EvalKey]) -> str:
    """Return the opponent, and how the version answered unless it sampled at temperature 1."""
    return text.against(found.key.opponent, found.key.mode)


def results(summary: RunSummary) -> Table:
    """Return the policy's training games by opponent; rows add up if games have two sides."""
    rows = []
    for key in summary.opponents:
        games, *counts = (summary.totals[key.name(name)] for name in ("games", *RESULTS))
        if games and key.opponent not in SUMS:
            shares = (percent(count / games) for count in counts)
            rows.append([key.opponent, f"{games:,.0f}", *shares])
    return Table("Training games, per trained seat or team", ["against", "games", *RESULTS], rows)


def evaluations(summary: RunSummary, found: Sequence[Measured[EvalKey]] | None = None) -> Table:
    """Return the first and last evaluation against each opponent; `found` replaces the last."""
    shown = summary.latest if found is None else found
    pays = any(each.figures.get("payoff") is not None for each in shown)
    rows = []
    for each in shown:
        key, figures = each.key, each.figures
        first = summary.evaluations[key][0].figures
        ended = (number(figures.get(name)) for name in ("wins", "draws", "losses"))
        row = [key.env, against(each), _interval(first), f"{each.version}", _interval(figures)]
        row += [difference(figures, name) for name in ("gain", *(_PAID if pays else ()))]
        row += [" / ".join(ended), number(figures.get("forfeits")), _games(figures)]
        rows.append([*row, percent(figures.get("legal_moves"))])
    columns = ["env", "against", "first", "version", "score", "gain"]
    columns += ["payoff", "payoff gain"] if pays else []
    columns += ["won / drawn / lost", "forfeits", "games", "legal moves"]
    caption = (
        "Score: wins plus half the draws, per game. Gain: difference of the score to version 0 in "
        "the same games. Parentheses: 95 % confidence interval. Moves are sampled at temperature 1 "
        "unless the opponent's name states otherwise."
    )
    caption += " Payoff: mean per game, in the game's unit." if pays else ""
    return Table("Evaluations", columns, rows, caption)


def _interval(figures: Mapping[str, Any]) -> str:
    return text.interval(figures["score"], figures.get("low"), figures.get("high"))


def _games(figures: Mapping[str, Any]) -> str:
    games = figures.get("games")
    distinct = figures.get("distinct", games)
    return number(games) + (f" ({number(distinct)} distinct)" if distinct != games else "")


def exploitability(summary: RunSummary) -> Table:
    """Return the first and last measurement in each game, and the least won from the run's past."""
    rows, past = [], []
    for first, *_, last in ((found[0], *found) for found in summary.exploitability.values()):
        shares = percent(last.figures.get("illegal_mass")), number(last.figures.get("decisions"))
        known = fixed(last.figures.get("information"))
        rows.append([last.key.env, *map(ends, (first, last)), f"{last.version}", known, *shares])
        past.append(least_won(last))
    columns = ["env", "first", "last", "version", "information", "illegal", "decisions"]
    if any(won != NONE for won, *_ in past):
        columns += ["least payoff", "against version", "of versions"]
        rows = [[*row, *won] for row, won in zip(rows, past, strict=True)]
    return Table(
        "Exploitability (NashConv / 2) in the game's payoff unit; 0 is an equilibrium",
        columns,
        rows,
        "The two bounds come from the two ways to count illegal answers. Information is what moves "
        "tell about observations, in nats: 0 if play ignores them. The least payoff is the lowest "
        "mean payoff per game against any version measured before.",
    )


def ends(found: Measured[ExploitKey]) -> str:
    """Return the bounds of an exploitability as text."""
    return bounds(found.figures["low"], found.figures.get("high", found.figures["low"]), "–")


def least_won(found: Measured[ExploitKey]) -> tuple[str, str, str]:
    """Format the least payoff against earlier versions, its opponent, and their number."""
    low, high, *counts = (
        found.figures.get(f"past_{name}") for name in ("low", "high", "member", "compared")
    )
    member, compared = map(number, counts)
    return (NONE if low is None or high is None else bounds(low, high, "–")), member, compared


def guard(summary: RunSummary) -> Table:
    """Return the alarms by rule, and the actions they led to."""
    rows = []
    for name in sorted(summary.guard, key=lambda name: name.startswith("guard/action/")):
        at, (_, kind, rule) = summary.guard[name], name.split("/", 2)
        first = ", ".join(f"{version}" for version, _ in at[:MOST_VERSIONS])
        more = f" and {len(at) - MOST_VERSIONS} more" if len(at) > MOST_VERSIONS else ""
        rows.append([f"{kind}: {rule}", first + more, number(at[-1][1]) if kind == "alarm" else ""])
    caption = "Rules and actions: docs/guard.md." if rows else "No alarms."
    return Table("Guard", ["rule or action", "versions", "last value"], rows, caption)


def ratings(summary: RunSummary) -> Table:
    """Return the strongest players."""
    rows = [
        [
            *(rating.player.name, fixed(rating.mu, 1), fixed(rating.sigma, 1)),
            *(f"{rating.games:,}", f"{rating.wins:,}", f"{rating.draws:,}"),
            *(f"{rating.losses:,}", f"{rating.forfeits:,}"),
        ]
        for rating in sorted(summary.ratings, key=lambda rating: -rating.mu)[:TOP_RATINGS]
    ]
    columns = ["player", "mu", "sigma", "games", "won", "drawn", "lost", "forfeits"]
    return Table("Ratings", columns, rows)


def worst(summary: RunSummary) -> Table:
    """Return the newest versions' least score against any earlier version, as last measured."""
    rows = [
        [
            *(found.key.policy, _interval(found.figures), worst_opponent(found)),
            *(number(found.figures.get(name)) for name in ("games", "compared", "left_out")),
        ]
        for found in summary.worst.values()
    ]
    return Table(
        "Lowest score against past versions",
        ["policy", "lowest score", "against", "games", "past versions", "with too few games"],
        rows,
        "Pooled over the newest tenth of the versions, against each earlier version. The 95 % "
        "confidence interval is for the lowest true score; the observed score is biased low.",
    )


def worst_opponent(found: Measured[WorstKey]) -> str:
    """Return the version against which the score was least."""
    version = found.figures.get("against")
    return NONE if version is None else PlayerId.policy(round(version), found.key.policy).name
