"""Luck in the moves of recorded games, by an earlier version's critic of the whole state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unstable.collectors.players.base import Position
from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.config import GameConfig
from unstable.solving.control_variates import Draw, luck
from unstable.solving.draws import PROGRAMS, replayed
from unstable.solving.tree import Node
from unstable.types import BASE, GameResult, PlayerId, SeatSpec, Turn

if TYPE_CHECKING:
    from unstable.learners.saved_critic import SavedCritic

Values = Sequence[float]
"""Value of a move for each seat, in rewards."""
KnownPlayer = PlayerId | str
"""A local model that samples single free answers at temperature 1, or a built-in program's kind."""


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
            moves = [] if player is None else game.legal_moves()
            if isinstance(player, PlayerId):
                draws.append(await self._sampled(game, turn, moves, player))
            elif player is not None:
                table = PROGRAMS[player](Node(actions=tuple(moves)), game)
                shares = [table.get(move, 0.0) for move in moves]
                played = turn.answer.action
                place = moves.index(played) if played in moves else len(moves)
                draws.append(self._draw(game, turn, moves, shares, place))
        return [luck(draws, tuple, [seat]) for seat in range(len(seats))]

    async def _sampled(
        self, game: Position, turn: Turn, moves: Sequence[str], player: PlayerId
    ) -> Draw[Values]:
        """Return the draw of a local model's answer."""
        sampled = turn.answer.sampled
        assert sampled is not None, "a local model plays"
        adapter = None if player == BASE else player.name
        shares = await self._model.move_probabilities(adapter, sampled.prompt_ids, moves)
        answers = self._answers(moves)
        listed = sampled.token_ids in answers
        place = answers.index(sampled.token_ids) if listed else len(moves)
        return self._draw(game, turn, moves, shares, place)

    def _draw(
        self,
        game: Position,
        turn: Turn,
        moves: Sequence[str],
        shares: Sequence[float],
        place: int,
    ) -> Draw[Values]:
        """Return the draw of a move, whose successors are their own values.

        Answers other than a move's usual spelling are one outcome, as bad as the worst move.
        """
        state = self._model.prompts.encode_state(game.whole_state())
        answers, seats = self._answers(moves), self._game.seats
        values = self._critic.values(self._game.key, state, answers, seats)
        worst = min(values, key=lambda each: each[turn.seat])
        return Draw((*shares, max(0.0, 1 - sum(shares))), (*values, worst), place)

    def _answers(self, moves: Sequence[str]) -> list[list[int]]:
        return legal_answers(self._model.prompts, moves, self._model.max_tokens)
