"""Clients' games: a client's session deals games against one opponent, and plays a seat or team.

Whole games are recorded and rated; a game that a client leaves is neither.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import count
from math import inf
from random import Random
from typing import Any, NamedTuple

from unstable.collectors.play import contained, play_game
from unstable.collectors.players.base import Player, Position
from unstable.commands.play.casting import PlayerSource
from unstable.commands.play.play import temperature
from unstable.config import FixedOpponent, GameConfig, RunConfig, one_line, shown
from unstable.config.opponents import RESERVED_NAMES
from unstable.engines.base import EngineDiedError
from unstable.games.services import lists_legal_moves, prompt_style
from unstable.league.ratings import Registry
from unstable.prompts import PromptStyle, shorten
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.games import game_body, game_line
from unstable.records.text import fixed
from unstable.serving.growing import ended
from unstable.studies.openenv.protocol import (
    ClientTurn,
    ClientView,
    ResetRequest,
    SessionError,
    SessionState,
)
from unstable.types import Answer, GameResult, GameSpec, Observation, PlayerId, SeatSpec
from unstable.types.seeds import derive_seed

log = logging.getLogger(__name__)
_MOST = 256  # sessions without a model
_MOST_FILES = 64  # open files of games


class ClientGames:
    """All clients' games: who plays them, their records and ratings."""

    def __init__(
        self,
        config: RunConfig,
        source: PlayerSource,
        opponents: Mapping[PlayerId, FixedOpponent | None],
        folder: RunFolder,
    ) -> None:
        self.config, self._source, self._opponents = config, source, opponents
        in_flight = config.actors.games_in_flight
        self.most = in_flight if isinstance(in_flight, int) else _MOST
        games = ", ".join(game.key for game in config.games)
        names = ", ".join(player.name for player in opponents)
        self.about: Mapping[str, str] = {
            "name": "unstable",
            "description": f"{games} against {names}",
        }
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Result: why the engine died."""
        self._styles = {game.key: prompt_style(game) for game in config.games}
        self._folder = folder
        folder.games("eval", 0).parent.mkdir(exist_ok=True)
        programs = [player for player, each in opponents.items() if each and each.is_program]
        self._registry = Registry(list(opponents), programs[0] if programs else None, pool_size=1)
        self._seeds = count()
        self._plays: Counter[int] = Counter()  # recorded plays of a seed
        self._files: dict[int, LineFile] = {}  # by version, the last one used last

    def open(self) -> "ClientSession":
        """Return a new client's session."""
        return ClientSession(self)

    def client(self, spec: GameSpec, own: int) -> "_Client":
        """Return the player of a client's seat in a game."""
        return _Client(spec, own, self._styles[spec.env])

    def close(self) -> None:
        """Close the files of games."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def deal(self, asked: ResetRequest) -> tuple[GameSpec, GameConfig, int]:
        """Return a client's next game with its seat; raises `SessionError` for a mistake.

        The seed is the game's number, as in evaluations: it decides the answers of opponents too.
        """
        seed = next(self._seeds) if asked.seed is None else asked.seed
        games, rng = self.config.game_by_key, Random(derive_seed(self.config.seed, "deal", seed))
        game = _named("game", games, asked.game, self.config.games[0].key)
        drawn = rng.choice(list(self._opponents)).name, rng.randrange(game.seats)
        by_name = {player.name: player for player in self._opponents}
        player = _named("opponent", by_name, asked.opponent, drawn[0])
        seat = drawn[1] if asked.seat is None else asked.seat
        if seat >= game.seats:
            why = f"seat = {seat}: {game.key} has seats 0 to {game.seats - 1}"
            raise SessionError("VALIDATION_ERROR", why)
        if asked.player in {*by_name, *self.config.fixed_opponents, *RESERVED_NAMES}:
            why = f"player = {shown(asked.player)}: another player's name; choose another"
            raise SessionError("VALIDATION_ERROR", why)
        warmth = temperature(self.config, None, self._opponents[player])
        seats = [SeatSpec(player=player, temperature=warmth)] * game.seats
        for place in next((team for team in game.teams if seat in team), (seat,)):
            seats[place] = SeatSpec(player=PlayerId(asked.player), temperature=1.0)
        spec = GameSpec(
            game_id=seed,
            purpose="eval",
            env=game.key,
            seed=derive_seed(self.config.seed, "game", seed),
            seats=tuple(seats),
            teams=game.teams,
        )
        return spec, game, seat

    async def play(self, spec: GameSpec, game: GameConfig, own: int, client: Player) -> GameResult:
        """Play a client's game, and record and rate it; cancel it if the client leaves."""
        players = [
            client if seat == spec.seats[own] else self._source.players.player(game, "eval", seat)
            for seat in spec.seats
        ]
        game = game.updated({"timeout": inf})  # a client may take its time
        try:
            with contained():
                result = await play_game(spec, game, players, self.config.seed)
        except EngineDiedError as error:
            if not self.died.done():
                self.died.set_result(str(error))
            raise
        self._record(result)
        self._registry.know(spec.seats[own].player)
        self._registry.record([result])
        return result

    def _record(self, result: GameResult) -> None:
        """Write a game, the n-th of its seed to the file of version n, counted from 0."""
        version = self._plays[result.spec.game_id]
        self._plays[result.spec.game_id] += 1
        file = self._files.pop(version, None) or LineFile(self._folder.games("eval", version))
        self._files[version] = file
        if len(self._files) > _MOST_FILES:
            self._files.pop(next(iter(self._files))).close()
        file.append(game_line(game_body(result), version, None))

    def lines(self) -> list[str]:
        """Return lines with the results and TrueSkill ratings of all players, best first."""
        rows = sorted(self._registry.ratings(), key=lambda row: -row.mu)
        return [
            f"{row.player.name}: {row.games:,} games, {row.wins}-{row.draws}-{row.losses}, rating "
            f"{fixed(row.mu, 1)} (sigma {fixed(row.sigma, 1)})"
            for row in rows
            if row.games
        ]


