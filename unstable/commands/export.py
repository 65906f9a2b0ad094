"""Export of a version as a folder that others load: adapter or merged weights, with a card."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unstable.commands.card import PICTURE, PROMPTS, Export, model_card, scores_picture
from unstable.commands.finished import Version, check_adapter, checkpoint_of
from unstable.commands.session import starting
from unstable.config import ConfigError, RunConfig, hide_secrets
from unstable.games.services import prompt_style
from unstable.models.adapters import holds_whole, padded_rank, read_adapter, write_adapter
from unstable.models.archive import fingerprint
from unstable.models.base import check_model, load_decoder, load_tokenizer, named_stop_token_ids
from unstable.models.hub import check_push, push
from unstable.models.merge import is_shipped, public_name, write_merged, write_tokenizer
from unstable.records.files import new_folder
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped, read_records
from unstable.records.text import command_line
from unstable.report.run import read_runs
from unstable.types import Adapter, PlayerId, RecordedGame

CARD = "README.md"
MOST_GAMES = 500
"""Recorded games that are searched for an example of each game's prompt."""


def export(
    run_dir: Path,
    version: Version | None,
    out: Path | None = None,
    *,
    merged: bool = False,
    repository: str | None = None,
) -> Path:
    """Write a version (None: the newest) into a new or empty folder; return the folder.

    Writes a PEFT adapter, or whole weights if `merged` or if all weights are trained; with
    tokenizer, prompts and a model card. `repository` also pushes it to the hub. Raises
    `ConfigError` for an invalid run, version or folder, and `RunFailedError` if the hub refuses it;
    never leaves a partial folder.
    """
    folder = RunFolder(run_dir)
    version = checkpoint_of(folder, version)
    if folder.examples.is_file():
        raise ConfigError(
            f"RUN_DIR = {str(run_dir)!r}: an sft run, without games; give a run of unstable train, "
            f"or load {folder.adapter} with PEFT"
        )
    merged |= holds_whole(folder.checkpoint(version))
    out = folder.export(version, merged=merged) if out is None else out
    _check_out(out)
    if repository is not None:
        check_push(repository)
    with starting():
        try:
            _write(folder, version, out, merged=merged)
        except OSError as error:
            raise ConfigError(
                f"--out = {str(out)!r}: cannot be written ({error.strerror or error}); give a "
                "writable folder on a disk with free space"
            ) from error
    print(f"version {version} is in {out}")
    if repository is not None:
        print(f"pushed: {push(out, repository, f'Version {version}')}")
    return out


def _check_out(out: Path) -> None:
    is_empty = out.is_dir() and not out.is_symlink() and not any(out.iterdir())
    if (out.exists() or out.is_symlink()) and not is_empty:
        raise ConfigError(f"--out = {str(out)!r} already exists; give a new or empty folder")


def _write(folder: RunFolder, version: int, out: Path, *, merged: bool) -> None:
    (run,) = read_runs([folder.root])
    config = run.config
    check_model(config.model)
    adapter = _adapter(folder, config, version)
    export = Export(
        version=version,
        merged=merged,
        base=public_name(config.model),
        base_hint=_base_hint(config),
        fingerprint=_fingerprint(config),
        dtype=config.model.dtype,
        max_lora_rank=None if adapter.is_whole else padded_rank(adapter.config["r"]),
        prompts=dict(_prompts(folder, config, version)),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as scratch:
        if merged:
            write_merged(config.model, adapter, scratch)
        else:
            write_adapter(adapter, scratch)
        write_tokenizer(config.model, scratch)
        prompts = hide_secrets(json.dumps(export.prompts, indent=1))
        (scratch / PROMPTS).write_text(prompts, encoding="utf-8")
        (scratch / CARD).write_text(model_card(run, export), encoding="utf-8")
        if (picture := scores_picture(run)) is not None:
            (scratch / PICTURE).write_bytes(picture)


def _adapter(folder: RunFolder, config: RunConfig, version: int) -> Adapter:
    """Return the version's weights without learner state; an adapter names its public base."""
    place = folder.checkpoint(version)
    check_adapter(place)
    adapter = read_adapter(place, PlayerId.policy(version).name)
    if adapter.is_whole:
        return adapter
    base = {"base_model_name_or_path": public_name(config.model)}
    return Adapter(name=adapter.name, weights=adapter.weights, config=adapter.config | base)


def _base_hint(config: RunConfig) -> str:
    if is_shipped(config.model):
        command = command_line("unstable", "model", config.model.name)
        return f"the folder that `{command}` prints"
    return "" if public_name(config.model) == config.model.name else "folder of the base model"


def _fingerprint(config: RunConfig) -> str | None:
    try:
        return fingerprint(config.model)
    except ConfigError:  # weights are not in safetensors files
        return None


def _prompts(
    folder: RunFolder, config: RunConfig, version: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each game's prompt format, with an example from the run's own games if one exists."""
    examples = _examples(folder, config, version)
    stops = sorted(named_stop_token_ids(config.model, load_tokenizer(config.model)))
    for game in config.games:
        style = prompt_style(game)
        system = [{"role": "system", "content": style.system}] if style.system else []
        example = examples.get(game.key, {"user": "the observation"})
        user = {"role": "user", "content": example.pop("user")}
        yield (
            game.key,
            {
                "style": style.name,
                "parser": style.parser,
                "request": style.request,
                "chat_template": config.model.template_arguments,
                "max_tokens": config.sampling.max_tokens,
                "temperature": config.sampling.temperature,
                "stop_token_ids": stops,
                "messages": [*system, user],
                **example,
            },
        )


def _examples(folder: RunFolder, config: RunConfig, version: int) -> dict[str, dict[str, str]]:
    """Return by game a turn that the version answered: user text, whole prompt and answer."""
    decode = load_decoder(config.model)
    player = PlayerId.policy(version)
    found: dict[str, dict[str, str]] = {}
    looked = 0
    for purpose in ("eval", "train"):
        path = folder.games(purpose, version)
        for game in read_records(path, RecordedGame, Skipped()):
            looked += 1
            answers = [turn.answer for turn in game.turns if turn.player == player]
            whole = [(answer, each) for answer in answers if (each := answer.sampled) is not None]
            if whole and decode is not None and game.spec.env not in found:
                answer, sampled = whole[-1]
                found[game.spec.env] = {
                    "user": answer.observation,
                    "prompt": decode(sampled.prompt_ids),
                    "answer": answer.text,
                }
            if looked >= MOST_GAMES or len(found) == len(config.games):
                return found
    return found
