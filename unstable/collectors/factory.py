"""Who plays: the players of a game's seats, made of what the spec and the config name."""

from functools import partial
from typing import Any

from unstable.collectors.players.base import LimitedPlayer, OpponentPlayer, Player
from unstable.collectors.players.constrained import ConstrainedPlayer
from unstable.collectors.players.kinds import player_class
from unstable.collectors.players.model import (
    ModelPlayer,
    Newest,
    NewestPlayer,
    VotingPlayer,
    adapter_name,
)
from unstable.collectors.players.opening import with_opening
from unstable.config import GameConfig, RunConfig
from unstable.engines.base import Engine
from unstable.games.services import prompt_style
from unstable.models.adapters import read_adapter
from unstable.prompts import PromptBuilder
from unstable.types import BASE, GameSpec, Purpose, SeatSpec


class PlayerFactory:
    """Makes the players of games; those that are local models answer through the engine.

    Without an engine and its tokenizer it makes all others. `start` gives the engine the adapters
    of fixed opponents; versions of the policy are there once they are the engine's.
    """

    def __init__(self, config: RunConfig, engine: Engine | None, tokenizer: Any) -> None:
        self._config = config
        self._engine = engine
        self._opponents = config.fixed_opponents
        self._games = config.game_by_key
        self.prompts = {
            key: PromptBuilder(
                tokenizer,
                prompt_style(game),
                config.model.chat_template,
                config.sampling.max_prompt_tokens,
            )
            for key, game in self._games.items()
            if engine is not None
        }
        self.newest = Newest()
        self._shared_players: dict[tuple[str, SeatSpec, Purpose], Player] = {}

    async def start(self) -> None:
        """Let games name the fixed opponents that are adapters."""
        for opponent in self._config.opponents.fixed:
            if (folder := opponent.adapter_folder) is not None:
                assert self._engine is not None, "an adapter needs one"
                await self._engine.load(read_adapter(folder, adapter_name(opponent)))

    def players(self, spec: GameSpec) -> list[Player]:
        """The players of a game, by seat, behind its opener where it has one."""
        game = self._games[spec.env]
        players = [self.player(game, seat, spec.purpose) for seat in spec.seats]
        if spec.opener is None:
            return players
        return with_opening(spec, players, self.player(game, spec.opener, spec.purpose))

    def player(self, game: GameConfig, seat: SeatSpec, purpose: Purpose) -> Player:
        """The player that a seat names, as it plays this game."""
        model = partial(self._model, game, seat, purpose)
        if seat.player == BASE:
            return model(None)
        if seat.trained and self._config.actors.policy_refresh == "turn":
            return NewestPlayer(newest=self.newest, policy=seat.player.label, model=model)
        if seat.player.version is not None:
            return model(seat.player.name, seat.player.version)
        return self._opponent(game, seat, purpose)

    def _model(
        self,
        game: GameConfig,
        seat: SeatSpec,
        purpose: Purpose,
        adapter: str | None,
        version: int | None = None,
    ) -> Player:
        engine = self._engine
        assert engine is not None, "a local model needs one"
        # Never in training: what is sampled there must be the distribution that is trained.
        kind = ConstrainedPlayer if self.is_constrained(purpose) else ModelPlayer
        player: Player = kind(
            engine=engine,
            adapter=adapter,
            version=version,
            prompts=self.prompts[game.key],
            parser=game.parser,
            temperature=seat.temperature,
            max_tokens=self._config.sampling.max_tokens,
        )
        return player if seat.votes == 1 else VotingPlayer(player=player, votes=seat.votes)

    def is_constrained(self, purpose: Purpose) -> bool:
        """Whether local models are held to legal moves."""
        return purpose == "eval" and self._config.eval.constrained

    def _opponent(self, game: GameConfig, seat: SeatSpec, purpose: Purpose) -> Player:
        """A fixed opponent, which games share unless it needs one for each."""
        opponent = self._opponents[seat.player.name]
        kind: type[OpponentPlayer] = player_class(opponent)
        model = partial(self._model, game, seat, purpose)

        def make() -> Player:
            player = kind.make(opponent, game, seat, model)
            return LimitedPlayer(player=player, name=opponent.key) if kind.waits else player

        if kind.per_game:
            return make()
        place = (game.key, seat, purpose)
        if place not in self._shared_players:
            self._shared_players[place] = make()
        return self._shared_players[place]
