"""Server of games as an OpenEnv environment: any trainer plays against a run's versions.

A client's session deals games, each against one opponent, and plays one seat. Every game is
recorded in the server's own folder and rated.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import count
from math import inf
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from unstable.collectors.play import contained, play_game
from unstable.collectors.players import player_class
from unstable.collectors.players.base import LeftError, Player, Position
from unstable.commands.finished import Version, check_adapter, checkpoint_of
from unstable.commands.play.casting import (
    PlayerSource,
    as_opponent,
    for_games,
    is_local_model,
    player_of,
    served,
)
from unstable.commands.play.play import temperature
from unstable.commands.prepare import Resolved, prepare, show_plan
from unstable.commands.serve import ServeOptions, client_token
from unstable.commands.session import at_work, have_weights, make_folder, run_to_end, starting
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
from unstable.engines.base import EngineDiedError
from unstable.games.check import check_env, check_game, settled
from unstable.games.services import lists_legal_moves, prompt_style
from unstable.league.ratings import Registry
from unstable.models.base import check_model
from unstable.planning.resolve import UNDECIDED
from unstable.prompts import shorten
from unstable.records.environment import write_environment
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.games import game_body, game_line
from unstable.records.text import fixed
from unstable.studies.openenv.protocol import (
    ClientTurn,
    ClientView,
    ResetRequest,
    SessionError,
    SessionState,
    openenv_application,
)
from unstable.types import Answer, GameResult, GameSpec, Observation, PlayerId, SeatSpec
from unstable.types.seeds import derive_seed

if TYPE_CHECKING:
    from unstable.serving.server import Server

log = logging.getLogger(__name__)
LEFT = "the client has left"
_MOST = 256  # sessions without a model


def serve_games(
    root: Path | None,
    versions: Sequence[Version | None],
    config: str | None,
    words: Sequence[str],
    options: ServeOptions,
    fields: Mapping[str, Any],
    command: str,
) -> None:
    """Serve the games of a run or a config until an interrupt; then print results and ratings.

    Opponents are `versions` of the run, None for the newest, and `words`, as in `unstable play`.
    Raises `ConfigError` for a mistake, before a model is loaded, and `RunFailedError` for a failure
    of the engine.
    """
    if find_spec("websockets") is None:
        raise ConfigError("--openenv: websockets is not installed; pip install websockets")
    token = client_token(options)
    folder = None if root is None else RunFolder(root)
    if folder is None:
        given = load(config or "default", {**fields, "actors.num": 1})
    else:
        given = load(str(folder.config), {**UNDECIDED, **fields, "actors.num": 1})
    opponents = opponents_of(given, folder, versions, words)
    with starting():
        chosen, resolved = _checked(given, opponents)
    from unstable.serving.server import Server  # imports the web framework

    server = Server(None, options.host, options.port, "--port", websockets=True)  # may be taken
    if resolved is not None:
        show_plan(resolved)
    name = "openenv" if folder is None else f"openenv-{folder.root.resolve().name}"
    own = make_folder(chosen, called=name)
    with at_work(own, "openenv", light=resolved is None):
        write_environment(own, command)
        if resolved is not None:
            have_weights(chosen.model)
        run_to_end(_serve(chosen, own, opponents, server, token, resolved is not None))


def _checked(
    given: RunConfig, opponents: Mapping[PlayerId, FixedOpponent | None]
) -> tuple[RunConfig, Resolved | None]:
    """Return the resolved config of the games, with its plan if an opponent is a local model."""
    known = [each for each in opponents.values() if each is not None]
    chosen = for_games(given, given.games, known)
    for index, game in enumerate(chosen.games):
        check_env(game, f"games.{index}", "external programs already play its games")
        check_game(game, f"games.{index}")
        for opponent in known:
            player_class(opponent).check(opponent, game, "--against")
    if any(is_local_model(chosen, player) for player in opponents):
        check_model(chosen.model)
        resolved = prepare(chosen, learner=False)
        return resolved.config, resolved
    return chosen.updated({"games": [settled(game) for game in chosen.games]}), None


def opponents_of(
    config: RunConfig,
    folder: RunFolder | None,
    versions: Sequence[Version | None],
    words: Sequence[str],
) -> dict[PlayerId, FixedOpponent | None]:
    """Return the opponents by player; None for the base model. Loads no weights."""
    found: dict[PlayerId, FixedOpponent | None] = {}
    if folder is not None:
        for version in versions:
            number = checkpoint_of(folder, version)
            check_adapter(folder.checkpoint(number))
            opponent = as_opponent(folder, number)
            found[PlayerId(opponent.key)] = opponent
    for word in words:
        player, opponent_of_word, _ = player_of(config, word, "--against")
        found[player] = opponent_of_word
    if not found:
        raise ConfigError("--against: no opponent; name some, such as random,expert, or give a run")
    return found


async def _serve(
    config: RunConfig,
    folder: RunFolder,
    opponents: Mapping[PlayerId, FixedOpponent | None],
    server: "Server",
    token: str | None,
    has_model: bool,
) -> None:
    """Serve until cancelled."""
    async with served(config.with_ledgers(folder.endpoint), folder, model=has_model) as source:
        games = ClientGames(config, source, opponents, folder)
        server.application = openenv_application(games, token)
        await server.start()
        try:
            print(f"serving {games.about['description']} at {server.url}")
            print(f'GenericEnvClient(base_url="{server.url}"); Ctrl-C stops it', flush=True)
            raise RunFailedError(f"the engine died ({await games.died})")
        finally:
            await server.close()
            print(*games.lines(), f"games: {folder.root}", sep="\n", flush=True)


class ClientGames:
    """All clients' games: who plays them, and their records."""

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
        self._folder = folder
        folder.games("eval", 0).parent.mkdir(exist_ok=True)
        programs = [player for player, each in opponents.items() if each and each.is_program]
        self._registry = Registry(list(opponents), programs[0] if programs else None, pool_size=1)
        self._seeds = count()
        self._plays: Counter[int] = Counter()  # recorded plays of a seed

    def open(self) -> "ClientSession":
        """Return a new client's table."""
        return ClientSession(self)

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
        if asked.player in by_name:
            why = f"player = {shown(asked.player)}: an opponent's name; choose another"
            raise SessionError("VALIDATION_ERROR", why)
        warmth = temperature(self.config, None, self._opponents[player])
        seats = [SeatSpec(player=player, temperature=warmth)] * game.seats
        seats[seat] = SeatSpec(player=PlayerId(asked.player), temperature=1.0)
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
        """Play a client's game, record it as one of the version that counts its seed's plays."""
        players = [
            client if place == own else self._source.players.player(game, "eval", seat)
            for place, seat in enumerate(spec.seats)
        ]
        game = game.updated({"timeout": inf})  # a client may take its time
        try:
            with contained():
                result = await play_game(spec, game, players, self.config.seed)
        except EngineDiedError as error:
            if not self.died.done():
                self.died.set_result(str(error))
            raise
        if result.turns:
            version = self._plays[spec.game_id]
            self._plays[spec.game_id] += 1
            with contextlib.closing(LineFile(self._folder.games("eval", version))) as file:
                file.append(game_line(game_body(result), version, None))
        if not result.truncated:
            self._registry.record([result])
        return result

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
    """The player of a client's seat: `asked` is its turn to answer, `answers` its messages."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[Observation, Position]] = asyncio.Queue()
        self.answers: asyncio.Queue[str | None] = asyncio.Queue()  # None: the client leaves

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the client's answer, read as a model's; raises `LeftError` if it leaves."""
        self.asked.put_nowait((observation, game))
        answer = await self.answers.get()
        if answer is None:
            raise LeftError(LEFT)
        style, (text, cut) = prompt_style(game.config), shorten(answer)
        action = style.read_free_action(text)
        return Answer(
            observation=style.render(observation),
            text=text,
            action=action.text,
            formatted=action.formatted,
            cut_characters=cut,
        )


