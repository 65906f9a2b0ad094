"""One game played at the terminal, with a person or without, and saved in a folder of its own."""

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from unstable.collectors.play import contained, play_game
from unstable.collectors.players.base import Player
from unstable.collectors.players.kinds import player_class
from unstable.commands.play.casting import PERSON, Served, is_local_model, needs_model, served
from unstable.commands.play.supervised import Notes, supervised
from unstable.commands.play.table import Asked, Table
from unstable.commands.play.terminal import Terminal
from unstable.commands.prepare import prepare
from unstable.commands.session import (
    failures_logged,
    have_weights,
    make_folder,
    new_output,
    run_to_end,
)
from unstable.config import GameConfig, RunConfig, RunFailedError, one_line
from unstable.config.apart import apart
from unstable.games.check import check_constrained, check_env, check_game, settled
from unstable.games.game import Game
from unstable.models.base import check_model
from unstable.models.inspection import check_opponents
from unstable.records.environment import write_environment
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.games import game_body, game_line
from unstable.records.logs import logging_ours, logging_to
from unstable.records.text import command_line
from unstable.types import Answer, GameResult, GameSpec, Observation, Turn


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

    It is played in a process of its own, which game and players may do to as they like. Raises
    `ConfigError` for what cannot be played, before a model is loaded. What was played is saved
    before `RunFailedError` is raised for what failed, or what an interrupt raises.
    """
    kept, failed = _Kept(sitting), ""
    try:
        supervised(partial(_play_apart, sitting), kept.hear)
    except RunFailedError as error:
        failed = one_line(str(error))
        raise
    finally:
        kept.save(failed)


class _Begun(NamedTuple):
    """That the game's folder is made, named as the user sees it, and how the game is set up."""

    named: Path
    root: Path
    sitting: Sitting


class _Played(NamedTuple):
    """A turn."""

    turn: Turn
    stakes: float | None


class _Kept:
    """What has been told of a game, and its record."""

    def __init__(self, sitting: Sitting) -> None:
        self._begun = _Begun(Path(), Path(), sitting)
        self._turns = [*sitting.shared]
        self._stakes: float | None = None
        self._result: GameResult | None = None

    def hear(self, told: _Begun | _Played | GameResult) -> None:
        """Take in what the game's process tells."""
        match told:
            case _Begun():
                self._begun = told
            case _Played(turn, stakes):
                self._turns.append(turn)
                self._stakes = stakes
            case _:
                self._result = told

    def save(self, failed: str) -> None:
        """Write the record and say where, if a turn was played; else the folder goes.

        It stays where its log says what `failed`.
        """
        named, root, sitting = self._begun
        if len(self._turns) == len(sitting.shared):
            if self._result is not None:
                print("Nothing was played, so nothing is saved.")
            if root != Path() and not failed:
                shutil.rmtree(root, ignore_errors=True)
            return
        result = self._result or self._cut_off(failed or "interrupted")
        path = RunFolder(root).games("eval", sitting.version)
        path.parent.mkdir(exist_ok=True)
        with contextlib.closing(LineFile(path)) as file:
            file.append(game_line(game_body(result), sitting.version, None))
        # As they are: a path that is broken in two cannot be copied.
        print(f"saved: {named}\nto see it: {command_line('unstable', 'report', named)}")

    def _cut_off(self, why: str) -> GameResult:
        """The game as far as it went, of which its process can say no more."""
        spec = self._begun.sitting.spec
        nothing = [0.0] * len(spec.seats)
        return GameResult(
            spec=spec,
            turns=self._turns,
            payoffs=nothing,
            outcomes=nothing,
            forfeit=None,
            truncated=True,
            reason=why,
            seconds=sum(turn.seconds for turn in self._turns),
            stakes=self._stakes,
            fork=len(self._begun.sitting.shared),
        )


def _play_apart(sitting: Sitting, notes: Notes) -> None:
    """In the game's process: check, make the folder, play."""
    notes.at_work(sitting.game.key)
    model = needs_model(sitting.config, sitting.spec)
    apart(lambda: _check(sitting, model))
    sitting = _resolved(sitting, model)
    made = make_folder(_in_a_folder(sitting.config, sitting))
    folder = RunFolder(made.root.absolute())  # wherever a bot goes
    notes.tell(_Begun(made.root, folder.root, sitting))
    logging = logging_to if model else logging_ours
    with logging(folder, "play"), failures_logged(folder, "play"):
        write_environment(folder, sitting.command)
        if model:
            have_weights(sitting.config.model)
        run_to_end(_play(sitting, folder, notes, model))


