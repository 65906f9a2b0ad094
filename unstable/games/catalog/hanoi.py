"""Shortest solution of the Tower of Hanoi, which is unique (Hinz 1989, Enseign. Math. 35)."""

from typing import Any, NamedTuple

from unstable.games.info import Compact, Expert, GameInfo, always, with_turns_left


class _Step(NamedTuple):
    disk: int
    source: str
    target: str


def moves(env: Any) -> dict[str, float]:
    """Return the next move of the shortest solution, which has all disks on tower C."""
    step = _next(env.state.game_state["towers"])
    return {f"[{step.source} {step.target}]": 1.0}


def reason(env: Any, action: str) -> str:
    """Return a sentence on the moved disk, and whether the shortest solution moves it."""
    towers = env.state.game_state["towers"]
    source, target = action.strip("[]").split()
    best = _next(towers)
    if (source, target) == (best.source, best.target):
        why = "is the next move of the shortest solution"
    else:
        why = "is not on the shortest way"
    return f"Moving disk {towers[source][-1]} from {source} to {target} {why}."


def _next(towers: dict[str, list[int]]) -> _Step:
    """Return the next step: a misplaced disk needs all smaller disks on the third tower first."""
    place = {disk: name for name, disks in towers.items() for disk in disks}
    target, steps = "C", []
    for disk in sorted(place, reverse=True):
        if place[disk] != target:
            steps.append(_Step(disk, place[disk], target))
            (target,) = set("ABC") - {place[disk], target}
    return steps[-1]


def legal_moves(env: Any) -> list[str]:
    """Return the moves of a top disk onto a larger one or an empty tower."""
    tops = {name: min(disks, default=0) for name, disks in env.state.game_state["towers"].items()}
    return [
        f"[{source} {target}]"
        for source, disk in tops.items()
        for target, below in tops.items()
        if disk and (disk < below or not below)
    ]


def position(env: Any) -> str:
    """Return each tower's disks from the bottom up, such as A 3 2, B, C 1."""
    towers = env.state.game_state["towers"].items()
    return ", ".join(" ".join([name, *map(str, disks)]) for name, disks in towers)


INFO = GameInfo(
    env="TowerOfHanoiEnv",
    name="TowerOfHanoi",
    legal_moves=legal_moves,
    board_shows_all=always,
    perfect_information=always,
    expert=Expert(moves, reason),
    compact=Compact(
        "Tower of Hanoi: move all disks to tower C, one at a time, never onto a smaller one. A "
        "line is each tower with its disks from the bottom up. Answer with the tower to take a "
        "disk from and the one to put it on, such as A C, nothing else.",
        position,
    ),
    state=with_turns_left(position),
)
