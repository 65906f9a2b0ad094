"""Isolation of games: a fault of an env or a bot fails that game alone, within its time limit."""

import asyncio
import importlib
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from msgspec.structs import replace

from tests.helpers import builders
from tests.helpers.collector import Scripted
from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from tests.helpers.unruly import BOTS
from unstable.collectors import collector as collector_module
from unstable.collectors import watch as watch_module
from unstable.collectors.collector import Collector, Trust
from unstable.collectors.players.python import PythonPlayer
from unstable.collectors.watch import LoopWatch, task_name
from unstable.config import GameConfig, parse
from unstable.config.plugins import import_all
from unstable.engines.base import SamplingRequest
from unstable.games.game import Game
from unstable.types import GameFailure, GameResult, GameSpec, Observation, PlayerId, SeatSpec


def collector(engine: Any = None, endpoint: str = "http://nowhere", **game: Any) -> Collector:
    """Build a collector of an unruly game and TicTacToe, both with the settings `game`."""
    remote = {"kind": "openai", "name": "remote", "model": "any", "base_url": endpoint}
    config = parse(
        {
            "games": [
                {"env": "tests.helpers.unruly:Unruly", "name": "unruly", **game},
                {"env": "TicTacToe-v0", "prompt": "answer", **game},
            ],
            "opponents": {
                "fixed": [
                    remote,
                    *({"kind": "python", "name": name, **bot} for name, bot in BOTS.items()),
                ]
            },
            "actors": {"games_in_flight": 8},
        }
    )
    return Collector(config, engine or Scripted(), tiny_tokenizer())


def spec(game_id: int, *players: str, env: str = "unruly", **changes: Any) -> GameSpec:
    made = builders.spec(players, game_id=game_id, env=env)
    return replace(made, seed=5, **changes)


async def played(playing: Collector, *specs: GameSpec) -> list[GameResult | GameFailure]:
    found = [result async for result in playing.play(specs)]
    await playing.close()
    return sorted(found, key=lambda result: result.spec.game_id)


RAISED = {
    "raise": "ValueError: no such square",
    "exit": "SystemExit(3)",
    "interrupt": "KeyboardInterrupt()",
    "cancel": "CancelledError()",
}


async def of_each(playing: Collector, errors: dict[str, str]) -> dict[str, GameFailure]:
    """Play a game with each env and bot fault among valid games; return the failures by fault."""
    faults = [f"{who}_{what}" for who in ("env", "bot") for what in errors]
    others = [other for fault in faults for other in ("counts", fault)] + ["counts"]
    results = await played(playing, *(spec(i, "counts", who) for i, who in enumerate(others)))
    good, failed = results[::2], results[1::2]
    assert [type(each) for each in good] == [GameResult] * len(good)
    return {
        fault: each
        for fault, each in zip(faults, failed, strict=True)
        if isinstance(each, GameFailure)
    }


@pytest.mark.fault("an env, bot or reward term raises or exits")
async def test_exception_fails_only_its_game() -> None:
    found = await of_each(collector(), RAISED)
    assert len(found) == 2 * len(RAISED)
    for name, failed in found.items():
        assert RAISED[name.partition("_")[2]] in failed.error
        assert "misbehave" in failed.traceback


@every_row("what", "exit", "cancel")
async def test_exception_in_branch_fails_its_game(what: str) -> None:
    branching = spec(0, "main@0", "counts", branches=2)
    failing = replace(branching, game_id=10, seats=spec(0, "main@0", f"bot_{what}").seats)
    results = await played(collector(), branching, failing)
    assert [type(each) for each in results] == [GameResult, GameFailure]


APART = {
    "raise": "ValueError: no such square",
    "exit": "SystemExit: 3",
    "sleep": "TimeoutError: unruly: a turn exceeded games.turn_timeout = 5 s",
    "crash": "RuntimeError: unruly: the game's process crashed",
}


async def test_isolated_hang_or_crash_fails_only_its_game() -> None:
    found = await of_each(collector(isolated=True, turn_timeout=5), APART)
    assert len(found) == 2 * len(APART)
    for name, failed in found.items():
        assert failed.error.startswith(APART[name.partition("_")[2]])


