"""A game as a person at a terminal sees and plays it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from unstable.collectors.play import contained
from unstable.collectors.players.base import LeftError, Player, Position, scripted
from unstable.commands.play.terminal import LEFT, Terminal
from unstable.config import one_line
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.types import Answer, GameResult, GameSpec, Observation, PlayerId

log = logging.getLogger(__name__)
T = TypeVar("T")
PROMPT = "your action> "
MOST_MOVES = 60  # listed legal actions
MOST_CHARACTERS = 500  # displayed part of an action; !why shows all of it
PATIENCE_S = 1.0
"""Seconds after which the person sees that another player has not answered yet."""
HELP = """\
Type an action as the rules say. Brackets of a listed action may be left out.
?       this list, and the legal actions if the game lists them
!hint   a solver's value of each legal action, if available
!why    each other player's last answer, and its action
!probs  a model's probability of each action in its last turn
!quit   end the game and save it; so do Ctrl-D and Ctrl-C"""


class OpponentTurn(NamedTuple):
    """Another player's last turn."""

    answer: Answer
    moves: list[str] | None  # legal ones; None: the game does not list them
    position: str  # in a compact prompt's form


class PlayTable:
    """The person's seat, if any, and the other players in the person's view.

    `probabilities` returns lines with a model's probability of each action.
    """

    def __init__(
        self,
        terminal: Terminal,
        spec: GameSpec,
        own: int | None,
        probabilities: Callable[[PlayerId, OpponentTurn], Awaitable[list[str]]],
    ) -> None:
        self._terminal, self._spec, self._own = terminal, spec, own
        self._probabilities = probabilities
        self._asked: dict[int, OpponentTurn] = {}
        self._events: list[str] = []
        self._rules = ""
        self._doubtful = ""  # unlisted action that needs a second entry
        self._game: Game | None = None
        self.failure = ""
        """Reason why another player failed; empty if none has."""

    def seated(self, seat: int, player: Player | None) -> Player:
        """Return the player at a seat with its turns shown; `player` None is the person."""
        return self if player is None else _OtherPlayer(self, player, seat)

    def name(self, seat: int) -> str:
        """Return the name of a seat's player, "you" for the person."""
        return "you" if seat == self._own else self._spec.seats[seat].player.name

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Act as the person's player; raises `LeftError` if no action comes."""
        assert isinstance(game, Game), "not a local game"
        self._game, self._doubtful = game, ""
        self._show_position(observation)
        while True:
            line = await _or_leave(self._terminal.ask(PROMPT))
            if line == "!quit":
                raise LeftError(LEFT)
            if line == "?" or line.startswith("!"):
                for shown in await _or_leave(self._reply(line, game)):
                    self._terminal.show(shown)
            elif line and (action := self._action(line, game)) is not None:
                return scripted(observation, action)

    def _show_position(self, observation: Observation) -> None:
        """Show what is new since the person's last turn: rules and events once, and the board."""
        known = len(self._events)
        is_more = observation.events[:known] == self._events
        events = observation.events[known:] if is_more else observation.events
        rules = "" if observation.rules == self._rules else observation.rules
        self._events, self._rules = list(observation.events), observation.rules
        parts = (rules, "\n".join(events), observation.board, observation.notice)
        for part in filter(None, parts):
            self._terminal.show(f"\n{part}")

    def _action(self, line: str, game: Game) -> str | None:
        """Return the action of a line; None if the person must enter another line."""
        if not line.isprintable():
            self._terminal.show("The line has control characters; type it again.")
            return None
        if not lists_legal_moves(game.config):
            return line
        moves = game.legal_moves()
        if line in moves:
            return line
        if (bracketed := f"[{line}]") in moves:
            return bracketed
        if line == self._doubtful:
            return line
        self._doubtful = line
        self._terminal.show(
            "This is not a listed legal action (? lists them). Enter the same line again to play "
            "it anyway."
        )
        return None

    async def _reply(self, command: str, game: Game) -> list[str]:
        """Return the answer to a command, in lines."""
        if command == "?":
            moves = game.legal_moves() if lists_legal_moves(game.config) else []
            more = f" and {len(moves) - MOST_MOVES:,} more" if len(moves) > MOST_MOVES else ""
            listed = f"Legal actions: {' '.join(moves[:MOST_MOVES])}{more}"
            return [HELP, *([listed] if moves else [])]
        if command == "!hint":
            return hint(game)
        if command not in ("!why", "!probs"):
            return [f"Unknown command {command}; ? lists them."]
        if not self._asked:
            return ["No other player has moved yet."]
        if command == "!why":
            return [line for seat, asked in self._asked.items() for line in self._why(seat, asked)]
        found = []
        for seat, asked in self._asked.items():
            found += await self._probabilities(self._spec.seats[seat].player, asked)
        return found

    def _why(self, seat: int, asked: OpponentTurn) -> list[str]:
        answer, who = asked.answer, f"{self.name(seat)} (seat {seat})"
        prompted = prompted_position(answer, asked.position)
        if answer.text == answer.action:
            said = f"{who} answered {answer.action} and nothing else."
            return [*([prompted] if prompted else []), said]
        action = answer.action if answer.formatted else f"{answer.action} (no action found)"
        told = [f"{who} answered:", answer.text, f"Its action: {action}"]
        return [*([prompted] if prompted else []), *told]

    async def watch(
        self, seat: int, player: Player, turn: tuple[Observation, Position, int]
    ) -> Answer:
        """Take another player's turn, and show the person what the game shows to all."""
        observation, game, seed = turn
        assert isinstance(game, Game), "not a local game"
        self._game = game
        moves = game.legal_moves() if lists_legal_moves(game.config) else None
        waiting = f"{self.name(seat)} (seat {seat}) is thinking ..."
        notice = asyncio.get_running_loop().call_later(PATIENCE_S, self._terminal.show, waiting)
        try:
            with contained():
                answer = await _or_leave(player.act(observation, game, seed))
        except LeftError:
            raise
        except Exception as error:  # a player's fault ends the game, which is still saved
            log.exception("seat %d", seat)
            self.failure = one_line(f"{self.name(seat)} failed: {error}")
            raise LeftError(self.failure) from error
        finally:
            notice.cancel()
        self._asked[seat] = OpponentTurn(answer, moves, observation.position)
        if self._own is None and observation.board:
            self._terminal.show(f"\n{observation.board}")
            if prompted := prompted_position(answer, observation.position):
                self._terminal.show(prompted)
        # In other games an action may be secret; the game shows what the person may know.
        is_seen = self._own is None or self._shows_all()
        action = answer.action
        brief = action if len(action) <= MOST_CHARACTERS else f"{action[:MOST_CHARACTERS]} ..."
        done = f"plays {brief}" if is_seen else "has moved"
        self._terminal.show(f"\n{self.name(seat)} (seat {seat}) {done}")
        return answer

    def _shows_all(self) -> bool:
        return self._game is not None and self._game.shows_all

    def show_end(self, result: GameResult) -> None:
        """Show the end of the game."""
        left = result.reason == LEFT
        if self._game is not None and not left and (self._own is None or self._shows_all()):
            self._terminal.show(f"\n{self._game.board}")
        self._terminal.show(f"\nThe game is over: {result.reason or 'no reason given'}")
        if result.truncated:
            return
        for seat, outcome in enumerate(result.outcomes):
            self._terminal.show(
                f"  seat {seat}, {self.name(seat)}: {result.standing(seat)}, outcome {outcome:+g}"
            )