@dataclass(slots=True)
class ClientSession:
    """One client's session."""

    games: ClientGames
    _client: _Client = field(default_factory=_Client)
    _playing: asyncio.Task[GameResult] | None = None
    _game: tuple[GameSpec, int, str | None] | None = None  # spec, seat, client's name of it
    _steps: int = 0

    async def reset(self, asked: ResetRequest) -> ClientTurn:
        await self.close()
        spec, game, own = self.games.deal(asked)
        self._client, self._steps = _Client(), 0
        self._game = spec, own, asked.episode_id
        self._playing = asyncio.create_task(self.games.play(spec, game, own, self._client))
        return await self._next()

    async def step(self, message: str) -> ClientTurn:
        if self._playing is None:
            raise SessionError("EXECUTION_ERROR", "no game in play; send reset first")
        self._steps += 1
        self._client.answers.put_nowait(message)
        return await self._next()

    def state(self) -> SessionState:
        spec, _, name = self._game or (None, 0, None)
        number = None if spec is None else spec.game_id
        return SessionState(
            episode_id=name or (None if number is None else str(number)),
            step_count=self._steps,
            game_id=number,
        )

    async def close(self) -> None:
        playing, self._playing = self._playing, None
        if playing is not None:
            self._client.answers.put_nowait(None)
            await asyncio.wait([playing])
            if error := playing.exception():
                log.error("a game that a client left failed", exc_info=error)

    async def _next(self) -> ClientTurn:
        """Return the client's next turn, or the end of the game; raises the game's errors."""
        playing = self._playing
        assert playing is not None and self._game is not None
        turn = asyncio.ensure_future(self._client.asked.get())
        await asyncio.wait([playing, turn], return_when=asyncio.FIRST_COMPLETED)
        spec, own, _ = self._game
        view = partial(ClientView, game=spec.env, seat=own, opponent=_opponent(spec, own))
        if turn.done() and not turn.cancelled():
            observation, game = turn.result()
            legal = game.legal_moves() if lists_legal_moves(game.config) else None
            return ClientTurn(view(messages=_chat(observation, game.config), legal_moves=legal))
        turn.cancel()
        self._playing = None
        if error := playing.exception():
            log.error("a client's game failed", exc_info=error)
            raise SessionError("EXECUTION_ERROR", one_line(f"the game failed: {error}"))
        result = playing.result()
        told = {
            "outcomes": result.outcomes,
            "payoffs": result.payoffs,
            "forfeit": result.forfeit,
            "truncated": result.truncated,
            "reason": result.reason,
        }
        last = view(messages=[], legal_moves=None, result=told)
        return ClientTurn(last, reward=result.outcomes[own], done=True)


def _chat(observation: Observation, game: GameConfig) -> list[dict[str, str]]:
    """Return the chat that a policy gets in this position."""
    style = prompt_style(game)
    chat = [{"role": each["role"], "content": each["content"]} for each in observation.chat]
    return chat or style.messages(style.render(observation))


def _opponent(spec: GameSpec, own: int) -> str:
    others = [seat.player.name for place, seat in enumerate(spec.seats) if place != own]
    return others[0] if others else ""
