"""A recorded game to learn from."""

from tests.helpers.builders import spec
from tests.helpers.players import Recorder, model_player
from tests.helpers.records import game_record
from unstable.collectors.play import play_game
from unstable.config import GameConfig
from unstable.types import PlayerId


async def recorded_game(*answers: str, **changes) -> dict:
    """Return the line of a game between the policy at seat 0 and the base model at seat 1."""
    engine = Recorder(*answers)
    names = changes.pop("players", ("main@3", "base"))
    players = [
        model_player(
            engine, adapter=None if name == "base" else name, version=PlayerId.parse(name).version
        )
        for name in names
    ]
    result = await play_game(spec(names), GameConfig(), players, run_seed=5)
    return game_record(result, [], version=3, actor=0) | changes