@dataclass(frozen=True, slots=True)
class _OtherPlayer:
    """Another player, whose turns the person sees."""

    table: PlayTable
    player: Player
    seat: int

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        return await self.table.watch(self.seat, self.player, (observation, game, seed))


def prompted_position(answer: Answer, position: str) -> str:
    """Return a line with the position in a model's compact prompt; empty without such a prompt.

    In the prompt X is always the player to move, even if its stone on the board is another.
    """
    if not position or answer.sampled is None or position not in answer.observation:
        return ""
    gap = "\n" if "\n" in position else " "
    return f"in its prompt:{gap}{position}"


async def _or_leave(waited: Awaitable[T]) -> T:
    """Await a value; Ctrl-C ends the wait and thus the game, which is still saved."""
    try:
        return await waited
    except asyncio.CancelledError:
        raise LeftError(LEFT) from None


def hint(game: Game) -> list[str]:
    """Return lines on the known worth of legal actions of the seat to move, best first."""
    if (action_values := game.action_values()) is not None:
        ranked = sorted(action_values.items(), key=lambda pair: -pair[1])
        lines = [
            f"  {action}  {worth:+g}" if worth else f"  {action}  0" for action, worth in ranked
        ]
        return ["Outcome of each action under perfect play:", *lines]
    if game.info.expert is None:
        return [f"No solver for {game.config.key}."]
    ranked = sorted(game.expert_moves().items(), key=lambda pair: -pair[1])
    what = "An equilibrium plays" if game.info.small_tree is not None else "The expert plays"
    return [f"{what}:", *(f"  {action}  {100 * share:.0f} %" for action, share in ranked)]
