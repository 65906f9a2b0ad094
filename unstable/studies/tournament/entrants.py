"""Who takes part in a tournament, from the words of a command line, and the config of all games."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.play.casting import for_one_game, game_of, player_of
from unstable.config import (
    CheckpointOpponent,
    ConfigError,
    FixedOpponent,
    GameConfig,
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
from unstable.types import BASE, PlayerId


class Entrant(NamedTuple):
    """A player; of a version of a run its folder and number, of one with a section that."""

    player: PlayerId
    opponent: FixedOpponent | None = None
    root: Path | None = None
    version: int = 0


def config_of(
    source: str | None, words: Sequence[str], games: Sequence[str], fields: Mapping[str, Any]
) -> RunConfig:
    """That of all games: of `source`, else of the first run among the players, else `default`.

    With the named games, else its own.
    """
    runs = [root for root, _ in filter(None, map(_run_of, words))]
    name, undecided = source or "default", {}
    if source is None and runs:
        name, undecided = str(RunFolder(runs[0]).config), dict(UNDECIDED)
    named = [game_of(load(name), game) for game in games]
    chosen = {"games": [game.model_dump() for game in named]} if named else {}
    return load(name, {**undecided, **chosen, "eval.exploitability.games": [], **fields})


def entrants(config: RunConfig, words: Sequence[str]) -> list[Entrant]:
    """The players that the words name; raises `ConfigError` for mistakes, before a model is loaded.

    random, expert, rules, base, an opponent of the config, RUN[@VERSION], the folder of a LoRA
    adapter or of whole weights, or module:Class.
    """
    runs = [found for found in map(_run_of, words) if found is not None]
    roots = list(dict.fromkeys(root.resolve() for root, _ in runs))
    names = dict(zip(roots, names_of(roots) if roots else [], strict=True))
    bots = Counter(word.rpartition(":")[2] for word in words if _is_bot(word))
    found = [
        _entrant(config, word, names, bots[word.rpartition(":")[2]] > 1 and word) for word in words
    ]
    for name, count in Counter(each.player.name for each in found).items():
        if count > 1:
            raise ConfigError(f"PLAYER: {name!r} is there {count} times; name each player once")
    if len(found) < 2:
        raise ConfigError(f"PLAYER = {' '.join(words)}: give two players or more")
    for root in roots:
        _check_same(config, root)
    return found


def with_players(config: RunConfig, players: Sequence[Entrant]) -> RunConfig:
    """The config with these players alone."""
    opponents = [each.opponent for each in players if each.opponent is not None]
    alone = for_one_game(config, config.games[0], opponents)
    return alone.model_copy(update={"games": config.games})


def _run_of(word: str) -> tuple[Path, str] | None:
    """The run's folder and the version that a word names, if it does."""
    path, at, number = word.rpartition("@")
    is_version = bool(at) and (number.isdecimal() or number == "best")
    root = path if is_version else word
    if path_problem(root) is not None:
        return None
    place = Path(root).expanduser()
    return (place, number if is_version else "") if RunFolder(place).config.is_file() else None


def _is_bot(word: str) -> bool:
    """Return whether a word names a user's own player as module:Class."""
    module, colon, name = word.partition(":")
    return bool(colon) and all(map(str.isidentifier, [name, *module.split(".")]))


def _entrant(
    config: RunConfig, word: str, names: Mapping[Path, str], name_of_bot: str | bool
) -> Entrant:
    """The player that a word names; `name_of_bot` is what a bot is called, if not by its class."""
    if word == BASE.name or word in config.fixed_opponents:
        player, opponent, _ = player_of(config, word, "PLAYER")
        return Entrant(player, opponent)
    if (run := _run_of(word)) is not None:
        root, number = run
        wanted: Version | None = "best" if number else None
        if number.isdecimal():
            wanted = int(number[:9])
        version = checkpoint_of(RunFolder(root), wanted)
        place = str(RunFolder(root).checkpoint(version).resolve())
        name = f"{names[root.resolve()]}:{version}"  # RUN@N would name a policy
        served = CheckpointOpponent(path=place, name=name)
        return Entrant(PlayerId(served.key), served, root.resolve(), version)
    if path_problem(word) is None and holds_weights(Path(word).expanduser()):
        adapter = CheckpointOpponent(path=word)
        return Entrant(PlayerId(adapter.key), adapter)
    if _is_bot(word):
        bot = PythonOpponent(target=word, name=name_of_bot or None)
        return Entrant(PlayerId(bot.key), bot)
    player, opponent, _ = player_of(config, word, "PLAYER")  # which says what is wrong with it
    return Entrant(player, opponent)


def _check_same(config: RunConfig, root: Path) -> None:
    """Raise `ConfigError` for a run of another base, or one that is put its games otherwise."""
    own = load(str(RunFolder(root).config))
    for field in ("name", "quantize", "chat_template"):
        asked, its = (getattr(each.model, field) for each in (config, own))
        if asked != its:
            raise ConfigError(
                f"PLAYER = {str(root)!r}: its model.{field} is {shown(its)}, not {shown(asked)}; "
                "one base serves all players, give runs of one base"
            )
    for game in config.games:
        other = own.game_by_key.get(game.key)
        for field in _PUT if other is not None else ():
            if getattr(other, field) != getattr(game, field):
                raise ConfigError(
                    f"PLAYER = {str(root)!r}: its {field} of {game.key} is "
                    f"{shown(getattr(other, field))}, not {shown(getattr(game, field))}; give "
                    "runs that are put their games alike"
                )


_PUT = ("env", "args", "seats", "events", "prompt", "parser")
"""What of a game's section a model sees."""


def check_runs(players: Sequence[Entrant]) -> None:
    """Raise `ConfigError` where a joint policy correlation would be of more than runs."""
    roots = [each.root for each in players]
    if any(roots) and (None in roots or len(set(roots)) < len(roots)):
        raise ConfigError(
            "--jpc: it is of several runs, a version of each; leave the other players out"
        )


def seats_two_sides(games: Sequence[GameConfig]) -> None:
    """Raise `ConfigError` for a game in which nobody plays against anybody."""
    for game in games:
        if len(game.sides) < 2:
            raise ConfigError(
                f"{game.key} has a single side, which nobody plays against; leave it out"
            )
