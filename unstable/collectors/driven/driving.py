"""The port where game drivers fetch an actor's games, and the drivers that the run starts."""

import secrets
from collections.abc import Callable

from unstable.collectors.driven.play import play_driven
from unstable.collectors.driven.process import DriverProcess
from unstable.collectors.players.base import Player
from unstable.config import RunConfig
from unstable.config.endpoint import read_token
from unstable.prompts import PromptBuilder
from unstable.serving.app import application
from unstable.serving.server import Server
from unstable.serving.tables import PREFIX, HostedGames
from unstable.types import GameResult, GameSpec, SeatSpec

_TOKEN_BYTES = 16


class Driving:
    """The port and the drivers of one actor, from `start` until `close`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.tables: HostedGames | None = None
        self.server: Server | None = None  # serves listen.seats_port
        self._door: Server | None = None  # serves listen.port
        self.drivers: list[DriverProcess] = []

    async def start(self) -> None:
        """Open the ports, and start the drivers that the config names.

        Raises `ConfigError` if a port is not available.
        """
        config, listen = self._config, self._config.listen
        if listen.token_env is not None:
            token: str | None = read_token(listen.token_env, "listen.token_env")
        else:
            token = None if listen.port else secrets.token_urlsafe(_TOKEN_BYTES)
        self.tables = HostedGames(token, shared=bool(listen.port))
        served, own = application(self.tables, PREFIX), listen.seats_port
        self.server = await Server(served, listen.host, own, "listen.seats_port").start()
        self.tables.port = self.server.port
        if listen.port:
            door = Server(served, listen.host, listen.port, "listen.port", shared=True)
            self._door = await door.start()
        assert isinstance(config.actors.games_in_flight, int)
        self.drivers = [
            DriverProcess(
                game, self.tables, self.server.url, token or "", config.actors.games_in_flight
            )
            for game in config.games
            if game.driver is not None
        ]

    async def play(
        self, spec: GameSpec, player: Callable[[SeatSpec], Player], prompts: PromptBuilder | None
    ) -> GameResult:
        """Have a program play a game, see `play_driven`."""
        assert self.tables is not None, "started"
        game = self._config.game_by_key[spec.env]
        return await play_driven(spec, game, player, prompts, self._config.seed, self.tables)

    async def close(self) -> None:
        """End the drivers and close the ports."""
        if self.tables is not None:
            self.tables.close()
        for driver in self.drivers:
            await driver.close()
        for server in (self._door, self.server):
            if server is not None:
                await server.close()
