"""A game whose loop runs in an external program, which queries its seats by URL.

The program also posts the game's result. Players, sampling and seeds are the run's, as in any game.
A program may continue an answer, such as after a tool's output: the inserted tokens are read and
never trained on.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from msgspec.structs import replace

from unstable.collectors.play import players_of, turn_seed
from unstable.collectors.players.base import LimitedPlayer, Player, ToldPosition
from unstable.collectors.players.model import ModelPlayer, NoRoomError
from unstable.config import GameConfig
from unstable.config.plugins import faults_to
from unstable.engines.base import Told
from unstable.prompts import PromptBuilder, TokenStrings, read_tool_calls, shorten
from unstable.serving.replies import Choice, Reply
from unstable.serving.requests import ApiError, ChatRequest, TextRequest
from unstable.serving.tables import HostedGame, HostedGames, Posted
from unstable.types import Answer, Completion, GameResult, GameSpec, Observation, SeatSpec, Turn
from unstable.types.seeds import derive_seed

_LEAST_S = 0.01


@dataclass(eq=False, slots=True)
class _PendingTurn:
    """A turn with its request, and its answer once it is complete."""

    seat: int
    chat: list[dict[str, Any]]
    seconds: float = 0.0
    answer: Answer | None = None
    parts: int = 1  # number of sampled parts


class _DrivenPlay:
    """One game: the requests to its seats and their answers so far."""

    def __init__(
        self, spec: GameSpec, config: GameConfig, players: Sequence[Player], run_seed: int
    ) -> None:
        self.spec, self.config, self.players, self.run_seed = spec, config, players, run_seed
        self.asked: list[_PendingTurn] = []  # in the order of their requests
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_over = False
        self._running: set[asyncio.Task[Answer]] = set()

    def begin(self, seat: int, chat: list[dict[str, Any]]) -> _PendingTurn:
        """Add a turn; raises `ApiError` if the game has reached `max_turns`."""
        if len(self.asked) >= self.config.max_turns:
            if not self.failed.done():
                self.failed.set_result(None)
            raise ApiError(409, "the game was cut off at games.max_turns", code="game_over")
        self.asked.append(_PendingTurn(seat, chat))
        return self.asked[-1]

    async def run(self, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """Return a seat's answer; raises `ApiError` if the game ends first."""
        task = asyncio.create_task(answering)
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            if self.is_over:
                raise ApiError(409, "the game is over", code="game_over") from None
            raise
        finally:
            self._running.discard(task)

    async def end(self) -> None:
        """Cancel all answers in progress, so that their versions may be unloaded."""
        self.is_over = True
        self.failed.cancel()
        running = set(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def fail(self, error: BaseException) -> None:
        """End the game with this error."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def turns(self) -> list[Turn]:
        """Return all turns that have an answer, in order."""
        answered = [(each, each.answer) for each in self.asked if each.answer is not None]
        return [
            Turn(seat=each.seat, index=index, answer=answer, invalid=False, seconds=each.seconds)
            for index, (each, answer) in enumerate(answered)
        ]


class DrivenSeat:
    """A seat of such a game, which answers requests."""

    def __init__(self, play: _DrivenPlay, seat: int, prompts: PromptBuilder | None) -> None:
        """Create the seat; `prompts` are the game's if a local model may play it, else None."""
        self._play, self._seat = play, seat
        self._player = play.players[seat]
        self.strings = TokenStrings(prompts.decode if prompts else lambda ids: "")

    def models(self) -> Sequence[str]:
        """Return one fixed name, which hides the player."""
        return ["seat"]

    async def answer(
        self, request: ChatRequest | TextRequest, told: Sequence[Told] | None
    ) -> Reply:
        """Return the seat's answer and record it; never calls `told`, since nothing is streamed."""
        if isinstance(request, TextRequest):
            raise ApiError(400, "text completions unsupported; use /v1/chat/completions")
        if request.n != 1:
            raise ApiError(400, f"n = {request.n}: a seat gives one choice; set n to 1", param="n")
        if request.is_formed:
            raise ApiError(400, "a seat supports no response_format and no forced tool_choice")
        chat, play = request.chat, self._play
        earlier, after = self._continued(request)
        asked = earlier or play.begin(self._seat, chat)
        began = time.perf_counter()
        try:
            with faults_to(self._failed):
                answer = await play.run(self._answered(request, asked, after))
        except NoRoomError:  # the recorded answer stays unchanged
            cut = Choice(text="", finish_reason="length")
            return Reply(model=request.model, prompts=[[]], choices=[cut])
        except ValueError as error:  # such as a chat that is too long
            if earlier is None:
                play.asked.remove(asked)
            raise ApiError(400, str(error), param="messages") from None
        asked.seconds += time.perf_counter() - began
        asked.answer = replace(answer, player=play.spec.seats[self._seat].player)
        choice = self._choice(request, asked.answer)
        asked.chat = [*chat, _message(choice)]
        sampled = asked.answer.sampled
        prompt_ids = [] if sampled is None else _before_last(sampled.prompt_ids, sampled.segments)
        return Reply(model=request.model, prompts=[prompt_ids], choices=[choice])

    async def count(self, request: ChatRequest) -> int:
        if not isinstance(self._player, ModelPlayer):
            raise ApiError(404, "the seat's player counts no tokens")
        earlier, after = self._continued(request)
        if earlier and earlier.answer and (sampled := earlier.answer.sampled):
            ids = sampled.token_ids  # `ModelPlayer.go_on` continues them
            return len(sampled.prompt_ids) + len(ids) + len(after) - (ids[-1] == after[0])
        try:
            return len(self._player.prompt_ids(self._observation(request)))
        except ValueError as error:  # a chat that is too long
            raise ApiError(400, str(error), param="messages") from None

    def _failed(self, error: BaseException) -> NoReturn:
        """Re-raise errors that the program can fix; any other error ends the game.

        A `ValueError` of a player that is no local model is that player's own fault.
        """
        is_asking = isinstance(error, ValueError) and not isinstance(self._player, LimitedPlayer)
        if not (is_asking or isinstance(error, ApiError)):
            self._play.fail(error)
            raise ApiError(500, "the seat's player failed") from error
        raise error

    def _continued(self, request: ChatRequest) -> tuple[_PendingTurn | None, list[int]]:
        """Return the answer that a chat continues, and the ids of the messages after it.

        Only outputs of tools continue an answer; a chat with other messages is a new turn.
        """
        chat, player = request.chat, self._player
        if not isinstance(player, ModelPlayer) or chat[-1]["role"] != "tool":
            return None, []
        for asked in reversed(self._play.asked):
            known = len(asked.chat)
            if asked.seat != self._seat or asked.answer is None or chat[:known] != asked.chat:
                continue
            if all(message["role"] == "tool" for message in chat[known:]):
                after = player.prompts.template.encode_after(chat, known - 1, request.offered)
                return (asked, after) if after else (None, [])
            break
        return None, []

    async def _answered(
        self, request: ChatRequest, asked: _PendingTurn, after: list[int]
    ) -> Answer:
        """Return the answer; with `after`, the longer answer of `asked`."""
        play, index = self._play, self._play.asked.index(asked)
        seed = turn_seed(play.run_seed, play.spec, self._seat, index)
        position = ToldPosition(config=play.config, turns=index, legal=request.legal_moves)
        player, most = self._player, request.most_tokens
        if after and asked.answer is not None:
            assert isinstance(player, ModelPlayer)
            asked.parts += 1
            return await player.go_on(
                asked.answer, after, derive_seed(seed, "part", asked.parts), most
            )
        if isinstance(player, ModelPlayer) and most is not None:
            player = dataclasses.replace(player, max_tokens=min(player.max_tokens, most))
        return await player.act(self._observation(request), position, seed)

    def _observation(self, request: ChatRequest) -> Observation:
        """Return the request as an observation: a chat for models, text for other players."""
        chat = request.chat
        head = [each["content"] for each in chat if each["role"] == "system"]
        rest = [each["content"] for each in chat if each["role"] != "system"] or [""]
        return Observation(
            seat=self._seat,
            rules="\n\n".join(head),
            events=rest[:-1],
            board=rest[-1],
            notice="",
            chat=tuple(chat),
            tools=tuple(request.offered),
        )

    def _choice(self, request: ChatRequest, answer: Answer) -> Choice:
        """Return the part of an answer that is sent, which excludes its thoughts."""
        completion: Completion | None = None
        if answer.sampled is not None:
            completion = answer.sampled.completions[-1]
        text, calls = answer.action, list[dict[str, Any]]()
        if request.offered:
            text, calls = read_tool_calls(text)
        finish = "tool_calls" if calls else completion.finish_reason if completion else "stop"
        return Choice(text=text, finish_reason=finish, completion=completion, calls=calls)


def _message(choice: Choice) -> dict[str, Any]:
    """Return an answer as a message of the chat's next request."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if choice.calls:
        message["tool_calls"] = [{"type": "function", "function": call} for call in choice.calls]
    return message


def _before_last(prompt_ids: list[int], segments: Sequence[Any]) -> list[int]:
    """Return all ids before an answer's last segment."""
    return [*prompt_ids, *(token for segment in segments[:-1] for token in segment.token_ids)]


async def play_driven(
    spec: GameSpec,
    config: GameConfig,
    player: Callable[[SeatSpec], Player],
    prompts: PromptBuilder | None,
    run_seed: int,
    tables: HostedGames,
) -> GameResult:
    """Have a program play `spec`; returns the result.

    Raises `TimeoutError` if no program takes any game, or the program of this game sends nothing
    for `games.turn_timeout`, `ValueError` for an impossible result, `RuntimeError` for a game that
    the program gives up, and any exception of a player.
    """
    began = time.perf_counter()
    play = _DrivenPlay(spec, config, players_of(spec, player), run_seed)
    seats = [DrivenSeat(play, seat, prompts) for seat in range(config.seats)]
    told = {"env": config.key, "seed": spec.seed, "purpose": spec.purpose, "args": config.args}
    own = "" if config.driver is None else config.key
    table = HostedGame(told, seats, own, lambda posted: _check(play, posted))
    tables.offer(table)
    try:
        await _taken(table, tables, config)
        posted = await _posted(table, play, config)
    finally:
        tables.withdraw(table)
        await play.end()
    return _result(play, posted, time.perf_counter() - began)


async def _taken(table: HostedGame, tables: HostedGames, config: GameConfig) -> None:
    """Wait until a program takes the game; the timeout restarts while programs take any game."""
    offered = time.monotonic()
    while not (table.taken.is_set() or table.posted.done()):
        left = max(offered, tables.taken_s) + config.timeout - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"no program took a game of {config.key} within games.timeout = "
                f"{config.timeout:g} s; start a driver"
            )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, 1.0)):
                await table.taken.wait()


