"""The loop's context with an actor and a learner of this process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.records import lines as lines
from unstable.commands.prepare import exact_games, prepare
from unstable.config import RunConfig, dump, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.loop.context import Context
from unstable.loop.train import publish, train
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.tracking.tracker import Tracker

KUHN_RUN: dict[str, Any] = {
    "model": {"name": "tiny_cards", "init": "fresh", "dtype": "float32", "adapter": {"rank": 4}},
    "games": [
        {
            **{"env": "unstable.games.catalog.kuhn:KuhnPoker", "name": "Kuhn"},
            **{"args": {"max_rounds": 1}, "prompt": "compact"},
        }
    ],
    "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
    "sampling": {"max_tokens": 6},
    "eval": {"every": 0, "exploitability": {"every": 1}},
}
"""A run on the shipped cards model whose exploitability is exact, as config."""


def make_actor(config: RunConfig, folder: RunFolder) -> LocalActor:
    """An actor of this process, with the embedded engine."""
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    engine = EmbeddedEngine(
        model,
        stop_token_ids(model, config.model, tokenizer),
        top_logprobs=config.tracking.top_logprobs,
    )
    return LocalActor(config, folder, engine, tokenizer)


def make_context(tiny_folder: Path, run_dir: Path, num_actors: int = 1, **changes: Any) -> Context:
    data = {
        "model": {"name": str(tiny_folder), "dtype": "float32", "adapter": {"rank": 4}},
        "sampling": {"max_tokens": 4},
        "learner": {"batch_size": 16, "micro_batch_size": 8, "learning_rate": 1e-3},
        "eval": {"every": 2, "games": 4},
        "loop": {"mode": "sync", "steps": 3},
        "tracking": {"run_dir": str(run_dir), "dashboard": "off", "keep_checkpoints": 2},
        **changes,
    }
    config = prepare(parse(data)).config
    assert isinstance(config.buffer.capacity, int)
    folder = RunFolder(run_dir)
    return Context(
        config=config,
        folder=folder,
        actors=[make_actor(config, folder) for _ in range(num_actors)],
        learner=LocalLearner(config, folder),
        tracker=Tracker(config, folder),
        rewards=Rewards(config.buffer.rewards, config.judges),
        exact_games=exact_games(config),
    )


Begin = Callable[..., Context]
"""`make_context` of a test's own run of the tiny model: the fixture `begin`."""


def train_to_end(context: Context) -> RunFolder:
    """Train, and return the run's folder, with its config as a command would write it."""
    context.folder.config.write_text(dump(context.config), encoding="utf-8")
    asyncio.run(train(context))
    context.tracker.close()
    return context.folder


async def publish_start(context: Context) -> None:
    """Publish version 0, as a run does first of all."""
    await publish(context, await context.learner.hold())


def played(folder: RunFolder, purpose: str = "train") -> list[dict[str, Any]]:
    games = [
        record
        for path in sorted((folder.root / "games").glob(f"{purpose}-*"))
        for record in lines(path)
    ]
    for record in games:
        del record["seconds"]
        for turn in record["turns"]:
            del turn["seconds"]
    return games
