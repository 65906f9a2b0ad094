"""A run that trains all weights of its model, and what is done with its versions afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.helpers.cli import in_process, no_developers_lines
from tests.helpers.locally import locally
from tests.helpers.loop import lines, make_context
from tests.helpers.mistakes import refused
from tests.helpers.models import random_adapter, random_whole
from unstable.commands.export import export
from unstable.config import ConfigError, ModelConfig, dump, parse
from unstable.loop.train import train
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model
from unstable.models.inspection import check_opponents, check_start
from unstable.records.environment import write_environment
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor

TINY: dict[str, Any] = {"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": "none"}


def settings(**more: Any) -> dict[str, Any]:
    return {
        "model": TINY,
        "opponents": {"draw": {"self": 1, "past": 2, "fixed": 1}},
        "actors": {"games_in_flight": 8},
        "learner": {"batch_size": 32, "learning_rate": 1e-2},
        "loop": {"mode": "sync", "steps": 2},
        "eval": {"every": 2, "games": 2},
        **more,
    }


async def finished(folder: Path, **more: Any) -> RunFolder:
    """A run of two updates, as `unstable train` leaves it."""
    context = make_context(folder, folder / "run", **settings(**more))
    for actor in context.actors:
        assert isinstance(actor, LocalActor)
        await actor.load_adapters()
    assert await train(context) == "all updates made"
    context.tracker.close()
    context.folder.config.write_text(dump(context.config), encoding="utf-8")
    write_environment(context.folder, "unstable train")
    return context.folder


def recorded(run: RunFolder, player: str) -> list[dict[str, Any]]:
    """Return what a player sampled in training, at temperature 1."""
    games = [game for path in (run.root / "games").glob("train-*") for game in lines(path)]
    turns = [turn for game in games for turn in game["turns"] if turn["player"] == player]
    return [turn["sampled"] for turn in turns]


async def test_exported_version_equals_the_model_that_played(tmp_path: Path) -> None:
    run = await finished(tmp_path)
    for version in (0, 1):
        model = AutoModelForCausalLM.from_pretrained(export(run.root, version))
        turns = recorded(run, f"main@{version}")
        assert len(turns) > 4
        for turn in turns:
            prompt, (answer,) = turn["prompt_ids"], turn["segments"]
            ids = torch.tensor([[*prompt, *answer["token_ids"]]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            logprobs = logits.log_softmax(-1)
            found = logprobs.gather(1, torch.tensor(answer["token_ids"])[:, None])[:, 0].tolist()
            assert found == pytest.approx(answer["logprobs"], abs=1e-4)
    start, end = (load_file(run.checkpoint(v) / "model.safetensors") for v in (0, 2))
    assert all((start[name] != end[name]).float().mean() > 0.1 for name in start)
    assert "weights of `tiny`" in (run.export(1, merged=True) / "README.md").read_text().lower()


def saved(folder: Path, *, whole: bool) -> Path:
    folder.mkdir()
    model = load_model(ModelConfig(**TINY))
    version = random_whole(model, "a", seed=1) if whole else random_adapter(model, "a", seed=1)
    write_adapter(version, folder)
    return folder


async def test_full_weights_serve_as_start_and_opponent(tmp_path: Path) -> None:
    warm, lora = saved(tmp_path / "warm", whole=True), saved(tmp_path / "lora", whole=False)
    fixed = [{"kind": "checkpoint", "path": str(path)} for path in (warm, lora)]
    opponents = {"draw": {"self": 0, "past": 1, "fixed": 2}, "fixed": fixed}
    run = await finished(tmp_path, model={**TINY, "init": str(warm)}, opponents=opponents)
    assert load_file(run.checkpoint(0) / "model.safetensors")["lm_head.weight"].equal(
        load_file(warm / "model.safetensors")["lm_head.weight"]
    )
    for player in ("checkpoint:warm", "checkpoint:lora", "main@0"):
        assert recorded(run, player)


def test_conflicting_settings_are_one_line(tmp_path: Path) -> None:
    warm, lora = saved(tmp_path / "warm", whole=True), saved(tmp_path / "lora", whole=False)
    with pytest.raises(ConfigError, match="quantize = '8bit': conflicts with model.adapter = none"):
        parse({"model": {"adapter": "none", "quantize": "8bit"}})
    with pytest.raises(ConfigError, match=r"model.init = '.*lora': is a LoRA, but"):
        check_start(lora, ModelConfig(**TINY), "model.init")
    with pytest.raises(ConfigError, match=r"contains whole weights, not a LoRA; set model.adap"):
        check_start(warm, ModelConfig(name="tiny"), "model.init")
    with pytest.raises(ConfigError, match=r"its lm_head.weight is .*, but tiny_cards has"):
        check_start(warm, ModelConfig(**{**TINY, "name": "tiny_cards"}), "model.init")
    (warm / "model.safetensors").write_bytes(b"PK")
    fixed = [{"kind": "checkpoint", "path": str(warm)}]
    with pytest.raises(ConfigError, match=r"opponents.fixed.0.path = .* cannot be read"):
        check_opponents(parse({"model": TINY, "opponents": {"fixed": fixed}}))
    refused("model.adapter = 'some': not a section; write", parse, {"model": {"adapter": "some"}})


@pytest.mark.slow
def test_train_and_eval_commands_with_full_weights(tmp_path: Path) -> None:
    """Engine and learner are probed, play and learn; afterwards a version is evaluated."""
    config = """
model: {name: tiny, init: fresh, dtype: float32, adapter: none}
actors: {num: 1, games_in_flight: 8}
learner: {batch_size: 16, micro_batch_size: 8}
eval: {every: 2, games: 2}
loop: {steps: 2, mode: sync}
"""
    (tmp_path / "full.yaml").write_text(config)
    with locally():
        done = [in_process(tmp_path, "train", "--config", "full.yaml", "--run_dir", "run")]
        done.append(in_process(tmp_path, "eval", "run", "--games", "2"))
    for each in done:
        assert each.returncode == 0 and no_developers_lines(each.stdout + each.stderr), each
    assert "all weights are trained" in done[0].stderr
