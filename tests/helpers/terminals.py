"""A small run with recorded games of every sort, and a terminal to play at."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.records import game_record
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, dump, load
from unstable.engines.kinds import make_engine
from unstable.models.adapters import write_adapter
from unstable.records.files import LineFile, read_lines
from unstable.records.folder import RunFolder
from unstable.records.games import read_game
from unstable.types import BASE, GameFailure, GameResult, GameSpec, PlayerId, SeatSpec

KUHN = "unstable.games.catalog.kuhn:KuhnPoker"


def run_config(model: Path, **changes: Any) -> RunConfig:
    """A resolved config of a run with a tiny model whose random answers do not end a game."""
    return load(
        "default",
        {
            "model": {"name": str(model), "dtype": "float32", "init": "fresh"},
            "model.adapter.rank": 4,
            "games": [
                {"env": "TicTacToe-v0", "invalid_moves": {"allowed": 4}, "max_turns": 12},
                {"env": KUHN, "name": "Kuhn", "args": {"max_rounds": 1}},
            ],
            "sampling.max_tokens": 8,
            "actors": {"num": 1, "games_in_flight": 8, "engine": "embedded"},
            "opponents.fixed": [
                {"kind": "random"},
                {"kind": "python", "target": "tests.helpers.hostile:takes_over", "name": "hostile"},
            ],
            "eval": {"every": 1, "constrained": True, "temperature": [1.0]},
            "seed": 11,
            **changes,
        },
    )


def policy(version: int, **fields: Any) -> SeatSpec:
    return SeatSpec(player=PlayerId.policy(version), temperature=1.0, **fields)


def other(name: str) -> SeatSpec:
    return SeatSpec(player=PlayerId(name), temperature=1.0)


def training_specs() -> list[GameSpec]:
    """Self-play, an opening by version 0, one by any legal moves, and a game that branches."""

    def game(game_id: int, *seats: SeatSpec, **fields: Any) -> GameSpec:
        fields |= {"game_id": game_id, "seed": 100 + game_id, "seats": seats}
        return GameSpec(purpose="train", env="TicTacToe-v0", **fields)

    trained = policy(1, group_id=0)
    return [
        game(0, trained, replace(trained, group_id=1)),
        game(1, trained, policy(0), opening=2, opener=policy(0)),
        game(2, other("random"), trained, opening=1, opener=other("random")),
        game(6, trained, policy(0), branches=2),  # branches are games 7 and 8
    ]


def evaluation_specs() -> list[GameSpec]:
    """A version that is held to legal moves, against each sort of player."""
    specs: list[GameSpec] = []
    for env in ("TicTacToe-v0", "Kuhn"):
        for name in ("random", "expert", BASE.name):
            seats = (policy(1, votes=3 if name == "random" else 1), other(name))
            number = len(specs)
            specs.append(
                GameSpec(game_id=number, purpose="eval", env=env, seed=7 + number, seats=seats)
            )
    return specs


def make_run(root: Path, model: Path, **changes: Any) -> RunFolder:
    """A run's folder with two versions and games that a collector has played, all at once."""
    folder, config = RunFolder(root), run_config(model, **changes)
    for version in (0, 1):
        folder.checkpoint(version).mkdir(parents=True)
        adapter = random_adapter(tiny_model(), PlayerId.policy(version).name, seed=version)
        write_adapter(adapter, folder.checkpoint(version))
    folder.config.write_text(dump(config), encoding="utf-8")
    results = asyncio.run(_played(folder, config))
    (root / "games").mkdir()
    for purpose in ("train", "eval"):
        with contextlib.closing(LineFile(folder.games(purpose, 1))) as file:
            for result in results:
                if result.spec.purpose == purpose:
                    for each in result.games:
                        file.write(game_record(each, [], 1, 0))
    return folder


async def _played(folder: RunFolder, config: RunConfig) -> list[GameResult]:
    engine, tokenizer = await make_engine(config, folder.root / "engine.log")
    collector = Collector(config, engine, tokenizer)
    await collector.start()
    for version in (0, 1):
        adapter = random_adapter(tiny_model(), PlayerId.policy(version).name, seed=version)
        await engine.load(adapter)
    specs = [*training_specs(), *evaluation_specs()]
    found = [result async for result in collector.play(specs)]
    await collector.close()
    await engine.close()
    assert [each.error for each in found if isinstance(each, GameFailure)] == []
    results = [result for result in found if isinstance(result, GameResult)]
    return sorted(results, key=lambda result: result.spec.game_id)


def saved(root: Path) -> tuple[RunFolder, GameResult]:
    """The one game of the one folder that a game has left."""
    (folder,) = map(RunFolder, (root / "outputs").iterdir())
    (file,) = folder.game_files()
    ((place, row),) = read_lines(file.path)
    return folder, read_game(place, row)


def listing(root: Path) -> dict[str, bytes]:
    """All files of a folder, by name, with what is in them."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@contextlib.contextmanager
def typed(text: str) -> Iterator[None]:
    """Standard input holds the text meanwhile, and then ends."""
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reader)