def _named(field: str, known: Mapping[str, Any], asked: str | None, default: str) -> Any:
    name = default if asked is None else asked
    if name not in known:
        why = f"{field} = {shown(name)}: unknown; use one of {', '.join(known)}"
        raise SessionError("VALIDATION_ERROR", why)
    return known[name]


class _Client:
    """The player of a client's seats: `turns` are its views of the game, `answers` its messages."""

    def __init__(self, spec: GameSpec, own: int, style: PromptStyle) -> None:
        self._style = style
        others = [seat.player.name for seat in spec.seats if seat != spec.seats[own]]
        self.view = partial(ClientView, game=spec.env, seat=own, opponent=(others or [""])[0])
        self.turns: asyncio.Queue[ClientView] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the client's answer, read like the reply of an endpoint's model."""
        legal = game.legal_moves() if lists_legal_moves(game.config) else None
        messages = self._style.chat(observation)
        seat = observation.seat  # of its team
        self.turns.put_nowait(self.view(messages=messages, legal_moves=legal, seat=seat))
        text, cut = shorten(await self.answers.get())
        action = self._style.read_free_action(text)
        return Answer(
            observation=self._style.render(observation),
            text=text,
            action=action.text,
            formatted=action.formatted,
            cut_characters=cut,
        )


class _GameInPlay(NamedTuple):
    """A client's game: its task, the client's player, and the client's name of it."""

    spec: GameSpec
    own: int
    client: _Client
    playing: asyncio.Task[GameResult]
    name: str | None


class ClientSession:
    """One client's session."""

    def __init__(self, games: ClientGames) -> None:
        self._games = games
        self._game: _GameInPlay | None = None  # the last one
        self._steps = 0

    async def reset(self, asked: ResetRequest) -> ClientTurn:
        await self.close()
        spec, game, own = self._games.deal(asked)
        client = self._games.client(spec, own)
        playing = asyncio.create_task(self._games.play(spec, game, own, client))
        self._game, self._steps = _GameInPlay(spec, own, client, playing, asked.episode_id), 0
        return await self._next(self._game)

    async def step(self, message: str) -> ClientTurn:
        game = self._game
        if game is None or game.playing.done():
            raise SessionError("EXECUTION_ERROR", "no game in play; send reset first")
        self._steps += 1
        game.client.answers.put_nowait(message)
        return await self._next(game)

    def state(self) -> SessionState:
        if (game := self._game) is None:
            return SessionState(episode_id=None, step_count=0, game_id=None)
        number = game.spec.game_id
        return SessionState(
            episode_id=game.name or str(number), step_count=self._steps, game_id=number
        )

    async def close(self) -> None:
        if self._game is not None:
            await ended(self._game.playing)

    async def _next(self, game: _GameInPlay) -> ClientTurn:
        """Return the client's next turn, or the end of the game.

        Raises `SessionError` if the game fails. Cancelling it leaves the game in play.
        """
        turn = asyncio.ensure_future(game.client.turns.get())
        try:
            await asyncio.wait([game.playing, turn], return_when=asyncio.FIRST_COMPLETED)
            if turn.done():
                return ClientTurn(turn.result())
        finally:
            turn.cancel()
        if error := game.playing.exception():
            log.error("a client's game failed", exc_info=error)
            raise SessionError("EXECUTION_ERROR", one_line(f"the game failed: {error}"))
        result = game.playing.result()
        told = {
            "outcomes": result.outcomes,
            "payoffs": result.payoffs,
            "forfeit": result.forfeit,
            "truncated": result.truncated,
            "reason": result.reason,
        }
        last = game.client.view(messages=[], legal_moves=None, result=told)
        return ClientTurn(last, reward=result.outcomes[game.own], done=True)
