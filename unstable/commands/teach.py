"""Warm start before self-play, for a model that does not know the form of a game's answers.

The model plays a few games; if fewer than 90 % of its moves are legal, it trains on random legal
moves, so that it learns to answer and no strategy. This happens once for a model and its games:
the user's cache keeps the start.
"""

import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from unstable.commands.evaluate import play_evaluation
from unstable.commands.prepare import Resolved, alone, prepare
from unstable.commands.session import at_work, gone_after, have_weights, run_to_end, status
from unstable.commands.sft import fine_tuned, run_fine_tuning
from unstable.config import ConfigError, GameConfig, RunConfig
from unstable.datasets.examples import Example, Lessons
from unstable.datasets.sources import random_positions
from unstable.games.services import lists_legal_moves, prompt_style, prompts_of
from unstable.loop.protocols import Actor
from unstable.loop.sft import EPOCH
from unstable.models.adapters import holds_weights, read_adapter, write_adapter
from unstable.models.archive import made_for, weight_files
from unstable.models.base import load_tokenizer, model_path
from unstable.models.hub import cache_folder
from unstable.planning.resolve import UNDECIDED
from unstable.records.files import new_folder, write_whole
from unstable.records.folder import RunFolder
from unstable.records.text import duration, number
from unstable.tracking.lines import Lines
from unstable.tracking.metrics import Row
from unstable.types import GameSpec, PlayerId, SeatSpec, Update
from unstable.types.seeds import derive_seed

ASKED = 16
"""Games of each env that measure the share of legal moves."""
ASKED_AGAIN = 48
"""Further games if the first ones meet the target: the best of many measurements is luck."""
KNOWN = 0.9
"""Share of legal moves from which on a model learns the rest by playing. If every other move is
illegal, nearly each longer game is a forfeit and teaches nothing."""
TAUGHT = 0.96
"""Share of legal moves that ends teaching; self-play then began with 94 and 98 % in two games."""
POSITIONS = 128
"""Positions of random games of each env in the first lesson; each lesson has others."""
MOVES = 8
"""Most legal moves that a lesson has of a position."""
STUCK = 500
"""Steps without more legal moves after which the user gets a warning."""
LESSONS = 10_000
"""Limit of lessons, above what time allows."""
MOST_S = 600.0
"""Seconds after which no further lesson begins."""
_LEARNER = {
    "batch_size": 16,
    "micro_batch_size": 16 * MOVES,
    "learning_rate": 2e-3,
    "schedule": "constant",
    "final_rate": 0.0,
    "decay_fraction": 1.0,
    "warmup_steps": 4,
    "ema": 0.98,  # the running mean of the weights is tested and kept
    "max_kl": None,
    "state": None,
    "num": 1,
}
_WHOLE_RATE = 1e-4
"""Learning rate if all weights are trained, not a LoRA."""
_PLANNED = ("learner.gradient_checkpointing", "learner.micro_batch_tokens")
_NOTE_FILE = "taught.json"


def taught(resolved: Resolved) -> Resolved:
    """Return the run with a start that knows the form of its games' answers.

    Tests games that list their legal moves and that the start was not made for. Raises
    `RunFailedError` for a failure, and an interrupt's exception.
    """
    config = resolved.config
    games = [game for game in config.games if _is_new(game, config)]
    if not games:
        return resolved
    have_weights(config.model)
    teaching = _teaching(config, games)
    examples = list(chain.from_iterable(_positions(teaching)))
    place = cache_folder() / "starts" / _key(teaching, examples)
    if not (place / _NOTE_FILE).is_file():
        _make(teaching, examples, place)
    elif holds_weights(place):
        names = ", ".join(game.key for game in games)
        status(f"the model starts from {place}, trained on the answer format of {names}")
    if not holds_weights(place):
        return resolved
    return resolved._replace(config=config.updated({"model.init": str(place)}))


def _is_new(game: GameConfig, config: RunConfig) -> bool:
    """Return whether the model needs a test of its answers in the game."""
    knows = [] if config.model.init == "fresh" else made_for(Path(config.model.init))
    return lists_legal_moves(game) and game.env not in knows and not prompt_style(game).reasoning


def _teaching(config: RunConfig, games: Sequence[GameConfig]) -> RunConfig:
    """Return the config of teaching, with these games alone.

    Its micro-batches are planned again: the run's may fill the memory, and teaching also keeps the
    mean of the weights.
    """
    changes = {"games": list(games), "eval.constrained": False, "loop.mode": "sync"}
    changes |= {name: UNDECIDED[name] for name in _PLANNED}
    learner = {f"learner.{name}": value for name, value in _LEARNER.items()}
    if config.model.trains_all:
        learner["learner.learning_rate"] = _WHOLE_RATE
    return alone(config).updated({**changes, **learner})


def _positions(config: RunConfig, lesson: int = 1, times: int = 1) -> list[list[Example]]:
    """Return a lesson's positions with their legal moves, `times` as many as the first one's."""
    tokenizer, positions = load_tokenizer(config.model), list[list[Example]]()
    for game in config.games:
        prompts = prompts_of(config, game, tokenizer)
        positions += random_positions(
            game, prompts, number=times * POSITIONS, most=MOVES, seed=lesson - 1
        )
    return positions


