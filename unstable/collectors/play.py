"""One game from its first observation to its outcome: pure of everything but game and players."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from unstable.collectors.players.base import Player
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.prompts import bounded
from unstable.seeds import derive_seed
from unstable.types import GameResult, GameSpec, Turn


@contextmanager
def contained() -> Iterator[None]:
    """What a game raises that would end more than the game comes as a `RuntimeError`.

    An interrupt of the task itself stays what it is.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        raise RuntimeError(f"the game raised {error!r}") from error


async def play_game(
    spec: GameSpec,
    config: GameConfig,
    players: Sequence[Player],
    run_seed: int,
    shared: Sequence[Turn] = (),
    *,
    trusted: bool = False,
) -> GameResult:
    """Play `spec` with one player per seat; whatever an env or a player raises comes through.

    Raises `TimeoutError` for a game that takes longer than its time-out, local models' time aside.
    With `shared`, the game goes on from where those turns led another game of the same seed.
    `trusted` is what the env is to `Game`.
    """
    began, modelling = perf_counter(), 0.0
    game = Game(config, spec.seed, trusted=trusted)
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
                votes=answer.votes,
            )
        )
        modelling += seconds if answer.sampled is not None else 0.0
        if not step.done and perf_counter() - began - modelling > config.timeout:
            raise TimeoutError(
                f"{config.key} is not over after games.timeout = {config.timeout:g} s"
            )
    return GameResult(
        spec=spec,
        turns=turns,
        payoffs=game.payoffs,
        outcomes=game.outcomes,
        forfeit=game.forfeit,
        raised=game.raised,
        truncated=game.truncated,
        reason=game.reason,
        seconds=perf_counter() - began,
        fork=len(shared),
    )
