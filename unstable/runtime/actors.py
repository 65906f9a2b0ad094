"""Actors: one process each, behind the interface that the loop calls.

A dead actor is restarted, receives its adapters again and replays its unfinished games. If play and
learning alternate with the embedded engine, it replays the whole call from the state that the dead
process had when the call began: its games equal those of a run without the death, bit for bit.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from unstable.config import RunConfig, RunFailedError
from unstable.loop.ended import Ended
from unstable.loop.protocols import Actor, HeldAdapter
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import LOST, MEMORY, Process, again, forwarded, in_time
from unstable.runtime.heartbeat import comes_back, watch
from unstable.runtime.inside import ActorProcess
from unstable.runtime.local import LocalActor
from unstable.runtime.memory import until_free
from unstable.runtime.stream import Results, Stream, every_s
from unstable.types import ActorState, GameFailure, GameResult, GameSpec, PlayerId
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""Deaths of one actor within `WITHIN_S` seconds that a run survives; more are no coincidence."""
WITHIN_S = 3600.0
_ABSENT_S = 0.5
"""Seconds between checks for games dealt to an actor without a place."""
ANSWER_S = 0.5
"""Seconds that an actor has to answer a call before `close` ends its engine."""
CLOSE_S = 20.0
"""Seconds that an actor's engine has to end."""
NOT_REPEATED = {"retire", "wake"}
"""Methods that are not repeated on the successor of a dead process, which never had the version and
is awake."""


