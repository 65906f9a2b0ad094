"""A finished run in small, to export versions of: a real game, an adapter, a learner's state."""

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tests.helpers.builders import asking
from tests.helpers.builders import spec as make_spec
from tests.helpers.tracking import run_updates
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, dump
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.models.checkpoint import Snapshot
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder
from unstable.tracking.tracker import Tracker
from unstable.types import Adapter, Completion, GameResult

VERSION = 2


def make_run(root: Path, config: RunConfig, adapter: Adapter) -> RunFolder:
    """A run of two updates whose version 2 has the adapter, and has played a game."""
    folder = RunFolder(root)
    tracker = Tracker(config, folder, console=Console(file=io.StringIO()))
    run_updates(tracker)
    tracker.add_eval_episode(asyncio.run(_play(config, adapter)), VERSION)
    tracker.close()
    folder.config.write_text(dump(config), encoding="utf-8")
    write_environment(folder, f"unstable train --run_dir {root}")
    state = {"critic": {"head": torch.ones(3)}}
    Snapshot(adapter, None, state).write(folder.checkpoint(VERSION))
    return folder


def _engine(config: RunConfig) -> EmbeddedEngine:
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    return EmbeddedEngine(model, stop_token_ids(model, config.model, tokenizer))


async def _play(config: RunConfig, adapter: Adapter) -> GameResult:
    engine = _engine(config)
    await engine.load(adapter)
    spec = make_spec([f"main@{VERSION}"] * 2, purpose="eval", env=config.games[0].key)
    collector = Collector(config, engine, load_tokenizer(config.model))
    [result] = [result async for result in collector.play([spec])]
    assert isinstance(result, GameResult), result.error
    return result


def prompts_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "prompts.json").read_text(encoding="utf-8"))


def greedy_text(config: RunConfig, adapter: Adapter, out: Path) -> str:
    """Return the embedded engine's greedy answer to the export's own example."""
    tokenizer = load_tokenizer(config.model)
    [prompt] = prompts_of(out).values()
    ids = tokenizer(prompt["prompt"], add_special_tokens=False)["input_ids"]

    async def answer() -> Completion:
        engine = _engine(config)
        await engine.load(adapter)
        most = prompt["max_tokens"]
        request = asking(ids, adapter=adapter.name, temperature=0, max_tokens=most)
        return await engine.generate(request)

    return str(tokenizer.decode(asyncio.run(answer()).token_ids, skip_special_tokens=True))


def card_code(out: Path, number: int, base: str) -> str:
    """A block of code of the card, which finds its folder and the base's."""
    blocks = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    code = blocks[number].replace('folder = "."', f"folder = {str(out)!r}")
    return re.sub(r"^base = .*$", f"base = {base!r}", code, flags=re.MULTILINE)