async def test_canceled_isolated_game_leaves_no_process() -> None:
    playing, others = collector(isolated=True), psutil.Process().children(recursive=True)
    task = asyncio.create_task(played(playing, spec(0, "counts", "env_sleep")))
    begun: list[psutil.Process] = []
    while len(begun) < 2:  # the fork server and the game's process
        begun = [p for p in psutil.Process().children(recursive=True) if p not in others]
        await asyncio.sleep(0.05)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await playing.close()
    assert psutil.wait_procs(begun, timeout=60)[1] == []


async def test_isolated_games_equal_in_process_games() -> None:
    specs = [
        spec(0, "main@0", "random", env="TicTacToe-v0"),
        spec(1, "expert", "main@0", env="TicTacToe-v0"),
        spec(2, "main@0", "main@0", env="TicTacToe-v0"),
        spec(
            3,
            *("main@0", "base"),
            env="TicTacToe-v0",
            opening=2,
            opener=SeatSpec(player=PlayerId("random"), temperature=1.0),
        ),
        spec(4, "main@0", "random", env="TicTacToe-v0", branches=2),
    ]

    async def games(isolated: bool) -> list[GameResult]:
        results = await played(collector(isolated=isolated), *specs)
        found = [game for each in results for game in each.games]
        for game in found:
            for turn in game.turns:
                turn.seconds = 0.0
        return [replace(game, seconds=0.0, branches=[]) for game in found]

    assert await games(isolated=True) == await games(isolated=False)


@pytest.mark.fault("an env or bot hangs")
async def test_hanging_bot_fails_its_game() -> None:
    playing = collector(turn_timeout=0.5)
    good, failed = await played(playing, spec(0, "counts", "counts"), spec(1, "counts", "never"))
    assert isinstance(good, GameResult) and isinstance(failed, GameFailure)
    assert failed.error == "TimeoutError: never did not answer within games.turn_timeout = 0.5 s"


