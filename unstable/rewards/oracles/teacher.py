"""A teacher behind an endpoint: its log-likelihood of an answer minus the policy's.

The sum over an answer's tokens of log pi_teacher - log pi_behavior is, on average, minus the KL of
the answer to the teacher: Schulman's k1, http://joschu.net/blog/kl-approx.html, used as reward in
on-policy distillation, https://thinkingmachines.ai/blog/on-policy-distillation/.
"""

import math
from collections.abc import Sequence
from typing import Any

from unstable.config import TeacherOracle, shown
from unstable.rewards.oracles.base import Oracle, OracleCaller, OracleQuestion, ValueOrError
from unstable.rewards.oracles.service import Service
from unstable.types import GameResult, SampledTokens, Turn


class LogprobTeacher(Oracle):
    """An oracle by log-probabilities of a prompt's tokens (`echo`), as in vLLM's completions.

    The teacher must share the policy's tokenizer, else an error says so. Turns without a local
    model's answer have no value.
    """

    def __init__(self, name: str, field: str, config: TeacherOracle) -> None:
        super().__init__(name, field, batch=1)
        self._config = config
        url = f"{config.url.rstrip('/')}/completions"
        place = f"reward term {name}"
        self._service = Service(place, url, config.api_key_env, config.max_bytes, "url")

    @property
    def settings(self) -> Any:
        return {"url": self._config.url, "model": self._config.model}

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[OracleQuestion]:
        if not isinstance(judged, Turn) or (sampled := judged.answer.sampled) is None:
            return []
        own = {"ids": [*sampled.prompt_ids, *sampled.token_ids], "own": math.fsum(sampled.logprobs)}
        return [OracleQuestion(own, game, judged)]

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        (question,) = questions
        assert isinstance(question.judged, Turn) and question.judged.answer.sampled is not None
        answer, sampled = question.judged.answer, question.judged.answer.sampled
        ids, start = question.content["ids"], len(sampled.prompt_ids)
        # Requests one token and ignores it: some endpoints reject 0.
        body = {"model": self._config.model, "prompt": ids, "max_tokens": 1}

        async def ask() -> float:
            reply = await self._service.post({**body, "echo": True, "logprobs": 1})
            texts, logprobs = self._echoed(reply, len(ids))
            self._check_text("".join(texts[start:]), answer.text)
            found = [logprobs[start + place] for place in _scored_places(sampled)]
            if not all(map(_is_logprob, found)):
                self._service.complain(f"sent invalid log-probabilities: {shown(found)}")
            return math.fsum(found) - question.content["own"]

        return [await call(ask)]

    def check(self) -> None:
        self._service.check(f"{self.field}.args")

    async def close(self) -> None:
        await self._service.close()

    def _echoed(self, reply: Any, count: int) -> tuple[list[str], list[Any]]:
        """Return text and log-probability of each of the `count` tokens sent."""
        try:
            logprobs = reply["choices"][0]["logprobs"]
            texts, values = logprobs["tokens"], logprobs["token_logprobs"]
            lengths = {len(texts), len(values)}
        except (LookupError, TypeError):
            self._service.complain(
                "sent no log-probabilities of the prompt (echo with logprobs); serve the teacher "
                "with vLLM or another server that supports them"
            )
        if len(lengths) > 1 or lengths.pop() not in (count, count + 1):
            self._service.complain(
                f"sent {len(values)} log-probabilities for {count} tokens; serve a model with the "
                "policy's tokenizer"
            )
        return texts[:count], values[:count]

    def _check_text(self, echoed: str, text: str) -> None:
        """Raise an error if the teacher's tokenizer decodes the tokens to another text."""
        # A token may be part of a character, without text of its own; answers omit special tokens.
        letters = iter(echoed)
        if text.isascii() and not all(letter in letters for letter in text.strip()):
            self._service.complain(
                f"decodes the answer {shown(text)} as {shown(echoed)}: tokenizer mismatch; "
                "serve a model with the policy's tokenizer"
            )


def _scored_places(sampled: SampledTokens) -> list[int]:
    """Return the places of the tokens in the answer that the policy has sampled."""
    places: list[int] = []
    start = 0
    for segment in sampled.segments:
        end = start + len(segment.token_ids)
        places += range(start, end) if segment.scored else ()
        start = end
    return places


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value <= 1e-3
