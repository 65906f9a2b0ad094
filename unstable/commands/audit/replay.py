"""Replay of a recorded game: to audit it, or to continue from a turn with other players."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from unstable.commands.audit.audit import Audit, answerer, not_again
from unstable.commands.finished import check_adapter, from_folder
from unstable.commands.play.casting import FEW, PERSON, as_opponent, for_games, player_of, served
from unstable.commands.play.found import FoundGame
from unstable.commands.play.play import Sitting, sit, temperature, with_game
from unstable.commands.play.terminal import Terminal
from unstable.commands.prepare import prepare
from unstable.commands.session import have_weights, run_to_end
from unstable.config import ConfigError, FixedOpponent
from unstable.games.check import settled
from unstable.models.base import check_model
from unstable.planning.resolve import UNDECIDED
from unstable.report.games import point_of_view
from unstable.types import BASE, PlayerId, SeatSpec

ME = "me"
"""The person at the terminal, in `--with`."""


class Again(NamedTuple):
    """Players that answer again, and reasons why others do not."""

    players: dict[PlayerId, PlayerId]  # by recorded player, the player that answers now
    opponents: list[FixedOpponent]
    models: bool  # whether a local model is among them
    reasons: list[str]


def audit(found: FoundGame) -> bool:
    """Play a recorded game again and show it; return whether it agrees with the record.

    Writes no files. Raises `ConfigError` for a game that no longer exists.
    """
    terminal, again = Terminal(), _again(found)
    chosen = for_games(found.config, [settled(found.game)], again.opponents)
    if again.models:
        undecided = {**UNDECIDED, **FEW, "actors.engine": "embedded"}
        whole = from_folder(found.folder, undecided)
        chosen = prepare(for_games(whole, [found.game], again.opponents), learner=False).config
        have_weights(chosen.model)
    terminal.show(found.title)

    async def main() -> Audit:
        async with served(chosen, found.folder, model=again.models) as players:
            made = Audit(found=found, served=players, again=again.players, terminal=terminal)
            await made.run()
            return made

    made = run_to_end(main())
    terminal.show()
    for reason in again.reasons:
        terminal.show(f"not repeated: {reason}")
    if made.differences:
        turn, what = made.differences[0]
        where = f"turn {turn + 1}" if turn < len(found.result.turns) else "the end"
        terminal.show(f"The replay differs at {where}: {what}")
        return False
    terminal.show(_agreement(made))
    return True


def _agreement(made: Audit) -> str:
    """Return a line on the agreement, and on the number of turns that were sampled again."""
    result = made.found.result
    outcomes = ", ".join(f"{outcome:+g}" if outcome else "0" for outcome in result.outcomes)
    line = f"Identical: {len(result.turns)} turns, outcome {outcomes}"
    count = made.same + len(made.rounded)
    if not count:
        return line
    line += f"; {made.same} of {count} model turns sampled the same tokens again"
    if made.rounded:
        line += f", the others differ by rounding ({max(made.rounded):.1g} at most)"
    return line


def _again(found: FoundGame) -> Again:
    """Return which of the game's players answer again."""
    players: dict[PlayerId, PlayerId] = {}
    opponents: list[FixedOpponent] = []
    reasons, models = [], False
    for player in dict.fromkeys(answerer(found.result, turn) for turn in found.result.turns):
        opponent = found.config.fixed_opponents.get(player.name)
        local = player == BASE or player.version is not None
        local |= opponent is not None and opponent.adapter_folder is not None
        if why := _no_model(found, player) if local else not_again(player, opponent):
            reasons.append(f"{player}: {why}")
            continue
        if player.version is not None:
            opponent = as_opponent(found.folder, player.version)
        players[player] = BASE if opponent is None else PlayerId(opponent.key)
        opponents += [] if opponent is None else [opponent]
        models |= local
    for turn in found.result.turns:
        is_cut = turn.answer.sampled is not None and turn.answer.sampled.prompt_cut
        if is_cut and answerer(found.result, turn) not in players:
            reasons.append(f"turn {turn.index + 1}: its prompt was cut to fit, and is not compared")
    if found.result.fork and not found.result.spec.member:
        reasons.append(f"turns 1 to {found.result.fork}: played in another game")
    return Again(players, opponents, models, reasons)


