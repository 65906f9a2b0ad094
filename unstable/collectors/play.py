"""One game from its first observation to its outcome: pure of everything but game and players."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from unstable.collectors.players.base import LeftError, Player
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.prompts import shorten
from unstable.types import GameFailure, GameResult, GameSpec, Turn
from unstable.types.seeds import derive_seed


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
    told: Callable[[Game, Turn], None] = lambda game, turn: None,
) -> GameResult:
    """Play `spec` with one player per seat; whatever an env or a player raises comes through.

    Raises `TimeoutError` for a game that takes longer than its time-out, local models' time aside.
    With `shared`, the game goes on from where those turns led another game of the same seed. A
    player that leaves (`LeftError`) ends it; what was played so far is a game that was cut off.
    `trusted` is what the env is to `Game`. `told` hears of each turn that was played here.
    """
    began, modelling = perf_counter(), 0.0
    game = Game(config, spec.seed, trusted=trusted)
    most, turns = game.stakes, list[Turn]()
    for turn in shared:
        game.observe()
        game.step(turn.answer.action)
        turns.append(turn)
    while not game.done:
        observation, index, asked = game.observe(), len(turns), perf_counter()
        seat = observation.seat
        try:
            seed = turn_seed(run_seed, spec, seat, index)
            answer = await players[seat].act(observation, game, seed)
        except LeftError as left:
            game.cut_off(str(left))
            break
        seconds = perf_counter() - asked
        action, cut = shorten(answer.action)
        step = game.step(action)
        answer = replace(
            answer,
            action=action,
            player=answer.player or spec.seats[seat].player,
            cut_characters=game.take_cut() + answer.cut_characters + cut,
        )
        turn = Turn(seat=seat, index=index, answer=answer, invalid=step.invalid, seconds=seconds)
        turns.append(turn)
        told(game, turn)
        modelling += seconds if answer.sampled is not None else 0.0
        if not game.done and perf_counter() - began - modelling > config.timeout:
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
        stakes=most,
        fork=len(shared),
    )


def turn_seed(run_seed: int, spec: GameSpec, seat: int, index: int) -> int:
    """What decides the answer of a game's turn."""
    return derive_seed(run_seed, spec.purpose, spec.game_id, seat, index)


TRUST_GAMES = 20
"""Games that an env must have ended by accepted steps."""
TRUST_SHARE = 0.9
"""Of these and the games at which it raised, or that failed otherwise, the least that they are."""


class Trust:
    """What became of each env's games: one that plays well is not to blame for what it raises.

    Else an env with a fault would make forfeits out of good moves, and a policy that has found an
    action at which a good env raises could void the games that it is about to lose.
    """

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()

    def add(self, result: GameResult | GameFailure) -> None:
        """Take in a game; one that was cut off, or forfeited by an answer, says nothing."""
        env = result.spec.env
        if isinstance(result, GameFailure):
            self.raised[env] += 1
            return
        for game in result.games:
            self.raised[env] += game.raised
            self.ended[env] += game.forfeit is None and not game.truncated

    def __contains__(self, env: str) -> bool:
        ended, raised = self.ended[env], self.raised[env]
        return ended >= TRUST_GAMES and ended >= TRUST_SHARE * (ended + raised)