async def test_stalled_endpoint_fails_its_game(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accept(*_: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        playing = collector(endpoint=f"http://{host}:{port}", turn_timeout=0.5)
        (failed,) = await played(playing, spec(0, "remote", "counts"))
        server.close()
    assert isinstance(failed, GameFailure)
    assert failed.error == "TimeoutError: remote did not answer within games.turn_timeout = 0.5 s"


async def test_game_timeout_excludes_local_model_time() -> None:
    engine = Scripted(lambda: 0)

    async def generate(request: SamplingRequest) -> Any:
        await asyncio.sleep(0.5)
        return await Scripted.generate(engine, request)

    engine.generate = generate  # type: ignore[method-assign]
    playing = collector(engine, timeout=1.0)
    good, failed = await played(playing, spec(0, "main@0", "main@0"), spec(1, "slow", "slow"))
    assert isinstance(good, GameResult) and good.seconds > 1.0
    assert isinstance(failed, GameFailure)
    assert failed.error == "TimeoutError: unruly exceeded games.timeout = 1 s; raise it"


# Exceptions of envs


def unruly(listed: bool, trusted: bool = False) -> Game:
    moves = "tests.helpers.unruly:legal_moves" if listed else None
    config = GameConfig(env="tests.helpers.unruly:Unruly", name="unruly", legal_moves=moves)
    game = Game(config, seed=1, trusted=trusted)
    game.observe()
    game.step("[1]")
    game.observe()
    return game


@every_row("listed, trusted", (True, False), (True, True), (False, True))
def test_action_that_crashes_env_is_a_forfeit(listed: bool, trusted: bool) -> None:
    game = unruly(listed, trusted)
    done, invalid = game.step("[exit]")
    assert done and invalid
    assert (game.forfeit, game.raised, game.outcomes) == (1, True, [0.0, -1.0])
    assert game.reason == "Player 1 forfeits by an invalid move: the game raised SystemExit: 3"


def test_forfeit_reason_has_bounded_length() -> None:
    game = unruly(listed=True)
    game.step("[raise" + "!" * 10**6 + "]")
    assert game.raised and len(game.reason) < 10**5


def test_legal_action_that_crashes_env_raises() -> None:
    with pytest.raises(ValueError, match="no such square"):
        unruly(listed=True, trusted=True).step("[raise]")


def test_untrusted_env_without_legal_moves_raises() -> None:
    with pytest.raises(SystemExit):
        unruly(listed=False).step("[exit]")


async def test_env_without_legal_moves_gains_and_loses_trust(monkeypatch: Any) -> None:
    monkeypatch.setattr("unstable.collectors.collector.TRUST_GAMES", 4)
    breaking, good = (
        [spec(0, "counts", "env_raise")],
        [spec(i, "counts", "counts") for i in range(4)],
    )
    playing = collector()
    assert [type(each) for each in await played(playing, *breaking)] == [GameFailure]
    await played(playing, *good)  # 4 of 5 is below TRUST_SHARE
    assert [type(each) for each in await played(playing, *breaking)] == [GameFailure]
    for _ in range(4):
        await played(playing, *good)
    (forfeited,) = await played(playing, *breaking)
    assert isinstance(forfeited, GameResult)
    assert (forfeited.forfeit, forfeited.raised) == (1, True)
    assert forfeited.turns[-1].invalid
    assert [type(each) for each in await played(playing, *breaking)] == [GameFailure]


def test_truncated_or_forfeited_game_earns_no_trust() -> None:
    games = Trust()
    played = builders.game(env="unruly")
    for result in (replace(played, truncated=True), replace(played, forfeit=0)):
        for _ in range(50):
            games.add(result)
    assert "unruly" not in games


# Blocking games


def slept(seconds: float) -> str:
    time.sleep(seconds)
    return "[1]"


def in_a_bot(seconds: float) -> None:
    """A user's bot that takes `seconds`."""
    bot = PythonPlayer("time:sleep")
    bot._call = lambda _: slept(seconds)
    observation = Observation(seat=0, rules="", events=[], board="", notice="")
    with suppress(StopIteration):
        bot.act(observation, cast(Game, None), 0).send(None)


async def watched(
    seconds: float, limit: float, name: str, block: Callable[[float], None] = in_a_bot
) -> tuple[list[str], list[str]]:
    """Envs that were found to block and to be stuck, while a task blocks the loop.

    The watch has a fifth of its usual interval and limit.
    """
    blocked: list[str] = []
    stuck: list[str] = []

    async def blocking() -> None:
        block(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "INTERVAL_S", watch_module.INTERVAL_S / 5)
        patch.setattr(watch_module, "BLOCKED_S", watch_module.BLOCKED_S / 5)
        watch = LoopWatch(lambda env: limit, blocked.append, stuck.append)
        await asyncio.sleep(0.12)
        await asyncio.create_task(blocking(), name=name)
        await asyncio.sleep(0)
        watch.close()
    return blocked, stuck


async def test_watch_reports_blocking_game() -> None:
    name = task_name(spec(0, "counts", "counts"))
    assert await watched(1.2, 60.0, name) == (["unruly"], [])
    blocked, stuck = await watched(0.9, 0.2, name)
    assert (blocked, stuck[:1]) == (["unruly"], ["unruly"])


async def test_watch_ignores_other_tasks() -> None:
    assert await watched(0.9, 0.1, "a forward pass") == ([], [])


async def test_watch_ignores_client_code_in_game_task() -> None:
    """Code that blocks outside the game, such as an HTTP client in its task, is not reported."""
    name = task_name(spec(0, "counts", "counts"))
    assert await watched(0.9, 0.1, name, time.sleep) == ([], [])


async def test_game_modules_load_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import during a game would block the actor's event loop."""
    (tmp_path / "slow_game.py").write_text("import textarena\n\nclass Mine(textarena.Env): pass\n")
    (tmp_path / "slow_bot.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("slow_game", "slow_bot", "openai"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    imported: list[str] = []
    remote = {"kind": "openai", "name": "remote", "model": "any", "base_url": "http://nowhere"}
    config = parse(
        {
            "games": [{"env": "slow_game:Mine"}],
            "opponents": {"fixed": [remote, {"kind": "python", "target": "slow_bot:Bot"}]},
            "actors": {"games_in_flight": 8},
        }
    )
    assert collector_module._users_modules(config) == {"slow_game", "slow_bot"}
    assert collector_module._libraries(config) == {"openai"}
    monkeypatch.setattr(importlib, "import_module", imported.append)
    import_all({"slow_game", "slow_bot"})
    assert imported == ["slow_bot", "slow_game"]
    monkeypatch.undo()
    sys.path.insert(0, str(tmp_path))
    try:
        import_all({"slow_game", "slow_bot"})
        assert "slow_game" in sys.modules  # despite the other's SystemExit
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("slow_game", None)
