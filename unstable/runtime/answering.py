"""The actor's own engine as a judge asks it: a chat goes in, text comes out."""

from collections.abc import Mapping
from typing import Any

from unstable.engines.base import Engine, SamplingRequest
from unstable.rewards.oracles.base import Reply


class EngineAnswers:
    """Answers chats with the base model, or one of the adapters that the engine has."""

    def __init__(self, engine: Engine, prompts: Mapping[str, Any], name: str) -> None:
        """`prompts` are the games' prompt builders; any of them can encode a chat."""
        self.name = name
        self._engine = engine
        self._prompts = prompts

    async def __call__(
        self,
        messages: list[dict[str, str]],
        *,
        adapter: str | None,
        temperature: float,
        max_tokens: int,
        seed: int,
    ) -> Reply:
        """The answer; `ValueError` for a chat that is longer than the engine takes."""
        prompts = next(iter(self._prompts.values()))
        ids = prompts.template.encode(messages)
        request = SamplingRequest(
            prompt_ids=ids,
            adapter=adapter,
            temperature=temperature,
            max_tokens=max_tokens,
            seed=seed,
        )
        completion = await self._engine.generate(request)
        text = prompts.decode(completion.token_ids)
        return Reply(text, len(ids), len(completion.token_ids))