def _no_model(found: FoundGame, player: PlayerId) -> str | None:
    """Return why a local model cannot answer again; None if it can."""
    if found.config.actors.engine != "embedded":
        return f"the engine was {found.config.actors.engine}, which repeats only up to rounding"
    if player.version is not None and player.version not in found.folder.versions():
        return f"its checkpoint is no longer in {found.folder.checkpoints}"
    opponent = found.config.fixed_opponents.get(player.name)
    adapter = None if opponent is None else opponent.adapter_folder
    if player.version is not None:
        adapter = found.folder.checkpoint(player.version)
    if adapter is not None and not adapter.is_dir():
        return f"its adapter is no longer in {adapter}"
    try:
        check_model(found.config.model)
        if adapter is not None:
            check_adapter(adapter)
    except ConfigError as error:
        return str(error)
    return None


class Change(NamedTuple):
    """Changes from a turn on; None keeps the value of the record."""

    turn: int  # the first one to play, counted from 1 as in the viewer
    player: str = ME
    seat: int | None = None
    opponent: str | None = None
    temperature: float | None = None


def explore(found: FoundGame, change: Change, fields: Mapping[str, Any], command: str) -> None:
    """Play a recorded game up to a turn, then continue with another player at one seat.

    Saves the game as `play` does. Raises `ConfigError` for a mistake, before a model is loaded.
    """
    result, turns = found.result, len(found.result.turns)
    if not 1 <= change.turn <= turns:
        raise ConfigError(f"--from = {change.turn}: out of range; use 1 to {turns}")
    own = point_of_view(result) if change.seat is None else change.seat
    if own >= found.game.seats:
        raise ConfigError(f"--seat = {own}: out of range; use 0 to {found.game.seats - 1}")
    given = with_game(str(found.folder.config), found.game, UNDECIDED, fields)
    if given.games[0].key != result.spec.env:
        raise ConfigError("games.0: a continued game keeps its env and name; leave them out")
    seats, opponents = [], []
    for place, seat in enumerate(result.spec.seats):
        if place == own and change.player == ME:
            seats.append(SeatSpec(player=PERSON, temperature=1.0))
            continue
        player, opponent = _sits(found, change, place == own, seat.player)
        is_new = (change.player if place == own else change.opponent) is not None
        warmth = temperature(given, change.temperature, opponent)
        if not is_new and change.temperature is None:
            warmth = seat.temperature
        votes, best_of = (1, 1) if is_new else (seat.votes, seat.best_of)
        seats.append(SeatSpec(player=player, temperature=warmth, votes=votes, best_of=best_of))
        opponents += [] if opponent is None else [opponent]
    spec = replace(
        result.spec,
        game_id=0,
        purpose="eval",
        seats=tuple(seats),
        member=0,
        branches=0,
        opening=0,
        opener=None,
    )
    sit(
        Sitting(
            config=for_games(given, given.games[:1], opponents),
            spec=spec,
            version=found.result.version,
            command=command,
            option="--with",
            shared=result.turns[: change.turn - 1],
        )
    )


def _sits(
    found: FoundGame, change: Change, is_own: bool, before: PlayerId
) -> tuple[PlayerId, FixedOpponent | None]:
    """Return who continues at a seat: the command's player, or else the recorded one."""
    word = change.player if is_own else change.opponent
    if word is not None:
        option = "--with" if is_own else "--opponent"
        return player_of(found.config, word, option)[:2]
    if before == PERSON:
        raise ConfigError("--opponent is missing: a person played there; name a new player")
    if before.version is None:
        return player_of(found.config, before.name, "--opponent")[:2]
    opponent = as_opponent(found.folder, before.version)
    return PlayerId(opponent.key), opponent
