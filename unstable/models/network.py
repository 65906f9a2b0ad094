"""Whether anything answers over the network, known within seconds."""

import threading
import urllib.error
import urllib.request
from http.client import HTTPException

PATIENCE_S = 5.0


class _NotFollowed(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer, and leads nowhere."""

    def redirect_request(self, *_: object) -> None:
        return None


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(_NotFollowed)


def silence(url: str) -> str | None:
    """Why nothing answers at a URL within `PATIENCE_S`; None where anything does, errors included.

    The proxies of the environment are used, as the libraries do that ask for more.
    """
    outcome: list[str | None] = ["it does not answer"]

    def ask() -> None:
        try:
            _opener().open(url, timeout=PATIENCE_S).close()
        except urllib.error.HTTPError:
            pass  # which is an answer
        except (OSError, ValueError, HTTPException) as error:
            outcome[0] = " ".join(str(getattr(error, "reason", error)).split())
            return
        outcome[0] = None

    # In a thread of its own: looking up a name has no time-out.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return outcome[0]
