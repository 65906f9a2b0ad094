"""Small games, batches and runs as input of a tracker."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console, RenderableType

from tests.helpers.builders import game, sampled, turn
from tests.helpers.records import lines as lines
from unstable.buffers.buffer import Buffer
from unstable.config import RewardConfig, RunConfig, parse
from unstable.loop.ended import Ended
from unstable.records.folder import RunFolder
from unstable.records.games import sample_lines
from unstable.rewards.terms import Rewards
from unstable.tracking.tracker import Tracker
from unstable.types import (
    Batch,
    EvalScore,
    Exploitability,
    GameFailure,
    GameResult,
    Group,
    PlayerId,
    Purpose,
    Rating,
    Trajectory,
    Turn,
    Update,
)

ENGINE = {
    **{"requests": 8.0, "prompt_tokens": 100.0, "cached_prompt_tokens": 75.0},
    **{"sampled_tokens": 40.0, "decode_steps": 10.0, "prefill_seconds": 0.5},
    **{"decode_seconds": 1.5, "running": 3.0, "waiting": 1.0, "games_in_flight": 4.0},
}


def make_config(**sections: Any) -> RunConfig:
    return parse({"tracking": {"dashboard": "off"}, "loop": {"steps": 3}, **sections})


def make_turn(seat: int, index: int, player: str, tokens: int) -> Turn:
    """A turn whose numbers all depend on its place."""
    version = PlayerId.parse(player).version
    ids = list(range(tokens))
    own: dict[str, Any] = {"token_ids": ids, "logprobs": [-0.1 / 3 * (k + 1) for k in ids]}
    own |= {"prompt_ids": [7, 8, 9][: index + 1], "prompt_cut": 5 if index == 2 else 0}
    said: dict[str, Any] = {
        "observation": f"The rules.\n\n[0] [1]\nboard {index}",
        "text": f"Zug [{index}] ✓" + "!" * index,
        "action": f"[{index}]",
        "sampled": None if version is None else sampled(version, adapter=player, **own),
    }
    return turn(seat, index, player, seconds=0.5, **said)


def make_game(
    game_id: int,
    players: tuple[str, ...] = ("main@1", "random"),
    trained: tuple[int, ...] = (0,),
    outcomes: tuple[float, ...] = (1.0, -1.0),
    turns: int = 3,
    forfeit: int | None = None,
    purpose: Purpose = "train",
) -> GameResult:
    ids = [10 * game_id + seat for seat in range(len(players))]
    seats: dict[str, Any] = {"trained": trained, "group_ids": ids, "purpose": purpose}
    made = game(players, outcomes, turns=0, game_id=game_id, **seats)
    played = [
        make_turn(index % len(players), index, players[index % len(players)], tokens=2 + index)
        for index in range(turns)
    ]
    if forfeit is not None:
        answer = replace(played[-1].answer, formatted=False)
        played[-1] = replace(played[-1], answer=answer, invalid=True)
    said = {"reason": "three in a row", "seconds": 2.0}
    spec = replace(made.spec, seed=4)
    return replace(made, spec=spec, turns=played, forfeit=forfeit, **said)


TERMS = [RewardConfig(term="outcome"), RewardConfig(term="format", weight=0.1)]
make_trajectories = Rewards(TERMS).trajectories


def take_in(
    tracker: Tracker,
    result: GameResult,
    trajectories: Sequence[Trajectory],
    version: int,
    actor: int = 0,
) -> None:
    """A training game, as an actor hands it over."""
    ended = Ended.of([(result, list(trajectories))])
    tracker.add_games(ended.finished, ended.play, version, actor)
    tracker.view.refresh()


def make_tracker(root: Path, config: RunConfig | None = None, **options: Any) -> Tracker:
    console = Console(file=io.StringIO(), width=200)
    return Tracker(config or make_config(), RunFolder(root), console=console, **options)


def printed(tracker: Tracker) -> str:
    file = tracker.display.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def shown(renderable: RenderableType, width: int, height: int | None = None) -> str:
    """Render for a terminal of that size; returns the text shown."""
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(renderable, height=height)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def make_score(
    version: int, opponent: str = "random", score: float = 0.5, temperature: float = 1.0
) -> EvalScore:
    counts: dict[str, Any] = {
        **{"games": 16, "distinct": 16, "wins": 6, "draws": 4, "losses": 6, "forfeits": 2},
        **{"legal_moves": 0.9, "votes": 1, "agreement": None},
        **{"score": score, "low": score - 0.2, "high": score + 0.2},
    }
    place = {"env": "TicTacToe-v0", "opponent": opponent, "temperature": temperature}
    return EvalScore(version=version, **place, **counts)  # type: ignore[arg-type]


def make_exploitability(version: int, low: float, high: float, env: str = "Nim") -> Exploitability:
    worth: dict[str, Any] = {"values": (0.25, -0.25), "best": (high, high), "illegal_mass": 0.02}
    worth["information"] = 0.31
    counts: dict[str, Any] = {"decisions": 230, "prompts": 119, "seconds": 1.5}
    return Exploitability(version=version, env=env, low=low, high=high, **worth, **counts)


def make_rating(player: str, mu: float) -> Rating:
    counts: dict[str, Any] = {"games": 12, "wins": 6, "draws": 2, "losses": 4, "forfeits": 1}
    return Rating(player=PlayerId.parse(player), mu=mu, sigma=2.0, **counts)


def run_updates(tracker: Tracker, updates: int = 2) -> Tracker:
    """The calls that a run makes, on small games; returns the tracker."""
    tracker.phase("evaluating", 0, 16)
    tracker.log_evaluation([make_score(0)])
    tracker.log_ratings([make_rating("main@0", 25.0), make_rating("random", 20.0)])
    tracker.end_update(0)
    for version in range(updates):
        tracker.phase("playing", 0, 8)
        result = make_game(version, players=(f"main@{version}", "random"))
        mirror = make_game(100 + version, (f"main@{version}",) * 2, (0, 1), (0.0, 0.0))
        groups: list[Group] = []
        for played in (result, mirror):
            trajectories = make_trajectories(played)
            groups += [Group(trajectories=(each,)) for each in trajectories]
            take_in(tracker, played, trajectories, version)

        tracker.add_failure(GameFailure(spec=result.spec, error="KeyError: 3", traceback="..."))
        tracker.phase("updating")
        metrics = {"learn/loss": 0.042, "learn/grad_norm": None}
        batch = Batch(version=version, groups=tuple(groups))
        advantages = [0.5] * len(batch.samples)
        update = Update(
            version=version + 1,
            metrics=metrics,
            advantages=advantages,
            lines=sample_lines(batch, advantages),
        )
        tracker.log_alarms([])
        tracker.log_actions([], None, {"self": 0.5, "past": 0.35, "fixed": 0.15})
        tracker.log_learner(update)
        tracker.log_samples(update)
        tracker.phase("publishing")
        tracker.log_evaluation([make_score(version + 1, score=0.6)])
        tracker.log_actor(0, {name: (version + 1) * value for name, value in ENGINE.items()})
        tracker.log_buffer(Buffer(64, 8, 4).stats())
        tracker.log_ratings([make_rating(f"main@{version + 1}", 26.0), make_rating("random", 20)])
        tracker.end_update(version + 1)
    return tracker
