"""A local model restricted to legal moves: it samples a path down the tree of their tokens.

For evaluation alone: training does not differentiate this distribution.
"""

from unstable.collectors.players.base import Position
from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.types import Completion, Segment, TopLogprobs
from unstable.types.seeds import derive_seed


class ConstrainedPlayer(ModelPlayer):
    """A `ModelPlayer` whose every token continues the answer of a legal move.

    Where several tokens do, the engine samples among them alone; a forced token has logprob 0 and
    costs nothing. So a move's probability is the product, over the places where legal answers
    diverge, of the model's probabilities renormalized over the remaining tokens. Raises
    `ConfigError` if the game's parser cannot read a legal move, and `ValueError` if one is longer
    than `max_tokens`.
    """

    async def _segments(
        self, prompt_ids: list[int], game: Position, seed: int
    ) -> tuple[Segment, ...]:
        moves = game.legal_moves()
        answers = legal_answers(self.prompts, moves, self.max_tokens)
        token_ids: list[int] = []
        logprobs: list[float] = []
        top_logprobs: TopLogprobs = []
        is_recorded = False
        while len(token_ids) < len(answers[0]):
            place = len(token_ids)
            allowed = sorted({answer[place] for answer in answers})
            token_id, logprob, top = allowed[0], 0.0, [(allowed[0], 0.0)]
            if len(allowed) > 1:
                ids, own = prompt_ids + token_ids, derive_seed(seed, place)
                step = await self.engine.generate(self.request(ids, own, 1, allowed))
                (token_id,), (logprob,) = step.token_ids, step.logprobs
                assert token_id in allowed, "the engine sampled a forbidden token"
                if step.top_logprobs is not None:
                    is_recorded, (top,) = True, step.top_logprobs
            token_ids.append(token_id)
            logprobs.append(logprob)
            top_logprobs.append(top)
            answers = [answer for answer in answers if answer[place] == token_id]
        completion = Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason="stop",
            adapter=self.adapter,
            top_logprobs=top_logprobs if is_recorded else None,
        )
        return (completion,)
