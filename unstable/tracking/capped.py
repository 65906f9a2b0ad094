"""Whether a game is mostly cut off by its cap, so that hardly anything is won or lost in it."""

from collections import defaultdict, deque

from unstable.config import RunConfig
from unstable.types import GameResult

GAMES = 16
"""The last games of an env that are looked at."""
SHARE = 0.5
"""A larger share of them that is cut off is worth a line."""


class Capped:
    """How the last games of each env ended; says once for an env that its cap is too low."""

    def __init__(self, config: RunConfig) -> None:
        self._places = {game.key: (n, game.max_turns) for n, game in enumerate(config.games)}
        self._cut: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=GAMES))
        self._said: set[str] = set()

    def add(self, result: GameResult) -> str | None:
        """Take in a finished game; a line for the person at the terminal, if there is one."""
        env, cut = result.spec.env, self._cut[result.spec.env]
        cut.extend(game.truncated for game in result.games)
        if env in self._said or len(cut) < GAMES or sum(cut) <= SHARE * GAMES:
            return None
        self._said.add(env)
        index, max_turns = self._places[env]
        return (
            f"games.{index}.max_turns = {max_turns} has cut off {sum(cut)} of the last {GAMES} "
            f"games of {env}, in which nobody wins anything; set it to the turns that a game may "
            "take (unstable games lists the longest ones)"
        )
