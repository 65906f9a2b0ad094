"""Results of a league's members by generation, as a table and as JSON."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from unstable.config import load
from unstable.records.reading import read_rows
from unstable.records.tables import Table
from unstable.records.text import NONE, fixed, interval, percent
from unstable.studies.league.members import League, Results, began_anew, results
from unstable.studies.league.population import MemberTurn
from unstable.studies.several import state_of
from unstable.types.metrics import ExploitKey
from unstable.types.tallies import Least, Tally, added, least_score


class TurnSummary(NamedTuple):
    """Results of a member in a generation."""

    turn: MemberTurn
    state: str  # waiting, running, done, failed
    is_anew: bool  # trained from the start
    weights: dict[str, float]  # of the frozen versions met
    against: dict[str, Tally]  # by member, against its newest version met
    own_past: Tally  # against its own frozen versions
    least: Least | None  # against any frozen version
    exploitability: dict[str, float]  # by game
    games: float
    folder: str
    line: str  # last printed line, if it failed


def summaries(league: League) -> list[TurnSummary]:
    """Return the summaries of all turns, in order."""
    failures = league.folder.failures()
    return [_summary(league, turn, failures.get(turn.name, "")) for turn in league.turns]


def _summary(league: League, turn: MemberTurn, line: str) -> TurnSummary:
    run, versions = league.folder.run(turn.name), league.met(turn)
    known = results(run) if run.config.is_file() else Results({}, {})
    fixed_opponents = load(str(run.config)).opponents.fixed if run.config.is_file() else []
    rows = read_rows(run.metrics)
    own = [each.name for each in versions if each.member == turn.member]
    return TurnSummary(
        turn=turn,
        state="failed" if line else state_of(run, league.config.updates),
        is_anew=began_anew(run),
        weights={each.key: each.weight for each in fixed_opponents},
        against={each.member: known.of(each.name) for each in versions},  # the newest comes last
        own_past=added(known.games.get(name, Tally()) for name in own),
        least=least_score({v.name: known.games.get(v.name, Tally()) for v in versions}),
        exploitability={
            key[0].env: value
            for row in rows
            for name, value in row.items()
            if value is not None and (key := ExploitKey.parse(name)) and key[1] == "high"
        },
        games=sum(row.get("collect/games") or 0 for row in rows),
        folder=str(run.root),
        line=line,
    )


def summary_table(found: Sequence[TurnSummary], members: Sequence[str]) -> Table:
    """Return a table with one row per summary."""
    envs = list(dict.fromkeys(env for each in found for env in each.exploitability))
    solved = [f"exploitability {env}" if len(envs) > 1 else "exploitability" for env in envs]
    against = [f"against {name}" for name in members]
    return Table(
        "Scores with 95 % intervals, against each member's newest version at the time",
        ["member", "generation", *against, *solved, "own past", "lowest", "state"],
        [_cells(each, envs, members) for each in found],
    )


def _cells(each: TurnSummary, envs: Sequence[str], members: Sequence[str]) -> list[str]:
    least = NONE
    if each.least is not None:
        least = f"{interval(*each.least.score, percent)} {each.least.opponent}"
    return [
        each.turn.member,
        f"{each.turn.generation}" + ", restarted" * (each.is_anew and each.turn.generation > 1),
        *(_score(each.against.get(name, Tally())) for name in members),
        *(fixed(each.exploitability.get(env), 3) for env in envs),
        _score(each.own_past),
        least,
        each.state,
    ]


def _score(tally: Tally) -> str:
    return interval(*tally.score(), percent) if tally.games else NONE


def as_records(found: Sequence[TurnSummary]) -> list[dict[str, Any]]:
    """Return all figures as plain values, for JSON."""

    def plain(tally: Tally) -> dict[str, Any]:
        score = tally.score()._asdict() if tally.games else None
        return {**tally._asdict(), "score": score}

    rows = []
    for each in found:
        fields, least = each._asdict(), each.least
        turn, is_anew = fields.pop("turn"), fields.pop("is_anew")
        own: dict[str, Any] = {
            "against": {name: plain(tally) for name, tally in each.against.items()},
            "own_past": plain(each.own_past),
            "least": least and {**least._asdict(), "score": least.score._asdict()},
        }
        rows.append({**turn._asdict(), "state": each.state, "anew": is_anew, **fields, **own})
    return rows