class RemoteActor(Actor):
    """A `LocalActor` in another process; survives the death of that process."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        index: int,
        placement: Placement,
        waits: Waits | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        self._placement = placement
        self._say = say
        self._state: ActorState | None = None  # newest known state
        # Served versions; the newest with its adapter, as it may have no checkpoint yet.
        self._published: dict[PlayerId, HeldAdapter | None] = {}
        self._newest: PlayerId | None = None  # newest announced version
        self._deaths: deque[float] = deque()  # times, in seconds of the monotonic clock
        self._reviving = asyncio.Lock()
        self._waits = waits or Waits()
        self._calls = 0  # in progress
        self._dealt: dict[int, GameSpec] = {}  # dealt games that have not ended, by id
        self._standing: Stream | None = None  # plays the dealt games
        self._watch: asyncio.Task[None] | None = None
        self.name = f"actor-{index}"

    async def start(self) -> None:
        """Start the process, load the model and begin to watch the process."""
        self._begin_with(await self._begin())
        slowest = max(game.turn_timeout for game in self._config.games)
        limit = max(self._config.loop.stall_timeout, 2 * slowest)
        self._watch = asyncio.create_task(
            watch(
                self.name,
                self._numbers,
                lambda: self._calls > 0 or bool(self._dealt),
                lambda: self._process.kill(),
                limit,
            )
        )

    def _begin_with(self, process: Process) -> None:
        self._process = process
        self._stream = Stream(process.actor, every_s(self._config))

    async def _begin(self) -> Process:
        process = self._process_of()
        with ExitStack() as undo:
            undo.callback(process.kill)
            with self._waits.on(f"{self.name}: start"):
                async with in_time(self._config, self.name, self._folder):
                    self._waits.processes[self.name] = await process.start()
            undo.pop_all()
        return process

    def _process_of(self) -> Process:
        """Return a new process that has not started."""
        arguments = (self._config, self._folder, self._index)
        return Process(ActorProcess, arguments, self._placement, threads=1, max_concurrency=10_000)

    async def _numbers(self) -> dict[str, float] | None:
        """Return the process's counters; None if the process is dead."""
        try:
            return await self._process.call("stats")
        except RayActorError:
            return None

    async def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        """Play games; replay unfinished games of a dead process with their seeds."""
        async with aclosing(self._played(specs, None, whole=True)) as parts:
            async for results in parts:
                assert isinstance(results, list)
                for result in results:
                    yield result

    async def play_round(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[Ended]:
        async with aclosing(self._played(specs, enough)) as parts:
            async for ended in parts:
                assert isinstance(ended, Ended)
                yield ended

    async def _played(
        self, specs: Sequence[GameSpec], enough: int | None, *, whole: bool = False
    ) -> AsyncGenerator[Results | Ended]:
        """Yield the results of a call, from successive processes; no game is yielded twice."""
        asked, wanted = list(specs), enough
        came, samples = set[int](), 0
        while asked:
            player = await self._player()
            process = player._process
            call = player._stream.play(asked, whole=whole, enough=wanted, given=came)
            try:
                with self._waiting(f"{len(asked)} {specs[0].purpose} games"):
                    async with player._lent(self), aclosing(call) as parts:
                        async for part in parts:
                            if isinstance(part, ActorState):
                                self._learn(part, player)
                                continue
                            if isinstance(part, Ended):
                                came |= {each.spec.game_id for each in part.games}
                                samples += sum(each.num_samples for each in part.finished)
                            else:
                                part = [each for each in part if each.spec.game_id not in came]
                                came |= {each.spec.game_id for each in part}
                            yield part
                # Rest of groups that a dead process began, if its successor stopped early.
                asked, wanted = _unfinished(asked, came), None
            except LOST as error:
                await player._revive(process, error)
                if not self._repeats:
                    asked = [spec for spec in specs if spec.game_id not in came]
                    wanted = enough and max(0, enough - samples)

    def deal(self, specs: Sequence[GameSpec]) -> None:
        self._dealt |= {spec.game_id: spec for spec in specs}
        if self._standing is not None:
            self._standing.deal(specs)

    async def play_on(self) -> AsyncGenerator[Ended]:
        """Play dealt games forever; games that a dead process left unfinished are dealt again."""
        while True:
            player = await self._player()
            if player is not self and not self._dealt:
                await asyncio.sleep(_ABSENT_S)  # meanwhile a dealer may deal to it
                continue
            process = player._process
            try:
                with self._waits.on(f"{self.name}: train games"):
                    async with player._lent(self), aclosing(self._dealt_to(player)) as parts:
                        async for ended in parts:
                            assert isinstance(ended, Ended)
                            for each in ended.games:
                                del self._dealt[each.spec.game_id]
                            yield ended
            except LOST as error:
                self._standing = None  # until the successor receives the unfinished games
                await player._revive(process, error)
            finally:
                self._standing = None

    def _dealt_to(self, player: "RemoteActor") -> AsyncGenerator[Results | Ended | ActorState]:
        """Yield the results of dealt games; another `player` receives no games dealt later."""
        dealt = [*self._dealt.values()]
        if player is not self:
            return player._stream.play(dealt)
        self._standing = self._stream
        self._standing.deal(dealt)
        return self._standing.play_on()

    is_lost = False
    """True if the actor has no process and others play its games."""

    async def present(self) -> None:
        """Return once the actor has a process; without one it begins no games."""

    async def _player(self) -> "RemoteActor":
        """Return the actor whose process plays its games."""
        return self

    @contextlib.asynccontextmanager
    async def _lent(self, other: "RemoteActor") -> AsyncIterator[None]:
        """Let the process play for another actor for the duration of the block."""
        assert other is self
        yield

    def _learn(self, state: ActorState, player: "RemoteActor") -> None:
        """Store the state after games that `player` has played for this actor."""
        self._state = state

    @property
    def _repeats(self) -> bool:
        """True if replayed games are identical, bit for bit."""
        config = self._config
        alike = all(opponent.repeats for opponent in config.opponents.fixed)
        return config.loop.mode == "sync" and config.actors.engine == "embedded" and alike

    async def state(self) -> ActorState:
        self._state = await self._call("state")
        return self._state

    async def restore(self, state: ActorState) -> None:
        self._state = state
        await self._call("restore", state)

    async def publish(self, version: PlayerId, adapter: HeldAdapter | None = None) -> None:
        """Make a version playable, also after a restart of the process.

        If `adapter` is None, it is read from the checkpoint, which all older versions must have.
        """
        await self._call("publish", version, adapter)
        self._published = {**dict.fromkeys(self._published), version: adapter}

    async def announce(self, version: PlayerId) -> None:
        self._newest = version
        await self._call("announce", version)

    async def retire(self, version: PlayerId) -> None:
        del self._published[version]
        await self._call("retire", version)

    stats = forwarded(LocalActor.stats)
    probe = forwarded(LocalActor.probe)
    decide = forwarded(LocalActor.decide)
    assess = forwarded(LocalActor.assess)
    luck = forwarded(LocalActor.luck)
    sleep = forwarded(LocalActor.sleep)
    wake = forwarded(LocalActor.wake)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of the process; if the process dies, repeat the call on its successor."""
        while not self.is_lost:
            process = self._process
            try:
                with self._waiting(method):
                    return await process.call(method, *arguments)
            except RayActorError as error:
                await self._revive(process, error)
                if method in NOT_REPEATED:
                    return None
        return await self._without_process(method, *arguments)

    async def _without_process(self, method: str, *arguments: object) -> Any:
        """Return a substitute for a method's answer while the actor is lost."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Register `what` as waited for, for the duration of the block."""
        self._calls += 1
        try:
            with self._waits.on(f"{self.name}: {what}"):
                yield
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """Close the engine; the process itself ends with the cluster.

        An actor that does not answer (a game may block it) is left to the end of the cluster. The
        process of an actor that failed to start has been killed already.
        """
        if self._watch is None:
            return
        self._watch.cancel()
        self._stream.close()
        with contextlib.suppress(RayActorError, TimeoutError):  # no engine is left to close
            async with asyncio.timeout(ANSWER_S):
                await self._process.call("stats")
            async with asyncio.timeout(CLOSE_S):
                await self._process.call("close")

    async def _revive(self, dead: Process, error: RayError) -> None:
        """Restart the process with all its versions, once for all calls that saw it die."""
        async with self._reviving:
            if self._process is not dead or self.is_lost or await self._answers_again(dead, error):
                return
            while True:
                dead.kill()
                if await self._loses_place():
                    return
                self._count(error)
                try:
                    return self._begin_with(await self._successor())
                except RayError as failure:  # it died too, or its engine failed to start
                    error = failure

    async def _loses_place(self) -> bool:
        """Mark the actor as lost and return True if its place can no longer host a process."""
        return False

    async def _answers_again(self, process: Process, error: RayError) -> bool:
        """Return whether an unreachable process answers again and its games continue.

        If results were lost on the way, the process counts as dead and its games are replayed.
        """
        if not isinstance(error, ActorUnavailableError):
            return False
        if not await comes_back(partial(process.call, "stats")):
            return False
        log.warning("%s was unreachable for a while", self.name)
        return not self._stream.is_broken

    def _count(self, error: RayError) -> None:
        """Record and report a death; raises `RunFailedError` if there were too many."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) > MAX_RESTARTS:
            raise RunFailedError(
                f"{self.name} died {len(self._deaths)} times within an hour; if its log shows no "
                f"error, {MEMORY}: lower actors.num or actors.games_in_flight; "
                f"{again(self._folder)}"
            ) from error
        log.warning("%s died and is restarted: %s", self.name, error)
        differs = self._config.loop.mode == "sync" and not self._repeats
        self._say(
            f"{self.name} died and is restarted; its games are replayed"
            + (" and may differ from the lost ones" if differs else "")
        )

    async def _successor(self) -> Process:
        """Start a process with the dead one's state and versions, once GPU memory is free."""
        share = self._config.actors.gpu_memory
        if self._placement.gpus and isinstance(share, float):
            with self._waits.on(f"{self.name}: memory of GPU {'+'.join(self._placement.gpus)}"):
                await self._until_free(share)
        process = await self._begin()
        with ExitStack() as undo:
            undo.callback(process.kill)
            if self._state is not None:
                await self._tell(process, "restore", self._state)
            if self._newest is not None:
                await self._tell(process, "announce", self._newest)
            given: set[PlayerId] = set()  # last, since more may be published meanwhile
            while lacking := [each for each in self._published if each not in given]:
                held = await self._held(lacking[0], self._published[lacking[0]])
                await self._tell(process, "publish", lacking[0], held)
                given.add(lacking[0])
            undo.pop_all()
        return process

    async def _until_free(self, share: float) -> None:
        """Wait until this share of the memory of the actor's GPUs is free."""
        await until_free(self._placement.gpus, share)

    async def _held(self, version: PlayerId, adapter: HeldAdapter | None) -> HeldAdapter | None:
        """Return the adapter to send to the process; None if it reads the version's checkpoint."""
        return adapter

    async def _tell(self, process: Process, method: str, *arguments: object) -> None:
        """Call a process that is not watched yet, within `loop.start_timeout`."""
        async with in_time(self._config, self.name, self._folder):
            await process.call(method, *arguments)


def _unfinished(specs: Sequence[GameSpec], given: Container[int]) -> list[GameSpec]:
    """Return the missing members of groups that have a member in `given`."""
    begun = {spec.game_id - spec.member for spec in specs if spec.game_id in given}
    return [
        spec for spec in specs if spec.game_id not in given and spec.game_id - spec.member in begun
    ]
