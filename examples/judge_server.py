"""A judge as a service: rewards short games that were won. Begin here, and write your own `value`.

    python examples/judge_server.py 8000

Then, in a run's config: {term: http, args: {url: "http://127.0.0.1:8000/"}}. What an item holds,
and what may be answered, is in docs/feedback.md.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def value(item: dict[str, Any]) -> float | None:
    """What a turn or a seat's whole play is worth; None: nothing can be said."""
    if item["forfeit"]:
        return None
    return float(item["outcome"]) / len(item["turns"])


class Handler(BaseHTTPRequestHandler):
    """Answers POST {"items": [...]} with {"values": [...]}, a number or null for each item."""

    protocol_version = "HTTP/1.1"  # connections are kept

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"values": [value(item) for item in request["items"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Print nothing for each request."""


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
