"""A teacher behind an endpoint: how much likelier it makes an answer than the policy did.

The sum over an answer's tokens of log pi_teacher - log pi_behaviour is, on average, minus the
KL of the answer to the teacher: Schulman's k1, http://joschu.net/blog/kl-approx.html, as rewards of
on-policy distillation have it, https://thinkingmachines.ai/blog/on-policy-distillation/.
"""

import asyncio
import math
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from unstable.config import hide_secrets, keep_secret, shown
from unstable.types import GameResult, SampledTokens, Turn

if TYPE_CHECKING:
    from httpx import AsyncClient

_CLIENTS: "WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient]" = WeakKeyDictionary()
"""One for each event loop, since its connections are the loop's."""


async def teacher(
    result: GameResult, turn: Turn, *, url: str, model: str, api_key_env: str | None = None
) -> float | None:
    """Log-probability of the answer under an endpoint's model less that under what sampled it.

    `url` is that of an OpenAI-compatible API, such as http://localhost:8000/v1, whose completions
    take token ids and give back log-probabilities of the prompt (`echo`), as vLLM's do. Its model
    has the policy's tokenizer; `ValueError` in one line where it has another, or gives none. The
    variable `api_key_env` holds a key. None where no local model answered.
    """
    sampled = turn.answer.sampled
    if sampled is None:
        return None
    ids = [*sampled.prompt_ids, *sampled.token_ids]
    # One token is asked for, and not looked at: some endpoints refuse to make none.
    body = {"model": model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1}
    reply = await _post(f"{url.rstrip('/')}/completions", body, api_key_env)
    texts, logprobs = _echoed(reply, len(ids), url)
    start = len(sampled.prompt_ids)
    _check_text("".join(texts[start:]), turn.answer.text, url)
    places = _scored_places(sampled)
    found = [logprobs[start + place] for place in places]
    if not all(_is_logprob(each) for each in found):
        raise ValueError(f"{url} gives {shown(found)} as log-probabilities of an answer")
    return math.fsum(found) - math.fsum(sampled.logprobs)


async def _post(url: str, body: dict[str, Any], api_key_env: str | None) -> Any:
    """What the endpoint answers; the term's own time-out bounds it."""
    import httpx  # takes a tenth of a second

    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        # A redirect would lead a game's prompts to a host that nobody named.
        _CLIENTS[loop] = httpx.AsyncClient(timeout=None, follow_redirects=False)
    headers = {}
    if api_key_env is not None:
        keep_secret(api_key_env)
        headers["Authorization"] = f"Bearer {os.environ.get(api_key_env, '')}"
    try:
        response = await _CLIENTS[loop].post(url, json=body, headers=headers)
    except httpx.HTTPError as error:
        raise ConnectionError(f"{url} does not answer: {type(error).__name__} {error}") from error
    if response.status_code != 200:
        said = hide_secrets(shown(response.text))
        raise ValueError(f"{url} answers {response.status_code}: {said}")
    try:
        return response.json()
    except ValueError:
        raise ValueError(f"{url} sent no JSON but {hide_secrets(shown(response.text))}") from None


def _echoed(reply: Any, count: int, url: str) -> tuple[list[str], list[Any]]:
    """Text and log-probability of each of the `count` tokens that were sent."""
    try:
        logprobs = reply["choices"][0]["logprobs"]
        texts, values = logprobs["tokens"], logprobs["token_logprobs"]
        lengths = {len(texts), len(values)}
    except (LookupError, TypeError):
        raise ValueError(
            f"{url} gives no log-probabilities of a prompt (echo with logprobs); serve the teacher "
            "with vLLM, or another server whose completions do"
        ) from None
    if len(lengths) > 1 or lengths.pop() not in (count, count + 1):
        raise ValueError(
            f"{url} has {len(values)} log-probabilities for {count} tokens; serve a model of the "
            "policy's own tokenizer"
        )
    return texts[:count], values[:count]


def _check_text(echoed: str, text: str, url: str) -> None:
    """Raise `ValueError` where the tokens mean another text to the teacher than to the policy."""
    # A token may be a part of a character, which alone has no text; and marks are in no answer's.
    letters = iter(echoed)
    if text.isascii() and not all(letter in letters for letter in text.strip()):
        raise ValueError(
            f"{url} reads the answer {shown(text)} as {shown(echoed)}: its tokenizer is another; "
            "serve a model of the policy's own"
        )


def _scored_places(sampled: SampledTokens) -> list[int]:
    """Where in the answer's tokens those are that the policy has sampled."""
    places: list[int] = []
    start = 0
    for segment in sampled.segments:
        end = start + len(segment.token_ids)
        places += range(start, end) if segment.scored else ()
        start = end
    return places


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value <= 1e-3
