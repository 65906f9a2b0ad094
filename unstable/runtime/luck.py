"""Luck in the moves of recorded games, by an earlier version's critic of the whole state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.config import GameConfig
from unstable.games.game import Game
from unstable.solving.control_variates import Draw, luck
from unstable.solving.draws import PROGRAMS
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

    Draws of chance, whose outcomes only a tree lists, are left out, so is their luck.
    """

    def __init__(self, game: GameConfig, critic: "SavedCritic", model: ModelPlayer) -> None:
        self._game, self._critic, self._model = game, critic, model

    async def of(self, result: GameResult, known: Mapping[SeatSpec, KnownPlayer]) -> list[float]:
        """Return each seat's luck in a game, in rewards."""
        game, draws = Game(self._game, result.spec.seed), list[Draw[Values]]()
        for turn in result.turns:
            game.observe()
            if (player := known.get(result.spec.seats[turn.seat])) is not None:
                draws.append(await self._draw(game, turn, player))
            game.step(turn.answer.action)
        return [luck(draws, tuple, [seat]) for seat in range(len(result.spec.seats))]

    async def _draw(self, game: Game, turn: Turn, player: KnownPlayer) -> Draw[Values]:
        """Return the draw of a turn's answer, whose successors are their own values.

        Answers other than a move's usual spelling are one outcome, as bad as the worst move.
        """
        model, moves = self._model, game.legal_moves()
        answers = legal_answers(model.prompts, moves, model.max_tokens)
        state = model.prompts.encode_state(game.whole_state())
        values = self._critic.values(self._game.key, state, answers, self._game.seats)
        sampled = turn.answer.sampled
        if isinstance(player, str):
            table = PROGRAMS[player](Node(actions=tuple(moves)), game)
            shares = [table.get(move, 0.0) for move in moves]
            listed = turn.answer.action in moves
            place = moves.index(turn.answer.action) if listed else len(moves)
        else:
            assert sampled is not None, "a local model plays"
            adapter = None if player == BASE else player.name
            shares = await model.move_probabilities(adapter, sampled.prompt_ids, moves)
            listed = sampled.token_ids in answers
            place = answers.index(sampled.token_ids) if listed else len(moves)
        worst = min(values, key=lambda each: each[turn.seat])
        return Draw((*shares, max(0.0, 1 - sum(shares))), (*values, worst), place)
