"""Endpoint server with scripted replies."""

import dataclasses
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unstable.collectors.players.openai import OpenAIPlayer
from unstable.config import GameConfig, OpenAIOpponent
from unstable.games.game import Game
from unstable.types import Answer


@dataclasses.dataclass
class Reply:
    """The server's reaction to a request: it may wait, hang up, or answer."""

    status: int = 200
    body: Any = None  # or a function of the request's body
    wait_s: float = 0.0
    hangs_up: bool = False
    headers: dict[str, str] = dataclasses.field(default_factory=lambda: {"retry-after-ms": "1"})


def says(content: object, tokens: int | None = 100, finish: str = "stop") -> Reply:
    """A reply as an endpoint makes it."""
    message = {"role": "assistant", "content": content}
    body: dict[str, Any] = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if tokens is not None:
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": tokens}
    return Reply(body=body)


class Server:
    """A server that sends its replies in order and repeats the last one forever."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [says("[4]")]
        self.asked = 0
        self.bodies: list[dict[str, Any]] = []  # request bodies
        self.heads: list[tuple[str, str]] = []  # their paths and keys
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.heads.append((self.path, self.headers["Authorization"]))
                reply = server.next(body)
                time.sleep(reply.wait_s)
                if reply.hangs_up:
                    self.close_connection = True
                    return
                answer = reply.body(body) if callable(reply.body) else reply.body
                is_text = isinstance(answer, str)
                self.send_response(reply.status)
                self.send_header("Content-Type", "text/html" if is_text else "application/json")
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write((answer if is_text else json.dumps(answer)).encode())

            def do_GET(self) -> None:
                self.send_response(404)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def next(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.asked += 1
            self.bodies.append(body)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def opponent(server: Server, **changes: Any) -> OpenAIOpponent:
    fields = {"name": "remote", "model": "m", "api_key_env": "A_KEY", "base_url": server.url}
    return OpenAIOpponent(**fields | changes)


async def answer(server: Server, temperature: float = 1.0, **changes: Any) -> Answer:
    game = Game(GameConfig(prompt="answer"), 0)
    player = OpenAIPlayer(opponent(server, **changes), game.config, temperature)
    return await player.act(game.observe(), game, 0)


async def ask(server: Server, **changes: Any) -> str:
    return (await answer(server, **changes)).action
