"""What reward terms said of recorded games when they were asked again, as `unstable judge` has it.

`judged/NAME.jsonl` of a run: the terms first, then a line a game, with its branches.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from unstable.config import JudgeConfig, RewardConfig
from unstable.records.reading import Skipped, read_records
from unstable.records.shapes import JUDGED, Record
from unstable.types import Reward, Trajectory

Judgements = dict[tuple[int, int | None, int], dict[str, Reward]]
"""By game, turn (None: the whole trajectory) and seat: each term's reward."""


def terms_record(terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]) -> Record:
    """Which terms a file is of, each with the judge that it names."""
    found = []
    for term in terms:
        judge = {"judge": judges[term.term].model_dump(mode="json")} if term.term in judges else {}
        found.append({**term.model_dump(mode="json"), **judge})
    return {"terms": found}


def judged_record(game: int, trajectories: Iterable[Trajectory]) -> Record:
    """What the terms say of a game, and of its branches."""
    judged: list[dict[str, Any]] = []
    for each in trajectories:
        place = {"game": each.game_id, "seat": each.seat}
        judged.append({**place, "turn": None, "rewards": _plain(each.rewards)})
        judged += [
            {**place, "turn": sample.turn, "rewards": _plain(sample.rewards)}
            for sample in each.samples
        ]
    return {"game": game, "judged": [each for each in judged if each["rewards"]]}


def _plain(rewards: dict[str, Reward]) -> dict[str, dict[str, float]]:
    return {term: {"raw": raw, "weighted": weighted} for term, (raw, weighted) in rewards.items()}


def read_terms(path: Path) -> list[Record] | None:
    """The terms that a file is of; None where it is not there or does not say it."""
    first = next(iter(read_records(path, JUDGED, Skipped())), None)
    return None if first is None else first.get("terms")


def judged_games(path: Path) -> set[int]:
    """The games that a file has, each with its branches."""
    return {row["game"] for row in read_records(path, JUDGED, Skipped()) if "game" in row}


def read_judged(path: Path, skipped: Skipped | None = None) -> Judgements:
    """All that a file says; damaged lines are left out and counted."""
    found: Judgements = {}
    for row in read_records(path, JUDGED, Skipped() if skipped is None else skipped):
        for each in row.get("judged", ()):
            rewards = {term: Reward(**reward) for term, reward in each["rewards"].items()}
            found[each["game"], each["turn"], each["seat"]] = rewards
    return found


def read_scores(path: Path, term: str, skipped: Skipped) -> dict[tuple[int, int], float]:
    """A term's values before its weight, by game and seat: the mean over what was judged of it."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (game, _, seat), rewards in read_judged(path, skipped).items():
        if term in rewards:
            found[game, seat].append(rewards[term].raw)
    return {judged: fmean(values) for judged, values in found.items()}
