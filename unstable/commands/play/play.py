"""One game at the terminal: a person against a checkpoint, a scripted player or an endpoint.

The game is saved in its own folder.
"""

import asyncio
import contextlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from unstable.collectors.play import contained, play_game
from unstable.collectors.players import player_class
from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.play.casting import (
    FEW,
    PERSON,
    for_games,
    game_of,
    is_local_model,
    player_of,
    served,
)
from unstable.commands.play.table import PlayTable
from unstable.commands.play.terminal import Terminal
from unstable.commands.prepare import prepare
from unstable.commands.session import at_work, have_weights, make_folder, run_to_end
from unstable.config import (
    ConfigError,
    FixedOpponent,
    GameConfig,
    RunConfig,
    RunFailedError,
    load,
    one_line,
    shown,
)
from unstable.games.check import check_constrained, check_env, check_game, settled
from unstable.games.game import Game
from unstable.models.base import check_model
from unstable.models.inspection import check_opponents
from unstable.planning.resolve import UNDECIDED
from unstable.records.environment import write_environment
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.games import game_body, game_line
from unstable.records.text import command_line
from unstable.types import GameResult, GameSpec, SeatSpec, Turn


class PlayOptions(NamedTuple):
    """Command-line options in addition to config fields; None if not given."""

    game: str | None = None
    seat: int | None = None
    opponent: str | None = None
    temperature: float | None = None


def play(
    root: Path | None,
    version: Version | None,
    config: str | None,
    choices: PlayOptions,
    fields: Mapping[str, Any],
    *,
    command: str,
) -> None:
    """Play one game against a version of a run, or without a run against `choices.opponent`.

    `root` is the run's folder, `version` None its newest version. Without a run the settings come
    from `config`. Raises `ConfigError` for a mistake, before a model is loaded.
    """
    if root is not None and config is not None:
        raise ConfigError("--config: conflicts with RUN_DIR and its config; remove one of them")
    word, source = choices.opponent or "expert", config or "default"
    undecided: Mapping[str, Any] = {}
    if root is not None:
        newest = checkpoint_of(RunFolder(root), version)
        source, undecided = str(RunFolder(root).config), UNDECIDED
        word = choices.opponent or f"{root}@{newest}"
    given = with_game(source, game_of(load(source), choices.game), undecided, fields)
    (game, *_), own = given.games, choices.seat or 0
    if not 0 <= own < game.seats:
        raise ConfigError(
            f"--seat = {own}: {game.key} has seats 0 to {game.seats - 1}; choose one of them, or "
            "set games.0.seats"
        )
    player, opponent, current = player_of(given, word, "--opponent")
    warmth = temperature(given, choices.temperature, opponent)
    seats = [SeatSpec(player=player, temperature=warmth)] * game.seats
    seats[own] = SeatSpec(player=PERSON, temperature=1.0)
    chosen = for_games(given, [game], [opponent] if opponent and len(seats) > 1 else [])
    seated = tuple(seats)
    spec = GameSpec(game_id=0, purpose="eval", env=game.key, seed=given.seed, seats=seated)
    sit(Sitting(config=chosen, spec=spec, version=current, command=command))


def with_game(
    source: str, game: GameConfig, undecided: Mapping[str, Any], fields: Mapping[str, Any]
) -> RunConfig:
    """Return a config with one game and a random seed; `undecided` resets fields of a run."""
    alone = {"games": [game.model_dump()], "eval.exploitability.games": []}
    seed = secrets.randbelow(2**31)
    return load(source, {**undecided, **FEW, **alone, "seed": seed, **fields})


def temperature(config: RunConfig, given: float | None, opponent: FixedOpponent | None) -> float:
    """Return an opponent's temperature: `given`, else its own, else evaluation's first one."""
    if given is not None and given < 0:
        raise ConfigError(f"--temperature = {shown(given)}: must be >= 0; use 0 for greedy play")
    own = getattr(opponent, "temperature", None)
    chosen = own if given is None else given
    return config.eval.temperature[0] if chosen is None else chosen


class Sitting(NamedTuple):
    """A game that is about to be played; its config has only this game and its players."""

    config: RunConfig
    spec: GameSpec
    version: int  # version in the name of the games file; 0 without a run
    command: str
    option: str = "--opponent"  # the option that names the other players
    shared: Sequence[Turn] = ()  # turns already played

    @property
    def game(self) -> GameConfig:
        """Config of the game."""
        return self.config.game_by_key[self.spec.env]

    @property
    def own(self) -> int | None:
        """Seat of the person; None if no person plays."""
        players = [seat.player for seat in self.spec.seats]
        return players.index(PERSON) if PERSON in players else None


