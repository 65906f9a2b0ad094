"""Concurrent games on one event loop: started in order, bounded, with failures kept per game."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from unstable.collectors.branches import Explore, Forks, play_branches, sampled_first
from unstable.collectors.isolation import GameJob, IsolatedGameError, play_isolated, serve_game
from unstable.collectors.play import PlayerFactory, contained, play_game, players_of
from unstable.collectors.players import player_class
from unstable.collectors.players.several import JudgeAnswer
from unstable.collectors.watch import task_name
from unstable.config import RunConfig, one_line
from unstable.config.game import DRIVER
from unstable.config.plugins import import_all, registered
from unstable.engines.base import Engine, EngineDiedError
from unstable.games.bridges import is_bridged
from unstable.processes.fork_server import ForkServer
from unstable.prompts import shorten
from unstable.types import ActorState, Answer, GameFailure, GameResult, GameSpec, PlayerId, Turn

if TYPE_CHECKING:
    from unstable.collectors.driven.driving import Driving


class Collector:
    """A player of many games on one engine. `actors.games_in_flight` must be a number by now.

    The engine's owner loads the adapters of fixed opponents and of the policy's versions. Without
    an engine and its tokenizer it plays games that need no local model.
    """

    def __init__(
        self,
        config: RunConfig,
        engine: Engine | None,
        tokenizer: Any,
        judges: Mapping[str, JudgeAnswer] | None = None,
    ) -> None:
        """Create the collector; `judges` are as in `PlayerFactory`."""
        assert isinstance(config.actors.games_in_flight, int)
        self._config = config
        self._engine = engine
        self._limit = config.actors.games_in_flight
        self._opponents = config.fixed_opponents
        self._games = config.game_by_key
        self.players = PlayerFactory(config, engine, tokenizer, judges)
        self.prompts = self.players.prompts
        self._plays: list[_PlayCall] = []
        self._standing = _PlayCall(deque(), None)  # for `play_on`
        self._beginning = asyncio.Lock()  # no game is in flight while the prefix cache is dropped
        self._retired: set[PlayerId] = set()  # versions
        self._tally = _CollectorTally()
        self._forks = Forks(config.groups.fork)
        self._explore: Explore = sampled_first
        if (rule := config.groups.explore.rule) != "none" and engine is not None:
            explorer = registered("exploration")[rule].load()
            self._explore = explorer(
                config.groups.explore,
                engine,
                self.prompts,
                sampling=config.sampling,
                seed=config.seed,
            ).answers
        self._trust = Trust()
        self._fork_server = ForkServer(partial(import_all, _users_modules(config)), serve_game)
        self.driving: Driving | None = None  # None without game drivers
        self._isolated = {key for key, game in self._games.items() if game.isolated}

    async def start(self) -> None:
        """Import the games' modules; open ports and start drivers if game drivers play."""
        needed = _users_modules(self._config) | _libraries(self._config)
        await asyncio.to_thread(import_all, needed)  # in a thread, not to block the event loop
        if any(game.is_driven for game in self._config.games):
            from unstable.collectors.driven.driving import Driving  # imports a web server

            self.driving = Driving(self._config)
            await self.driving.start()

    def announce(self, version: PlayerId) -> None:
        """Make this the version of seats that use the newest version at each turn."""
        self.players.newest.announce(version)

    async def retire(self, version: PlayerId) -> None:
        """Unload a version that no new game names, once no game in flight uses it."""
        self._retired.add(version)
        await self._remove_retired()

    async def _remove_retired(self) -> None:
        if self._engine is None:
            return
        specs = [spec for play in self._plays for spec in (*play.waiting, *play.running.values())]
        needed = {seat.player for spec in specs for seat in spec.seats}
        needed.update(version for spec in specs for version in spec.ensemble)
        gone = self._retired - needed - set(+self.players.newest.asking)
        self._retired -= gone
        for name in sorted(version.name for version in gone):
            await self._engine.unload(name)

    def stats(self) -> dict[str, float]:
        """Return the engine's stats; games, turns and failures since the start; games in flight."""
        return {
            **(self._engine.stats() if self._engine is not None else {}),
            "games": self._tally.games,
            "turns": self._tally.turns,
            "failures": self._tally.failures,
            "games_in_flight": self._games_in_flight,
        }

    def state(self) -> ActorState:
        """Return the state that later play depends on."""
        return ActorState(
            training_games=self._tally.training_games,
            trained_turns=self._tally.trained_turns,
            ended=dict(self._trust.ended),
            raised=dict(self._trust.raised),
            forks=self._forks.state(),
        )

    def restore(self, state: ActorState) -> None:
        """Restore a state that `state` returned."""
        self._tally.training_games = state.training_games
        self._tally.trained_turns = state.trained_turns
        self._trust.ended, self._trust.raised = Counter(state.ended), Counter(state.raised)
        self._forks.restore(state.forks)

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[GameResult | GameFailure]:
        """Play the specs as `play_together` does, and yield one result at a time."""
        async with aclosing(self.play_together(specs, enough)) as plays:
            async for results in plays:
                for result in results:
                    yield result

    def play_together(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncGenerator[list[GameResult | GameFailure]]:
        """Play the specs in order and yield results, failures included, as games finish.

        Each list holds all results that are ready when it is yielded.

        With `enough`, a game starts only while the trained turns of finished games, plus those
        expected of games in flight, are fewer. The remaining specs are dropped, but never part of a
        group: a group whose first members were played elsewhere is completed. The order of
        finishing alone decides which games start, never the speed of the reader. Purposes share
        `games_in_flight` evenly, and so do calls with the same purpose. Closing the iterator
        cancels its games. Raises `EngineDiedError`, which ends all games.
        """
        return self._results(_PlayCall(deque(specs), enough))

    def deal(self, specs: Iterable[GameSpec]) -> None:
        """Append specs to the queue of `play_on`."""
        self._standing.waiting.extend(specs)
        self._start_games()

    def play_on(self) -> AsyncGenerator[list[GameResult | GameFailure]]:
        """Play all specs that `deal` queues, forever, and yield results; one caller at a time."""
        self._standing.goes_on = True
        return self._results(self._standing)

    async def _results(self, play: "_PlayCall") -> AsyncGenerator[list[GameResult | GameFailure]]:
        async with self._beginning:
            # Cached prefixes would make games depend on earlier ones.
            if self._engine is not None and not self._plays:
                await self._engine.forget_prefixes()
            self._plays.append(play)
        try:
            self._start_games()
            while not play.over(self._tally):
                ended = [await play.results.get()]
                while not play.results.empty():
                    ended.append(play.results.get_nowait())
                if results := [each for each in ended if not isinstance(each, BaseException)]:
                    yield results
                for each in ended:
                    if isinstance(each, BaseException):
                        raise each
                if self._retired:
                    await self._remove_retired()
        finally:
            play.waiting.clear()
            for task in play.running:
                task.cancel()
            await asyncio.gather(*play.running, return_exceptions=True)
            self._plays.remove(play)
            await self._remove_retired()

    @property
    def _games_in_flight(self) -> int:
        return sum(play.games for play in self._plays)

    def _start_games(self) -> None:
        while self._games_in_flight < self._limit:
            hungry = [play for play in self._plays if play.wants_more(self._tally)]
            if not hungry:
                return
            running = Counter[str]()
            for play in self._plays:
                running[play.purpose] += play.games
            play = min(hungry, key=lambda play: (running[play.purpose], len(play.running)))
            spec = play.waiting.popleft()
            played = (
                play_branches(spec, self._play_game, self._config.seed, self._forks, self._explore)
                if spec.branches
                else self._play_game(spec)
            )
            task = asyncio.create_task(played, name=task_name(spec))
            play.running[task] = spec
            play.games += spec.branches or 1
            task.add_done_callback(partial(self._finish, play))

    def _finish(self, play: "_PlayCall", task: asyncio.Task[GameResult]) -> None:
        spec = play.running.pop(task)
        play.games -= spec.branches or 1
        if not task.cancelled():
            result = _failure(spec, error) if (error := task.exception()) else task.result()
            if isinstance(result, BaseException):
                play.results.put_nowait(result)
                return
            self._trust.add(result)
            play.results.put_nowait(result)
            play.trained_turns += self._tally.add(result)
        self._start_games()

    async def _play_game(
        self, spec: GameSpec, shared: Sequence[Turn] = (), first: Answer | None = None
    ) -> GameResult:
        game, seed = self._games[spec.env], self._config.seed
        trusted = spec.env in self._trust
        player = partial(self.players.player, game, spec.purpose)
        if game.is_driven:
            assert self.driving is not None, "started"
            return await self.driving.play(spec, player, self.prompts.get(spec.env))
        if spec.env in self._isolated:
            job = GameJob(
                spec=spec,
                config=game,
                opponents=self._opponents,
                run_seed=seed,
                shared=shared,
                first=first,
                trusted=trusted,
                moves=self.players.moves_needed(spec.purpose),
            )
            return await play_isolated(job, self._fork_server, player)
        with contained():
            players = players_of(spec, player)
            return await play_game(spec, game, players, seed, shared, first, trusted=trusted)

    def play_isolated(self, env: str) -> bool:
        """Play an env's games in separate processes from now on; False if players copy them."""
        if any(player_class(each).copies for each in self._opponents.values()):
            return False
        self._isolated.add(env)
        return True

    async def close(self) -> None:
        """End the games' processes and drivers; no game may be in flight."""
        if self.driving is not None:
            await self.driving.close()
        self._fork_server.close()


def _failure(spec: GameSpec, error: BaseException) -> GameFailure | BaseException:
    """Convert a game's exception to a `GameFailure`; returns errors that must end the collector.

    Only `EngineDiedError` and errors that are no `Exception` end it.
    """
    if isinstance(error, EngineDiedError) or not isinstance(error, Exception):
        return error
    if isinstance(error, IsolatedGameError):
        return replace(error.failure, spec=spec)
    failure = GameFailure.of(spec, error)
    return replace(failure, error=one_line(failure.error), traceback=shorten(failure.traceback)[0])


def _users_modules(config: RunConfig) -> set[str]:
    """Return the modules that games and opponents name in targets."""
    names = ("env", "info", "legal_moves", "payoffs", "seating")
    games = [getattr(game, name) for game in config.games for name in names]
    bots = [getattr(opponent, "target", None) for opponent in config.opponents.fixed]
    targets = [each for each in (*games, *bots) if each and ":" in each and not is_bridged(each)]
    targets = [each for each in targets if not each.startswith(f"{DRIVER}:")]
    return {target.partition(":")[0] for target in targets}


def _libraries(config: RunConfig) -> set[str]:
    """Return the libraries that the fixed opponents' players import."""
    kinds = map(player_class, config.fixed_opponents.values())
    return {library for kind in kinds for library in kind.libraries}


TRUST_GAMES = 20
"""Games that an env must have ended by accepted steps."""
TRUST_SHARE = 0.9
"""Least share of such games among these and the games that raised or failed."""


class Trust:
    """Counts of how each env's games ended, by which an env becomes trusted.

    If a trusted env does not list legal moves, its exceptions are the player's fault. Without
    trust, a faulty env would turn good moves into forfeits, or a policy could void games that it is
    about to lose by an action at which a good env raises.
    """

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()

    def add(self, result: GameResult | GameFailure) -> None:
        """Record a game; ignores truncated games and games that an answer forfeited."""
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


class _CollectorTally:
    """Counts of this collector's games and turns since it began."""

    def __init__(self) -> None:
        self.games = 0
        self.turns = 0
        self.failures = 0
        self.training_games = 0
        self.trained_turns = 0

    def add(self, result: GameResult | GameFailure) -> int:
        """Count a game that ended; returns its trained turns."""
        if isinstance(result, GameFailure):
            self.failures += 1
            return 0
        self.games += len(result.games)
        self.turns += sum(len(game.own_turns) for game in result.games)
        self.training_games += any(seat.trained for seat in result.spec.seats)
        self.trained_turns += result.num_trained
        return result.num_trained

    @property
    def mean_trained_turns(self) -> float:
        """Expected trained turns of a training game; 1 before the first."""
        return self.trained_turns / self.training_games if self.training_games else 1.0


class _PlayCall:
    """One call of `Collector.play_together`: waiting specs, running games and unread results."""

    def __init__(self, waiting: deque[GameSpec], enough: int | None) -> None:
        self.purpose = waiting[0].purpose if waiting else "train"
        self.waiting = waiting
        # In starting order.
        self.running: dict[asyncio.Task[GameResult], GameSpec] = {}
        self.games = 0  # in flight; a branching game counts as its number of branches
        self.results: asyncio.Queue[GameResult | GameFailure | BaseException] = asyncio.Queue()
        self.trained_turns = 0
        self.goes_on = False  # True: wait for more specs
        self._enough = float("inf") if enough is None else enough
        self._begun = _parts_of_groups(waiting)

    def wants_more(self, tally: _CollectorTally) -> bool:
        if not self.waiting:
            return False
        expected = self.trained_turns + len(self.running) * tally.mean_trained_turns
        first = self.waiting[0]
        return first.member > 0 or first.game_id in self._begun or expected < self._enough

    def over(self, tally: _CollectorTally) -> bool:
        if self.goes_on or self.running or not self.results.empty():
            return False
        return not self.wants_more(tally)


def _parts_of_groups(specs: Iterable[GameSpec]) -> set[int]:
    """Return ids of first members of incomplete groups, partly played before an actor died."""
    given = Counter(spec.game_id - spec.member for spec in specs)
    sizes = {
        spec.game_id: max((seat.group_size for seat in spec.seats if seat.trained), default=1)
        for spec in specs
        if not spec.branches
    }
    return {game_id for game_id, size in sizes.items() if given[game_id] < size}
