"""A person against a checkpoint, a scripted player or an endpoint, in one game at the terminal."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.finished import Version, checkpoint_of
from unstable.commands.play.casting import FEW, PERSON, for_one_game, game_of, player_of
from unstable.commands.play.sitting import Sitting, sit
from unstable.config import ConfigError, FixedOpponent, GameConfig, RunConfig, load, shown
from unstable.planning.resolve import UNDECIDED
from unstable.records.folder import RunFolder
from unstable.types import GameSpec, PlayerId, SeatSpec


class Choices(NamedTuple):
    """What the command line says besides fields of the config; None: nothing."""

    game: str | None = None
    seat: int | None = None
    opponent: str | None = None
    temperature: float | None = None


def play(
    root: Path | None,
    version: Version | None,
    config: str | None,
    choices: Choices,
    fields: Mapping[str, Any],
    *,
    command: str,
) -> None:
    """Play one game against a version of a run, or without a run against `choices.opponent`.

    `root` is the run's folder, its newest version that of None. Without a run the settings are
    those of `config`. Raises `ConfigError` for a mistake, before a
    model is loaded.
    """
    if root is not None and config is not None:
        raise ConfigError("RUN_DIR and --config: give one of them; a run has a config of its own")
    word, source, settled = choices.opponent or "expert", config or "default", dict(FEW)
    if root is not None:
        newest = checkpoint_of(RunFolder(root), version)
        source, settled = str(RunFolder(root).config), {**UNDECIDED, **FEW}
        word = choices.opponent or f"{root}@{newest}"
    game = game_of(load(source), choices.game)
    given = load(
        source,
        {
            **settled,
            "games": [game.model_dump()],
            "eval.exploitability.games": [],
            "seed": secrets.randbelow(2**31),
            **fields,
        },
    )
    player, opponent, current = player_of(given, word, "--opponent")
    seats = _seats(given, given.games[0], choices, player, opponent)
    opponents = [opponent] if opponent is not None and len(seats) > 1 else []
    chosen = for_one_game(given, given.games[0], opponents)
    spec = GameSpec(game_id=0, purpose="eval", env=given.games[0].key, seed=given.seed, seats=seats)
    sit(Sitting(config=chosen, spec=spec, version=current, command=command))


def _seats(
    config: RunConfig,
    game: GameConfig,
    choices: Choices,
    player: PlayerId,
    opponent: FixedOpponent | None,
) -> tuple[SeatSpec, ...]:
    """The person's seat, and the same opponent at all others."""
    own = choices.seat or 0
    if not 0 <= own < game.seats:
        raise ConfigError(
            f"--seat = {own}: {game.key} is played at the seats 0 to {game.seats - 1}; give one of "
            "them, or set games.0.seats"
        )
    other = SeatSpec(player=player, temperature=temperature(config, choices.temperature, opponent))
    person = SeatSpec(player=PERSON, temperature=1.0)
    return tuple(person if seat == own else other for seat in range(game.seats))


def temperature(config: RunConfig, given: float | None, opponent: FixedOpponent | None) -> float:
    """An opponent's: as it is given, else its own, else the first of the evaluation."""
    if given is not None and given < 0:
        raise ConfigError(f"--temperature = {shown(given)}: give 0 (greedy) or a positive number")
    own = getattr(opponent, "temperature", None)
    chosen = own if given is None else given
    return config.eval.temperature[0] if chosen is None else chosen
