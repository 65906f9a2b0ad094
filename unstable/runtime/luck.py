"""Luck in the moves of recorded games, by an earlier version's critic of the whole state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from unstable.collectors.players.base import Position
from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.config import GameConfig
from unstable.solving.control_variates import Draw, luck
from unstable.solving.draws import PROGRAMS, replayed
from unstable.solving.tree import Node
from unstable.types import BASE, GameResult, KnownPlayer, PlayerId, SeatSpec

if TYPE_CHECKING:
    from unstable.learners.saved_critic import SavedCritic

T = TypeVar("T")
Values = Sequence[float]
"""Value of a move for each seat, in rewards."""


class MoveLuck:
    """Luck in the moves of a game's players with known probabilities, which needs no tree.

    Draws of chance, whose outcomes only a tree lists, are left out, and so is their luck.
    """

    def __init__(self, game: GameConfig, critic: "SavedCritic", model: ModelPlayer) -> None:
        self._game, self._critic, self._model = game, critic, model

    async def of(self, result: GameResult, known: Mapping[SeatSpec, KnownPlayer]) -> list[float]:
        """Return each seat's luck in a game, in rewards."""
        draws, seats = list[Draw[Values]](), result.spec.seats
        for game, turn in replayed(self._game, result):
            player = known.get(seats[turn.seat])
            if player is None:
                continue
            moves, sampled = game.legal_moves(), turn.answer.sampled
            answers = legal_answers(self._model.prompts, moves, self._model.max_tokens)
            if isinstance(player, PlayerId):
                assert sampled is not None, "a local model plays"
                adapter = None if player == BASE else player.name
                shares = await self._model.move_probabilities(adapter, sampled.prompt_ids, moves)
                place = _place(answers, sampled.token_ids)
            else:
                table = PROGRAMS[player](Node(actions=tuple(moves)), game)
                shares = [table.get(move, 0.0) for move in moves]
                place = _place(moves, turn.answer.action)
            draws.append(self._draw(game, turn.seat, answers, shares, place))
        return [luck(draws, tuple, [seat]) for seat in range(len(seats))]

    def _draw(
        self,
        game: Position,
        seat: int,
        answers: Sequence[Sequence[int]],
        shares: Sequence[float],
        place: int,
    ) -> Draw[Values]:
        """Return the draw of a move, whose successors are their own values.

        Answers other than a move's usual spelling are one outcome, as bad as the worst move.
        """
        state = self._model.prompts.encode_state(game.whole_state())
        values = self._critic.values(self._game.key, state, answers, self._game.seats)
        worst = min(values, key=lambda each: each[seat])
        return Draw((*shares, max(0.0, 1 - sum(shares))), (*values, worst), place)


def _place(known: list[T], played: T) -> int:
    """Return the index of what was played, or the number of all if it is not among them."""
    return known.index(played) if played in known else len(known)
