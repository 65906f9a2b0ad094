"""A worker replies, raises, is restarted after its end, and is killed after its time limit."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable

import pytest

from unstable.processes.fork_server import ForkServer
from unstable.processes.worker import Beat, Worker, WorkerError


class OddError(Exception):
    """An error that cannot be unpickled."""

    def __init__(self, *, what: str) -> None:
        super().__init__(f"odd: {what}")


def act(request: str, beat: Beat) -> object:
    match request:
        case "raise":
            raise LookupError("no such word")
        case "odd":
            raise OddError(what="all")
        case "exit":
            raise SystemExit(3)
        case "lambda":
            return lambda: 1
        case "crash":
            os._exit(5)
        case "hang":
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
            time.sleep(600)
        case "slow":
            for _ in range(6):
                time.sleep(0.2)
                beat()
    return os.getpid()


def acting() -> Callable[[str, Beat], object]:
    return act


async def test_worker_replies_raises_errors_and_restarts() -> None:
    worker = Worker("the worker", acting)
    pid = await worker.ask("pid")
    assert pid != os.getpid()
    with pytest.raises(LookupError, match="no such word") as found:
        await worker.ask("raise")
    assert "in act" in found.value.__notes__[0]
    with pytest.raises(RuntimeError, match="OddError: odd: all"):
        await worker.ask("odd")
    with pytest.raises(SystemExit):
        await worker.ask("exit")
    with pytest.raises(Exception, match="pickle"):
        await worker.ask("lambda")
    assert await worker.ask("pid") == pid
    with pytest.raises(WorkerError, match="^the worker exited with exit code 5$"):
        await worker.ask("crash")
    second = await worker.ask("pid")
    assert second != pid
    worker.close()
    assert worker._process is None
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


async def test_worker_is_killed_at_time_limit_unless_it_beats() -> None:
    worker = Worker("the worker", acting, limit_s=1.0)
    pid = await worker.ask("slow")
    with pytest.raises(WorkerError, match="^the worker timed out after 1 s$"):
        await worker.ask("hang")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert worker._process is None


async def test_requests_are_serialized_and_canceled_ones_dropped() -> None:
    worker = Worker("the worker", acting)
    one, other = await asyncio.gather(worker.ask("slow"), worker.ask("pid"))
    assert one == other
    hanging = asyncio.create_task(worker.ask("hang"))
    await asyncio.sleep(0.1)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert await worker.ask("pid") != one
    worker.close()


PREPARED: list[int] = []


def prepare() -> None:
    PREPARED.append(os.getpid())


def serve(connection: socket.socket) -> None:
    connection.sendall(f"{PREPARED[0]} {os.getpid()}".encode())
    time.sleep(600)


def test_forks_share_one_prepared_server_and_end_with_it() -> None:
    server = ForkServer(prepare, serve)
    connections = [server.fork(), server.fork()]
    told = [connection.recv(1000).decode().split() for connection in connections]
    (first, one), (second, other) = told
    assert first == second and len({first, one, other}) == 3
    server.close()
    assert [connection.recv(1) for connection in connections] == [b"", b""]
