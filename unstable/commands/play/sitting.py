"""One game played at the terminal, with a person or without, and saved in a folder of its own."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from unstable.collectors.play import contained, play_game
from unstable.collectors.players.kinds import player_class
from unstable.commands.play.casting import PERSON, Served, needs_model, served
from unstable.commands.play.table import Asked, Table
from unstable.commands.play.terminal import Terminal
from unstable.commands.prepare import prepare
from unstable.commands.session import (
    failures_logged,
    gone_after,
    make_folder,
    new_output,
    run_to_end,
)
from unstable.config import GameConfig, RunConfig, RunFailedError
from unstable.config.apart import apart
from unstable.games.check import check_constrained, check_game, settled
from unstable.models.base import check_model
from unstable.models.inspection import check_opponents
from unstable.records.environment import write_environment
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.games import game_record
from unstable.records.logs import logging_ours, logging_to
from unstable.types import GameResult, GameSpec, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitting:
    """A game that is about to be played; its config has this game and its players alone."""

    config: RunConfig
    spec: GameSpec
    version: int  # that the file of games is named by: the played run's, or 0
    command: str
    option: str = "--opponent"  # that names the other players
    shared: Sequence[Turn] = ()  # that have been played already

    @property
    def game(self) -> GameConfig:
        """The game's config."""
        return self.config.game_by_key[self.spec.env]

    @property
    def own(self) -> int | None:
        """The person's seat."""
        players = [seat.player for seat in self.spec.seats]
        return players.index(PERSON) if PERSON in players else None


def sit(sitting: Sitting) -> None:
    """Play the game and say where it is saved; a game in which nothing was played is not.

    Raises `ConfigError` for what cannot be played, before a model is loaded. What was played is
    saved before `RunFailedError` is raised for a player that failed, or what an interrupt raises.
    """
    model = needs_model(sitting.config, sitting.spec)
    apart(lambda: _check(sitting, model))
    sitting = _resolved(sitting, model)
    folder = make_folder(_in_a_folder(sitting.config, sitting))
    named, folder = folder.root, RunFolder(folder.root.absolute())  # wherever a bot goes
    logging = logging_to if model else logging_ours
    with (
        gone_after(folder.root, unless=folder.game_files),
        logging(folder, "play"),
        failures_logged(folder, "play"),
    ):
        write_environment(folder, sitting.command)
        run_to_end(_play(sitting, folder, named, model))


def _check(sitting: Sitting, model: bool) -> None:
    config, game = sitting.config, sitting.game
    check_game(game, "games.0")
    for opponent in config.opponents.fixed:
        player_class(opponent).check(opponent, game, sitting.option)
    if model:
        check_model(config.model)
        check_opponents(config)
        if config.eval.constrained:
            check_constrained(game, "games.0")


def _resolved(sitting: Sitting, model: bool) -> Sitting:
    """With nothing left to be decided, and the game's teams."""
    if model:
        config = prepare(sitting.config, learner=False).config
    else:
        config = sitting.config.model_copy(update={"games": [settled(sitting.game)]})
    spec = replace(sitting.spec, teams=config.games[0].teams)
    return replace(sitting, config=config, spec=spec)


def _in_a_folder(config: RunConfig, sitting: Sitting) -> RunConfig:
    """The config with the folder that the user names, or outputs/play-<game-players-time>."""
    if config.tracking.run_dir is not None:
        return config
    names = dict.fromkeys(s.player.name for s in sitting.spec.seats if s.player != PERSON)
    name = "-".join(["play", sitting.game.key.rpartition(":")[2], *names])
    tracking = config.tracking.model_copy(update={"run_dir": str(new_output(name))})
    return config.model_copy(update={"tracking": tracking})


async def _play(sitting: Sitting, folder: RunFolder, named: Path, model: bool) -> None:
    terminal = Terminal()
    if model:
        terminal.show(f"loading the model {sitting.config.model.name} ...")
    async with served(sitting.config.with_ledgers(folder.endpoint), folder, model=model) as found:
        table = Table(terminal, sitting.spec, sitting.own, partial(_chances, sitting, found))
        terminal.show(_beginning(sitting, table))
        players = [
            None if seat.player == PERSON else found.cast.player(sitting.game, seat, "eval")
            for seat in sitting.spec.seats
        ]
        # A person takes the time that a person takes.
        game = sitting.game if sitting.own is None else _untimed(sitting.game)
        seated, seed = table.seated(players), sitting.config.seed
        with contained():
            result = await play_game(sitting.spec, game, seated, seed, sitting.shared)
        table.show_end(result)
        if _save(sitting, folder, result, terminal):
            # As they are: a path that is broken in two cannot be copied.
            print(f"saved: {named}\nto see it: unstable report {shlex.quote(str(named))}")
        if table.failure:
            raise RunFailedError(table.failure)
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # an interrupt, which is over by now
        raise asyncio.CancelledError


async def _chances(sitting: Sitting, found: Served, seat: int, asked: Asked) -> list[str]:
    return await found.chances(sitting.spec.seats[seat].player, asked)


def _untimed(game: GameConfig) -> GameConfig:
    return game.model_copy(update={"timeout": inf})


def _beginning(sitting: Sitting, table: Table) -> str:
    """The game and who sits where."""
    seats = ", ".join(
        f"{table.name(seat)} at seat {seat}" for seat in range(len(sitting.spec.seats))
    )
    line = f"{sitting.game.key}, seed {sitting.config.seed}: {seats}."
    if sitting.shared:
        line += f"\nTurns 1 to {len(sitting.shared)} are as they were recorded."
    return line if sitting.own is None else f"{line}\n? lists what can be asked; !quit ends."


def _save(sitting: Sitting, folder: RunFolder, result: GameResult, terminal: Terminal) -> bool:
    if len(result.turns) == len(sitting.shared):
        terminal.show("Nothing was played, so nothing is saved.")
        return False
    path = folder.games("eval", sitting.version)
    path.parent.mkdir(exist_ok=True)
    file = LineFile(path)
    file.write(game_record(result, [], sitting.version, None))
    file.close()
    return True
