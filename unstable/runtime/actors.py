"""Actors: each a process of its own, and how the loop calls it.

A dead actor is started again, gets its adapters back and plays its unfinished games once more.
Where play and learning take turns with our own engine, it plays the whole call once more, from what
the dead one knew as it began: so its games are those of a run without that death, to the bit.
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
from unstable.runtime.cluster import MEMORY, Process, again, forwarded, in_time
from unstable.runtime.heartbeat import comes_back, watch
from unstable.runtime.inside import ActorProcess
from unstable.runtime.local import LocalActor
from unstable.runtime.memory import until_free
from unstable.runtime.stream import Results, Stream, every_s
from unstable.types import ActorState, GameFailure, GameResult, GameSpec, PlayerId
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""Deaths of one actor in `WITHIN_S` seconds that are survived; more mean that it is not chance."""
WITHIN_S = 3600.0
ANSWER_S = 0.5
"""Seconds that an actor has to answer before it is asked to close."""
CLOSE_S = 20.0
"""Seconds that its engine has to end."""
NOT_REPEATED = {"retire", "wake"}
"""What is not asked again of a process that takes a dead one's place: it never had the version, and
is awake."""


class RemoteActor(Actor):
    """A `LocalActor` in another process, whose death it survives."""

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
        self._state: ActorState | None = None  # the newest that is known
        # Versions that are served, and the adapter of the last one: it may have no checkpoint yet.
        self._published: dict[PlayerId, HeldAdapter | None] = {}
        self._newest: PlayerId | None = None  # that was announced
        self._deaths: deque[float] = deque()  # when
        self._reviving = asyncio.Lock()
        self._waits = waits or Waits()
        self._calls = 0  # that are waited for
        self._dealt: dict[int, GameSpec] = {}  # and not over, by id
        self._standing: Stream | None = None  # that plays them
        self._watch: asyncio.Task[None] | None = None
        self.name = f"actor-{index}"

    async def start(self) -> None:
        """Start the process and load the model; from then on it is watched."""
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
        """A new process, which has not started."""
        arguments = (self._config, self._folder, self._index)
        return Process(ActorProcess, arguments, self._placement, threads=1, max_concurrency=10_000)

    async def _numbers(self) -> dict[str, float] | None:
        """The process's counters, None while it is dead."""
        try:
            return await self._process.call("stats")
        except RayActorError:
            return None

    async def play(self, specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        """Play games; what a dead process left unfinished is played again, from the same seeds."""
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
        """Yield what comes of a call, from one process after the other; no game comes twice."""
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
                # Groups that a dead process had begun and the next one, otherwise lucky, did not.
                asked, wanted = _unfinished(asked, came), None
            except RayActorError as error:
                await player._revive(process, error)
                if not self._repeats:
                    asked = [spec for spec in specs if spec.game_id not in came]
                    wanted = enough and max(0, enough - samples)

    def deal(self, specs: Sequence[GameSpec]) -> None:
        self._dealt |= {spec.game_id: spec for spec in specs}
        if self._standing is not None:
            self._standing.deal(specs)

    async def play_on(self) -> AsyncGenerator[Ended]:
        """Play what is dealt, for ever; what a dead process left unfinished is dealt again."""
        while True:
            player = await self._player()
            if player is not self and not self._dealt:
                await self.present()
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
            except RayActorError as error:
                self._standing = None  # until the next one is dealt what is left
                await player._revive(process, error)
            finally:
                self._standing = None

    def _dealt_to(self, player: "RemoteActor") -> AsyncGenerator[Results | Ended | ActorState]:
        """Yield what comes of all that is dealt; another `player` is dealt no more than that."""
        dealt = [*self._dealt.values()]
        if player is not self:
            return player._stream.play(dealt)
        self._standing = self._stream
        self._standing.deal(dealt)
        return self._standing.play_on()

    is_lost = False
    """Whether it has no process, and none that takes its place."""

    async def present(self) -> None:
        """Return once it has a process: without one it begins nothing."""

    async def _player(self) -> "RemoteActor":
        """Return the actor whose process plays its games."""
        return self

    @contextlib.asynccontextmanager
    async def _lent(self, other: "RemoteActor") -> AsyncIterator[None]:
        """Have the process play for another actor for the duration of the block."""
        assert other is self
        yield

    def _learn(self, state: ActorState, player: "RemoteActor") -> None:
        """Take in what is known after games that `player` has played for it."""
        self._state = state

    @property
    def _repeats(self) -> bool:
        """Return whether games that are played again are the same to the bit."""
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
        """Make a version playable, whatever becomes of the process.

        None is the adapter of its checkpoint, which all versions before it have to have.
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
    sleep = forwarded(LocalActor.sleep)
    wake = forwarded(LocalActor.wake)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of the process, and of the one that takes its place if it has died."""
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
        """Return what stands for a method's answer while the actor is lost."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Show that something is waited for during the block."""
        self._calls += 1
        try:
            with self._waits.on(f"{self.name}: {what}"):
                yield
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """End the engine in order; the process itself ends with the cluster.

        One that does not answer, such as one that a game blocks, is left to that end. One that has
        not started has been ended.
        """
        if self._watch is None:
            return
        self._watch.cancel()
        self._stream.close()
        with contextlib.suppress(RayActorError, TimeoutError):  # nothing is left to end then
            async with asyncio.timeout(ANSWER_S):
                await self._process.call("stats")
            async with asyncio.timeout(CLOSE_S):
                await self._process.call("close")

    async def _revive(self, dead: Process, error: RayError) -> None:
        """Start the process again with all its versions, once however many calls saw it die."""
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
                except RayError as failure:  # it has died too, or its engine did not start
                    error = failure

    async def _loses_place(self) -> bool:
        """Become lost if a process cannot be started at the actor's place again."""
        return False

    async def _answers_again(self, process: Process, error: RayError) -> bool:
        """Return whether a process out of reach is there after all, and its games go on.

        Where results of games were lost on the way it is as good as dead: they are played again.
        """
        if not isinstance(error, ActorUnavailableError):
            return False
        if not await comes_back(partial(process.call, "stats")):
            return False
        log.warning("%s could not be reached for a while", self.name)
        return not self._stream.is_broken

    def _count(self, error: RayError) -> None:
        """Count and report a death; raises `RunFailedError` where there were too many."""
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - WITHIN_S:
            self._deaths.popleft()
        if len(self._deaths) > MAX_RESTARTS:
            raise RunFailedError(
                f"{self.name} has died {len(self._deaths)} times in an hour; if its log does not "
                f"say why, {MEMORY}: lower actors.num or actors.games_in_flight; "
                f"{again(self._folder)}"
            ) from error
        log.warning("%s died and is started again: %s", self.name, error)
        differs = self._config.loop.mode == "sync" and not self._repeats
        self._say(
            f"{self.name} died and is started again; its games are played again"
            + (", and may differ from those that it would have played" if differs else "")
        )

    async def _successor(self) -> Process:
        """A process with what the dead one had: its memory, its versions, and what it knew."""
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
            given: set[PlayerId] = set()  # last: more may be published meanwhile
            while lacking := [each for each in self._published if each not in given]:
                held = await self._held(lacking[0], self._published[lacking[0]])
                await self._tell(process, "publish", lacking[0], held)
                given.add(lacking[0])
            undo.pop_all()
        return process

    async def _until_free(self, share: float) -> None:
        """Wait until its cards have their memory back."""
        await until_free(self._placement.gpus, share)

    async def _held(self, version: PlayerId, adapter: HeldAdapter | None) -> HeldAdapter | None:
        """Return the adapter to give to the process; None is that of the version's checkpoint."""
        return adapter

    async def _tell(self, process: Process, method: str, *arguments: object) -> None:
        """Call a process that is watched only once it is the actor's, within the time to start."""
        async with in_time(self._config, self.name, self._folder):
            await process.call(method, *arguments)


def _unfinished(specs: Sequence[GameSpec], given: Container[int]) -> list[GameSpec]:
    """Return the missing members of groups of which some are given."""
    begun = {spec.game_id - spec.member for spec in specs if spec.game_id in given}
    return [
        spec for spec in specs if spec.game_id not in given and spec.game_id - spec.member in begun
    ]