def sit(sitting: Sitting) -> None:
    """Play the game and print where it is saved; a game without new turns is not saved.

    Raises `ConfigError` for a game that cannot be played, before a model is loaded. Saves the turns
    before it raises `RunFailedError` for a failure, or an interrupt's exception.
    """
    model, failed = any(is_local_model(sitting.config, s.player) for s in sitting.spec.seats), ""
    _check(sitting, model)
    sitting = _resolved(sitting, model)
    names = dict.fromkeys(s.player.name for s in sitting.spec.seats if s.player != PERSON)
    name = "-".join(["play", sitting.game.key.rpartition(":")[2], *names])
    named = make_folder(sitting.config, called=name).root
    folder = RunFolder(named.absolute())  # a bot may change the directory
    kept = _Kept(sitting, [*sitting.shared])
    try:
        with at_work(folder, "play", light=not model):
            write_environment(folder, sitting.command)
            if model:
                have_weights(sitting.config.model)
            run_to_end(_play(sitting, folder, kept, model))
    except RunFailedError as error:
        failed = one_line(str(error))
        raise
    finally:
        kept.save(named, folder, failed)


@dataclass(slots=True)
class _Kept:
    """Collects the turns of a game and writes its record."""

    sitting: Sitting
    turns: list[Turn]
    stakes: float | None = None
    result: GameResult | None = None

    def add(self, game: Game, turn: Turn) -> None:
        """Append a turn."""
        self.turns.append(turn)
        self.stakes = game.stakes

    def save(self, named: Path, folder: RunFolder, failed: str) -> None:
        """Write the record and print its path if a turn was played, else delete the folder.

        The folder stays if the game `failed`, since its log has the details.
        """
        version, shared = self.sitting.version, len(self.sitting.shared)
        if len(self.turns) == shared:
            if self.result is not None:
                print("No turn was played; nothing is saved.")
            if not failed:
                shutil.rmtree(folder.root, ignore_errors=True)
            return
        result = self.result or self._cut_off(failed or "interrupted")
        path = folder.games("eval", version)
        path.parent.mkdir(exist_ok=True)
        with contextlib.closing(LineFile(path)) as file:
            file.append(game_line(game_body(result), version, None))
        # Unwrapped, since a path on two lines cannot be copied.
        print(f"saved: {named}\nto see it: {command_line('unstable', 'report', named)}")

    def _cut_off(self, why: str) -> GameResult:
        """Return the record of a game that did not end."""
        nothing = [0.0] * len(self.sitting.spec.seats)
        return GameResult(
            spec=self.sitting.spec,
            turns=self.turns,
            payoffs=nothing,
            outcomes=nothing,
            forfeit=None,
            truncated=True,
            reason=why,
            seconds=sum(turn.seconds for turn in self.turns),
            stakes=self.stakes,
            fork=len(self.sitting.shared),
        )


def _check(sitting: Sitting, model: bool) -> None:
    config, game = sitting.config, sitting.game
    check_env(game, "games.0", "query the model by URL: unstable serve RUN_DIR")
    check_game(game, "games.0")
    for opponent in config.opponents.fixed:
        player_class(opponent).check(opponent, game, sitting.option)
    if model:
        check_model(config.model)
        check_opponents(config)
        if config.eval.constrained:
            check_constrained(game, "games.0")


def _resolved(sitting: Sitting, model: bool) -> Sitting:
    """Return the sitting with a resolved config, and the game's teams."""
    if model:
        config = prepare(sitting.config, learner=False).config
    else:
        config = sitting.config.updated({"games": [settled(sitting.game)]})
    spec = replace(sitting.spec, teams=config.games[0].teams)
    return sitting._replace(config=config, spec=spec)


async def _play(sitting: Sitting, folder: RunFolder, kept: _Kept, model: bool) -> None:
    terminal, game = Terminal(), sitting.game
    if model:
        terminal.show(f"loading the model {sitting.config.model.name} ...")
    async with served(sitting.config.with_ledgers(folder.endpoint), folder, model=model) as found:
        table = PlayTable(terminal, sitting.spec, sitting.own, found.probabilities)
        terminal.show(_beginning(sitting, table))
        players = [
            table.seated(
                place, None if seat.player == PERSON else found.players.player(game, "eval", seat)
            )
            for place, seat in enumerate(sitting.spec.seats)
        ]
        if sitting.own is not None:  # a person has no time limit
            game = game.updated({"timeout": inf})
        with contained():
            kept.result = await play_game(
                sitting.spec, game, players, sitting.config.seed, sitting.shared, told=kept.add
            )
        table.show_end(kept.result)
        if table.failure:
            raise RunFailedError(table.failure)
    task = asyncio.current_task()
    if task is not None and task.cancelling():  # an interrupt that ended the game
        raise asyncio.CancelledError


def _beginning(sitting: Sitting, table: PlayTable) -> str:
    """Return a line with the game and its seats, then remarks."""
    places = range(len(sitting.spec.seats))
    seats = ", ".join(f"{table.name(seat)} at seat {seat}" for seat in places)
    line = f"{sitting.game.key}, seed {sitting.config.seed}: {seats}."
    if sitting.shared:
        line += f"\nTurns 1 to {len(sitting.shared)} are replayed from the record."
    return line if sitting.own is None else f"{line}\n? lists the commands; !quit ends the game."
