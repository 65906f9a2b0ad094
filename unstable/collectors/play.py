"""One game from its first observation to its outcome: pure of everything but game and players."""

from collections.abc import Sequence
from time import perf_counter

from unstable.collectors.players.base import Player
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.prompts import bounded
from unstable.seeds import derive_seed
from unstable.types import GameResult, GameSpec, Turn


async def play_game(
    spec: GameSpec,
    config: GameConfig,
    players: Sequence[Player],
    run_seed: int,
    shared: Sequence[Turn] = (),
) -> GameResult:
    """Play `spec` with one player per seat; whatever an env or a player raises comes through.

    With `shared`, the game goes on from where those turns led another game of the same seed.
    """
    began = perf_counter()
    game = Game(config, spec.seed)
    turns: list[Turn] = []
    for turn in shared:
        game.observe()
        game.step(turn.action)
        turns.append(turn)
    while not game.done:
        observation = game.observe()
        seat = observation.seat
        seed = derive_seed(run_seed, spec.purpose, spec.game_id, seat, len(turns))
        asked = perf_counter()
        answer = await players[seat].act(observation, game, seed)
        seconds = perf_counter() - asked
        action, cut = bounded(answer.action)
        step = game.step(action)
        turns.append(
            Turn(
                seat=seat,
                index=len(turns),
                player=answer.player or spec.seats[seat].player,
                observation=answer.observation,
                sampled=answer.sampled,
                text=answer.text,
                action=action,
                formatted=answer.formatted,
                invalid=step.invalid,
                seconds=seconds,
                cut_characters=game.take_cut() + answer.cut_characters + cut,
            )
        )
    return GameResult(
        spec=spec,
        turns=turns,
        payoffs=game.payoffs,
        outcomes=game.outcomes,
        forfeit=game.forfeit,
        truncated=game.truncated,
        reason=game.reason,
        seconds=perf_counter() - began,
        fork=len(shared),
    )