def _key(config: RunConfig, examples: Sequence[Example]) -> str:
    """Return a digest of all that the start depends on: model, LoRA, start and lessons."""
    try:
        stats = [(path.name, path.stat()) for path in weight_files(config.model)]
        files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    except ConfigError:  # weights are not in safetensors files
        files = []
    what = {
        "model": [model_path(config.model), sorted(files), config.model.model_dump()],
        "taught": [ASKED, ASKED_AGAIN, KNOWN, TAUGHT, POSITIONS, MOVES, _LEARNER],
        "examples": [(each.env, *each.key) for each in examples],
    }
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _make(config: RunConfig, examples: Sequence[Example], place: Path) -> None:
    """Test, teach if needed, and keep the result; an interrupt leaves no files."""
    began, work = time.monotonic(), Path(tempfile.mkdtemp(prefix="unstable-teach-"))
    task = Lessons(
        train=examples,
        held_out=[],
        epochs=LESSONS,
        patience=LESSONS,
        batch_size=config.learner.batch_size,
        seed=config.seed,
        positions=POSITIONS * len(config.games),
        draw=partial(_positions, config),
    )
    folder, resolved = RunFolder(work), prepare(fine_tuned(config, task))
    tracker = _Lesson(resolved.config)

    def is_over(rows: Sequence[Row]) -> bool:
        return _is_enough(rows) or time.monotonic() - began > MOST_S

    with gone_after(work):
        with at_work(folder, "teach"), tracker.lines.refreshing():
            evaluate = partial(_ask_average, folder, resolved.config)
            main = run_fine_tuning(resolved, folder, task, tracker, evaluate, is_enough=is_over)
            row = run_to_end(main, status)
        place.parent.mkdir(exist_ok=True)
        with new_folder(place, replace=True) as kept:
            if row[EPOCH]:
                version = row["version"]
                assert isinstance(version, int)
                write_adapter(read_adapter(folder.checkpoint(version), "start"), kept)
                spent = duration(time.monotonic() - began)
                status(
                    f"answer format trained in {spent}: legal moves {_shares(row)}; kept in {place}"
                )
            write_whole(kept / _NOTE_FILE, json.dumps(row).encode())


def _is_enough(rows: Sequence[Row]) -> bool:
    """Return whether the share of legal moves suffices to skip teaching, or to end it."""
    least = min(_legal(rows[-1]).values())
    return least >= (TAUGHT if rows[-1][EPOCH] else KNOWN)


def _legal(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of legal moves by game."""
    prefix = "legal/"
    return {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}


def _shares(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{100 * share:.0f} % in {game}" for game, share in _legal(row).items())


async def _ask_average(
    folder: RunFolder, config: RunConfig, actors: Sequence[Actor], version: int
) -> Row:
    """Measure legal moves of the weights' running mean, which replaces the version's weights."""
    from unstable.models.checkpoint import read_average  # imports torch

    place = folder.checkpoint(version)
    write_adapter(read_average(place), place)
    return await _ask(config, actors, version)


async def _ask(config: RunConfig, actors: Sequence[Actor], version: int) -> Row:
    """Measure the share of legal moves of a version in self-play, by game."""
    player = PlayerId.policy(version)
    await asyncio.gather(*(actor.publish(player) for actor in actors))
    row: Row = {}
    for game in config.games:
        ask = partial(_legality, config, actors, game, player)
        legal = await ask(range(ASKED))
        if version and _share(legal) >= TAUGHT:
            legal += await ask(range(ASKED, ASKED + ASKED_AGAIN))
        row[f"legal/{game.key}"] = _share(legal)
    await asyncio.gather(*(actor.retire(player) for actor in actors))
    return row


def _share(legal: Sequence[bool]) -> float:
    """Return the share of legal moves; 0 without moves."""
    return fmean(legal or [False])


async def _legality(
    config: RunConfig,
    actors: Sequence[Actor],
    game: GameConfig,
    player: PlayerId,
    numbers: Iterable[int],
) -> list[bool]:
    """Return whether each move of these games was legal; each version has its own deals."""
    seat = SeatSpec(player=player, temperature=config.sampling.temperature)
    specs = [
        GameSpec(
            game_id=number,
            purpose="eval",
            env=game.key,
            seed=derive_seed(config.seed, "asked", player.version, number),
            seats=(seat,) * game.seats,
            teams=game.teams,
        )
        for number in numbers
    ]
    results = await play_evaluation(actors, specs)
    return [not turn.invalid for result in results for turn in result.turns]


class _Lesson:
    """Progress lines of teaching, as a `Tracker` of supervised training."""

    def __init__(self, config: RunConfig) -> None:
        self.lines = Lines(status)
        self._model = config.model.name
        self._best, self._best_step, self._is_stuck = 0.0, 0, False

    def print(self, line: str) -> None:
        status(line)

    def phase(self, name: str) -> None:
        what = "testing the model's moves" if name == "playing" else name
        self.lines.phase(f"before training: {what}")

    def log_step(self, row: Row) -> None:
        step, loss = row["version"], number(row["learn/loss"])
        self.lines.phase(f"training the answer format · step {step} · loss {loss}")

    def log_refusals(self, update: Update) -> None:
        pass

    def log_epoch(self, row: Row) -> None:
        if row[EPOCH]:
            step = row["version"]
            status(f"training the answer format · step {step} · legal moves {_shares(row)}")
            self._warn(min(_legal(row).values()), int(step or 0))
        elif not _is_enough([row]):
            status(
                f"{self._model} does not know the answer format (legal moves: {_shares(row)}): "
                "it first trains on random legal moves, at most 10 minutes; --init fresh skips it"
            )

    def _warn(self, legal: float, step: int) -> None:
        """Warn once if the share of legal moves no longer rises, with alternatives."""
        if legal > self._best + 0.02:
            self._best, self._best_step = legal, step
        elif step - self._best_step >= STUCK and not self._is_stuck:
            self._is_stuck = True
            status(
                f"legal moves have not risen above {100 * self._best:.0f} % in {STUCK} steps: the "
                "model may be too small for this game; `unstable world` makes a tiny model that "
                "knows its rules, `unstable sft` trains on your own examples"
            )
