"""Judged rewards: results of reward terms on recorded games, written by `unstable judge`.

`judged/NAME.jsonl` of a run has the terms first, then one line per game with its branches.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from unstable.config import JudgeConfig, RewardConfig
from unstable.records.reading import Skipped, read_records
from unstable.records.shapes import JudgedLine, JudgedRecord
from unstable.types import Reward, Trajectory

Judgements = dict[tuple[int, int | None, int], dict[str, Reward]]
"""Rewards of each term, by game, turn (None: the whole trajectory) and seat."""


def terms_record(terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]) -> JudgedLine:
    """Return the first line of a file: its terms, each with the judge that it names."""
    found = []
    for term in terms:
        judge = {"judge": judges[term.term].model_dump(mode="json")} if term.term in judges else {}
        found.append({**term.model_dump(mode="json"), **judge})
    return JudgedLine(terms=found)


def judged_record(game: int, trajectories: Iterable[Trajectory]) -> JudgedLine:
    """Return the rewards of a game and of its branches as a line."""
    judged = [
        JudgedRecord(game=each.game_id, seat=each.seat, turn=turn, rewards=rewards)
        for each in trajectories
        for turn, rewards in [(None, each.rewards), *((s.turn, s.rewards) for s in each.samples)]
    ]
    return JudgedLine(game=game, judged=[each for each in judged if each.rewards])


def read_terms(path: Path) -> list[dict[str, Any]] | None:
    """Return the terms of a file; None if it is missing or has none."""
    first = next(iter(read_records(path, JudgedLine, Skipped())), None)
    return None if first is None else first.terms


def judged_games(path: Path) -> set[int]:
    """Return the ids of the games in a file; each is there with its branches."""
    return {row.game for row in read_records(path, JudgedLine, Skipped()) if row.game is not None}


def read_judged(path: Path, skipped: Skipped | None = None) -> Judgements:
    """Return all rewards in a file; damaged lines are left out and counted."""
    rows = read_records(path, JudgedLine, Skipped() if skipped is None else skipped)
    found = (each for row in rows for each in row.judged or ())
    return {(each.game, each.turn, each.seat): each.rewards for each in found}


def read_scores(path: Path, term: str, skipped: Skipped) -> dict[tuple[int, int], float]:
    """Return a term's raw values by game and seat: the mean over trajectory and judged turns."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (game, _, seat), rewards in read_judged(path, skipped).items():
        if term in rewards:
            found[game, seat].append(rewards[term].raw)
    return {judged: fmean(values) for judged, values in found.items()}