def _check(sitting: Sitting, model: bool) -> None:
    config, game = sitting.config, sitting.game
    check_env(game, "games.0", "ask it by a URL: unstable serve RUN_DIR")
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
        config = sitting.config.updated({"games": [settled(sitting.game)]})
    spec = replace(sitting.spec, teams=config.games[0].teams)
    return dataclasses.replace(sitting, config=config, spec=spec)


def _in_a_folder(config: RunConfig, sitting: Sitting) -> RunConfig:
    """The config with the folder that the user names, or outputs/play-<game-players-time>."""
    if config.tracking.run_dir is not None:
        return config
    names = dict.fromkeys(s.player.name for s in sitting.spec.seats if s.player != PERSON)
    name = "-".join(["play", sitting.game.key.rpartition(":")[2], *names])
    return config.updated({"tracking.run_dir": str(new_output(name))})


async def _play(sitting: Sitting, folder: RunFolder, notes: Notes, model: bool) -> None:
    terminal, key, limit_s = Terminal(), sitting.game.key, sitting.game.turn_timeout
    if model:
        terminal.show(f"loading the model {sitting.config.model.name} ...")
        notes.at_work(f"the model {sitting.config.model.name}")
    async with served(sitting.config.with_ledgers(folder.endpoint), folder, model=model) as found:
        table = Table(terminal, sitting.spec, sitting.own, partial(_probabilities, sitting, found))
        terminal.show(_beginning(sitting, table))
        seated = table.seated([_player(sitting, found, notes, seat) for seat in _seats(sitting)])
        if sitting.own is not None:  # who takes the time that a person takes
            seated[sitting.own] = _Watched(seated[sitting.own], notes, key, inf, (key, limit_s))
        game = sitting.game
        if sitting.own is not None:
            game = game.updated({"timeout": inf})
        notes.at_work(key, limit_s)
        with contained():
            result = await play_game(
                sitting.spec,
                game,
                seated,
                sitting.config.seed,
                sitting.shared,
                told=lambda game, turn: notes.tell(_Played(turn, game.stakes)),
            )
        notes.tell(result)
        notes.at_work(key)
        table.show_end(result)
        if table.failure:
            raise RunFailedError(table.failure)
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # an interrupt, which is over by now
        raise asyncio.CancelledError


def _seats(sitting: Sitting) -> range:
    return range(len(sitting.spec.seats))


def _player(sitting: Sitting, found: Served, notes: Notes, place: int) -> Player | None:
    """Who plays at a seat, watched; None for the person."""
    seat, game = sitting.spec.seats[place], sitting.game
    if seat.player == PERSON:
        return None
    player = found.players.player(game, "eval", seat)
    limit_s = inf if is_local_model(sitting.config, seat.player) else game.turn_timeout
    who = f"{seat.player.name} (seat {place})"
    return _Watched(player, notes, who, limit_s, (game.key, game.turn_timeout))


@dataclass(frozen=True, slots=True)
class _Watched:
    """A player of whom the watching process knows when it is at work, and when the game is."""

    player: Player
    notes: Notes
    who: str
    limit_s: float
    game: tuple[str, float]

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        self.notes.at_work(self.who, self.limit_s)
        answer = await self.player.act(observation, game, seed)
        self.notes.at_work(*self.game)
        return answer


async def _probabilities(sitting: Sitting, found: Served, seat: int, asked: Asked) -> list[str]:
    return await found.probabilities(sitting.spec.seats[seat].player, asked)


def _beginning(sitting: Sitting, table: Table) -> str:
    """The game and who sits where."""
    seats = ", ".join(f"{table.name(seat)} at seat {seat}" for seat in _seats(sitting))
    line = f"{sitting.game.key}, seed {sitting.config.seed}: {seats}."
    if sitting.shared:
        line += f"\nTurns 1 to {len(sitting.shared)} are as they were recorded."
    return line if sitting.own is None else f"{line}\n? lists what can be asked; !quit ends."
