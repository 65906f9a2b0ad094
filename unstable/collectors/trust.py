"""Whether what an env raises at an action is the mover's fault, where no list of moves says so."""

from collections import Counter

from unstable.types import GameFailure, GameResult

GAMES = 20
"""Games that an env must have ended by accepted steps."""
SHARE = 0.9
"""Of these and the games at which it raised, or that failed otherwise, the least that they are."""


class Trust:
    """What became of each env's games: one that plays well is not to blame for what it raises.

    Else an env with a fault would make forfeits out of good moves, and a policy that has found an
    action at which a good env raises could void the games that it is about to lose.
    """

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        self.raised: Counter[str] = Counter()

    def add(self, result: GameResult | GameFailure) -> None:
        """Take in a game; one that was cut off, or forfeited by an answer, says nothing."""
        env = result.spec.env
        if isinstance(result, GameFailure):
            self.raised[env] += 1
            return
        for game in result.games:
            self.raised[env] += game.raised
            self.ended[env] += game.forfeit is None and not game.truncated

    def __contains__(self, env: str) -> bool:
        ended, raised = self.ended[env], self.raised[env]
        return ended >= GAMES and ended >= SHARE * (ended + raised)
