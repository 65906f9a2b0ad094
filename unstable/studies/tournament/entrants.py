"""Entrants of a tournament, from the words of a command line, and the config of all games."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.play.casting import as_opponent, for_games, game_of, player_of, run_of
from unstable.config import (
    CheckpointOpponent,
    ConfigError,
    FixedOpponent,
    PythonOpponent,
    RunConfig,
    load,
    path_problem,
    shown,
)
from unstable.models.adapters import holds_weights
from unstable.planning.resolve import UNDECIDED
from unstable.records.folder import RunFolder
from unstable.report.run import names_of
from unstable.types import BASE


class Entrant(BaseModel):
    """A player by its name in games; for a version of a run, also its folder and number."""

    player: str
    root: Path | None = None
    version: int = 0


def config_of(
    source: str | None, words: Sequence[str], games: Sequence[str], fields: Mapping[str, Any]
) -> RunConfig:
    """Return the config of all games, with the named games, else its own.

    It comes from `source`, else from the first run among the players, else from `default`.
    """
    runs = [folder for folder, _ in filter(None, map(_run_of, words))]
    name, undecided = source or "default", {}
    if source is None and runs:
        name, undecided = str(runs[0].config), dict(UNDECIDED)
    named = [game_of(load(name), game) for game in games]
    chosen = {"games": [game.model_dump() for game in named]} if named else {}
    return load(name, {**undecided, **chosen, "eval.exploitability.games": [], **fields})


def with_entrants(config: RunConfig, words: Sequence[str]) -> tuple[RunConfig, list[Entrant]]:
    """Return the config with only the players that the words name, and their entrants.

    A word is random, expert, rules, base, an opponent of the config, RUN[@VERSION], the folder of
    a LoRA adapter or of whole weights, or module:Class. Raises `ConfigError` for mistakes, before
    a model is loaded.
    """
    roots = [folder.root.resolve() for folder, _ in filter(None, map(_run_of, words))]
    roots = list(dict.fromkeys(roots))
    labels = dict(zip(roots, names_of(roots) if roots else [], strict=True))
    adapters = [Path(word).expanduser().resolve() for word in words if _is_adapter(config, word)]
    adapters = list(dict.fromkeys(adapters))
    if len({each.name for each in adapters}) < len(adapters):
        labels |= zip(adapters, names_of(adapters), strict=True)
    bots = Counter(word.rpartition(":")[2] for word in words if _is_bot(word))
    found, opponents = [], []
    for word in words:
        is_one_of_several = bots[word.rpartition(":")[2]] > 1
        entrant, opponent = _entrant(config, word, labels, word if is_one_of_several else None)
        found.append(entrant)
        opponents += [] if opponent is None else [opponent]
    for name, count in Counter(each.player for each in found).items():
        if count > 1:
            raise ConfigError(f"PLAYER = {name!r}: given {count} times; name each player once")
    if len(found) < 2:
        raise ConfigError(f"PLAYER = {' '.join(words)}: fewer than two players; add another")
    for root in roots:
        _check_same(config, root)
    alone = for_games(config, config.games[:1], opponents)
    return alone.model_copy(update={"games": config.games}), found


def _run_of(word: str) -> tuple[RunFolder, Version | None] | None:
    """Return the run and the version that a word names; None if it names no run."""
    run = run_of(word)
    return run if run is not None and run[0].config.is_file() else None


def _is_adapter(config: RunConfig, word: str) -> bool:
    """Return whether a word is the folder of an adapter, not of a run."""
    if word == BASE.name or word in config.fixed_opponents or path_problem(word) is not None:
        return False
    return _run_of(word) is None and holds_weights(Path(word).expanduser())


def _is_bot(word: str) -> bool:
    """Return whether a word names a user's own player as module:Class."""
    module, colon, name = word.partition(":")
    return bool(colon) and all(map(str.isidentifier, [name, *module.split(".")]))


def _entrant(
    config: RunConfig, word: str, labels: Mapping[Path, str], name: str | None
) -> tuple[Entrant, FixedOpponent | None]:
    """Return a word's player and opponent section, if any; `name` replaces a bot's class name."""
    is_known = word == BASE.name or word in config.fixed_opponents
    if not is_known and (run := _run_of(word)) is not None:
        root, version = run[0].root.resolve(), checkpoint_of(*run)
        served = as_opponent(run[0], version, labels[root])
        return Entrant(player=served.key, root=root, version=version), served
    opponent: FixedOpponent | None
    if _is_adapter(config, word):
        label = labels.get(Path(word).expanduser().resolve())
        own = None if label is None else f"checkpoint:{label}"
        opponent = CheckpointOpponent(path=word, name=own)
    elif not is_known and _is_bot(word):
        opponent = PythonOpponent(target=word, name=name)
    else:
        _, opponent, _ = player_of(config, word, "PLAYER")  # raises for an invalid word
    return Entrant(player=word if opponent is None else opponent.key), opponent


def _check_same(config: RunConfig, root: Path) -> None:
    """Raise `ConfigError` for a run with another base model, or other prompts in these games."""
    own = load(str(RunFolder(root).config))
    for field in ("name", "quantize", "chat_template"):
        asked, its = (getattr(each.model, field) for each in (config, own))
        if asked != its:
            raise ConfigError(
                f"PLAYER = {str(root)!r}: its model.{field} is {shown(its)}, not {shown(asked)}; "
                "use runs of one base model, which serves all players"
            )
    for game in config.games:
        other = own.game_by_key.get(game.key)
        for field in _PUT if other is not None else ():
            if getattr(other, field) != getattr(game, field):
                raise ConfigError(
                    f"PLAYER = {str(root)!r}: its {field} of {game.key} is "
                    f"{shown(getattr(other, field))}, not {shown(getattr(game, field))}; use "
                    "runs with equal game settings"
                )


_PUT = ("env", "args", "seats", "events", "prompt", "parser")
"""Fields of a game's section that determine what a model sees."""


def check_runs(players: Sequence[Entrant]) -> None:
    """Raise `ConfigError` if joint policy correlation would mix runs with others or repeat one."""
    roots = [each.root for each in players]
    if any(roots) and (None in roots or len(set(roots)) < len(roots)):
        raise ConfigError("--jpc: needs one version each of several runs; remove all other players")
