"""The opening: first moves of a game that another player makes, whoever's seat it is.

So a game begins where the seats' own players would not have led it. Its moves follow from the
game's seed alone, so that the games of a group, which share it, begin alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from unstable.collectors.players.base import Player
from unstable.collectors.players.programs import RandomPlayer
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.types import Answer, GameSpec, Observation, PlayerId, SeatSpec
from unstable.types.seeds import derive_seed

OPENER = -1
"""The opener's place among the players of a game, which are else known by their seats."""


def players_of(spec: GameSpec, make: Callable[[int, SeatSpec], Player]) -> list[Player]:
    """A game's players by seat, each behind the opener where one makes the game's first moves."""
    own = [make(place, seat) for place, seat in enumerate(spec.seats)]
    if spec.opener is None:
        return own
    opener = make(OPENER, spec.opener)
    return [OpeningPlayer(spec=spec, own=player, opener=opener) for player in own]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningPlayer:
    """The opener for the game's first `spec.opening` moves, then the seat's own player.

    Where the game lists its legal moves, an answer that is none of them is replaced by any of
    them, and `random` stands as who made it. Elsewhere it stands, and the game may end by it.
    """

    spec: GameSpec
    own: Player
    opener: Player

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """The answer of whoever's turn it is; an opener's has its `player`."""
        spec = self.spec
        if game.turns >= spec.opening:
            return await self.own.act(observation, game, seed)
        assert spec.opener is not None
        shared = derive_seed(spec.seed, "opener", observation.seat, game.turns)
        answer = await self.opener.act(observation, game, shared)
        if lists_legal_moves(game.config) and answer.action not in game.legal_moves():
            answer = await RandomPlayer().act(observation, game, shared)
            return replace(answer, player=PlayerId("random"))
        return replace(answer, player=spec.opener.player)
