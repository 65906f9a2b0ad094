"""Network checks: whether an address answers, and the pauses between retries."""

import random
import threading
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

from unstable.config.escape import spare_loopback

PATIENCE_S = 5.0


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """Handler that takes a redirect as an answer and does not follow it."""

    def redirect_request(self, *_: object) -> None:
        return None


def silence(url: str) -> str | None:
    """Return why nothing answers at a URL within `PATIENCE_S`; None if anything does.

    An HTTP error is an answer. Requests to other hosts use the environment's proxies, as the
    libraries that send later requests do.
    """
    outcome: list[str | None] = ["no answer"]

    def ask() -> None:
        spare_loopback()
        try:
            urllib.request.build_opener(_NotFollowed).open(url, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError:
            pass  # an error status is an answer
        except (OSError, ValueError, HTTPException) as error:
            outcome[0] = " ".join(str(getattr(error, "reason", error)).split())
            return
        outcome[0] = None

    # A separate thread, since name resolution has no timeout.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return outcome[0]


def retry_after(headers: Any) -> float | None:
    """Return the seconds to wait by a reply's headers, a number or a date; None if not stated."""
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        if (value := headers.get("retry-after")) is None:
            return None
        if value.strip().replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def backoff(failed: int, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait after `failed` tries, with jitter between simultaneous ones."""
    jitter = random.Random(time.monotonic_ns()).uniform(0.75, 1.0)
    return jitter * min(first_s * 2 ** (failed - 1), longest_s)
