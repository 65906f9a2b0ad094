"""Games on TextArena 1.x's base class: judges that do not answer, wrong lists of moves.

Under TextArena 0.7 the classes exist, but cannot be played.
"""

from typing import Any

from unstable.games.catalog.bare import GAME_ENV


class Judged(GAME_ENV or object):  # type: ignore[misc]
    """A race to two moves, each of which a judge must confirm; `down` times it does not answer."""

    min_players = max_players = 2
    down = 0

    def setup(self) -> dict[str, Any]:
        return {"asked": 0, "moves": 0}

    def prompt(self, player_id: int) -> str:
        return f"You are Player {player_id}. Say anything."

    def apply(self, player_id: int, move: str) -> Any:
        state = self.game_state
        state["asked"] += 1
        if state["asked"] <= self.down:
            return self.retryable("the judge does not answer")
        state["moves"] += 1
        return self.winner(player_id, "Two moves.") if state["moves"] == 2 else None


class BusyJudge(Judged):
    """A judge that answers at the third attempt; its `step` returns only whether the game ended."""

    down = 2

    def step(self, action: str) -> bool:
        over = super().step(action)
        return over[0] if isinstance(over, tuple) else over


class DeadJudge(Judged):
    """A judge that never answers."""

    down = 10**9


class Misprinted(Judged):
    """A game whose board lists an action that it refuses."""

    def render(self, player_id: int) -> str:
        return "Available moves: 'yes', 'no', 'never'"

    def apply(self, player_id: int, move: str) -> Any:
        return super().apply(player_id, move) if move == "yes" else self.invalid("Say yes.")


class PrintsOnce(Judged):
    """A game whose board lists actions at the first turn only."""

    def render(self, player_id: int) -> str | None:
        return None if self.game_state["moves"] else "Legal actions: 'yes'"


class Raising(Judged):
    """A game that raises at every action, also at listed ones."""

    def render(self, player_id: int) -> str:
        return "Available moves: 'yes', 'no'"

    def apply(self, player_id: int, move: str) -> Any:
        raise KeyError(move)
