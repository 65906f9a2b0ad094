"""Sample games: which of an evaluation's games a person is shown, and how they read."""

from collections import defaultdict
from itertools import chain, zip_longest
from typing import NamedTuple

from unstable.config import escape_control
from unstable.records.games import Record
from unstable.types import PlayerId

MOST_GAMES = 16
MOST_CHARACTERS = 20_000
"""Of a game's text; what is beyond is left out."""


class SampleGame(NamedTuple):
    """A game as a row of a table."""

    version: int
    game: int
    env: str
    opponent: str
    seat: int
    temperature: float
    outcome: float
    forfeit: str  # who forfeited it, or nothing
    text: str


class SampleGames:
    """Chooses of an evaluation at most `MOST_GAMES` games, the same ones at every version.

    Of each env, opponent and temperature in turn the game of the lowest number that is left.
    """

    def __init__(self) -> None:
        self._games: list[SampleGame] = []

    def add(self, version: int, record: Record) -> None:
        """Take in a recorded game; of training, nothing."""
        if record["purpose"] == "eval":
            self._games.append(sample_game(version, record))

    def take(self, version: int) -> list[SampleGame]:
        """The chosen ones of the version's evaluation; all others are forgotten."""
        kinds: dict[tuple[str, str, float], list[SampleGame]] = defaultdict(list)
        own = [game for game in self._games if game.version == version]
        for game in sorted(own, key=lambda game: game.game):
            kinds[game.env, game.opponent, game.temperature].append(game)
        self._games = []
        in_turn = chain.from_iterable(zip_longest(*kinds.values()))
        return [game for game in in_turn if game is not None][:MOST_GAMES]


def sample_game(version: int, record: Record) -> SampleGame:
    """A recorded game as a row: seen from the first seat of the version that is evaluated."""
    players: list[str] = record["players"]
    own = PlayerId.policy(version).name
    seat = players.index(own)
    others = [player for player in players if player != own]
    forfeit = record["forfeit"]
    return SampleGame(
        version=version,
        game=record["game"],
        env=record["env"],
        opponent=others[0] if others else "alone",
        seat=seat,
        temperature=record["seats"][seat]["temperature"],
        outcome=record["outcomes"][seat],
        forfeit="" if forfeit is None else players[forfeit],
        text=escape_control(_text(record))[:MOST_CHARACTERS],
    )


def _text(record: Record) -> str:
    turns = (
        f"turn {turn['index']}, seat {turn['seat']} ({turn['player']})\n"
        f"{turn['observation']}\n> {turn['text']}"
        for turn in record["turns"]
    )
    return "\n\n".join([*turns, record["reason"]])
