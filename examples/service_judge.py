"""A judge that is your own service: a function that sends it many plays in one call.

    judges:
      style:
        kind: service_judge:score
        args: {url: "http://127.0.0.1:8000/"}
        retries: 2
        cache: memory

Adapt it to your service's requests and responses. docs/feedback.md describes the content of `item`.
"""

import httpx

from unstable.rewards import item
from unstable.types import GameResult


async def score(results: list[GameResult], seats: list[int], url: str) -> list[float | None]:
    """Return a value for each seat's whole play; a function with `turns` values turns."""
    items = [item(result, seat) for result, seat in zip(results, seats, strict=True)]
    async with httpx.AsyncClient() as client:
        reply = await client.post(url, json={"items": items}, timeout=None)
    values: list[float | None] = reply.raise_for_status().json()["values"]
    return values