async def _posted(table: HostedGame, play: _DrivenPlay, config: GameConfig) -> Posted:
    """Wait for the result of a game that a program has taken."""
    while True:
        ended: set[asyncio.Future[Any]] = {table.posted, play.failed}
        left = max(config.turn_timeout - table.silent_s, _LEAST_S)
        await asyncio.wait(ended, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if table.posted.done():
            return table.posted.result()
        if play.failed.done():
            play.failed.result()  # raises the error that ended the game
            return Posted(truncated=True, reason=f"cut off after {config.max_turns} turns")
        if table.silent_s >= config.turn_timeout:
            raise TimeoutError(
                f"the program requested no move of {config.key} within games.turn_timeout = "
                f"{config.turn_timeout:g} s"
            )


def _check(play: _DrivenPlay, posted: Posted) -> None:
    """Raise `ValueError` for an impossible result."""
    if posted.error is None and not play.turns():
        raise ValueError("the program posted a result without a request to any seat")
    scale, payoffs = play.config.payoff_scale, posted.payoffs or []
    if scale is not None and max(map(abs, payoffs), default=0.0) > scale:
        raise ValueError(
            f"the program posted payoffs {payoffs}, beyond games.payoff_scale = {scale:g}; raise "
            "the scale"
        )


def _result(play: _DrivenPlay, posted: Posted, seconds: float) -> GameResult:
    """Convert the program's result to a `GameResult`."""
    config, seats = play.config, play.config.seats
    if posted.error is not None:
        raise RuntimeError(f"the program reported an error: {posted.error}")
    _check(play, posted)
    turns = play.turns()
    payoffs, outcomes = [0.0] * seats, [0.0] * seats
    if posted.payoffs is not None:
        payoffs, scale = list(posted.payoffs), config.payoff_scale or 1.0
        outcomes = [payoff / scale for payoff in payoffs]
    elif posted.forfeit is not None:
        outcomes = [config.invalid_moves.others_reward] * seats
        for seat in next(side for side in config.sides if posted.forfeit in side):
            outcomes[seat] = config.invalid_moves.outcome()
    return GameResult(
        spec=play.spec,
        turns=turns,
        payoffs=payoffs,
        outcomes=outcomes,
        forfeit=posted.forfeit,
        truncated=posted.truncated,
        reason=shorten(posted.reason)[0],
        seconds=seconds,
        stakes=config.payoff_scale,
    )
