"""A model player's engine double that gives scripted answers and records its requests."""

from tests.helpers.models import tiny_tokenizer
from unstable.collectors.players.model import ModelPlayer
from unstable.config import GameConfig
from unstable.engines.base import SamplingRequest
from unstable.prompts import STYLES, PromptBuilder
from unstable.types import Completion

STOP = 0  # stop token of the tiny tokenizer


class Recorder:
    """An engine that gives the answers it was made with, and records its requests."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.requests: list[SamplingRequest] = []

    async def generate(self, request: SamplingRequest) -> Completion:
        self.requests.append(request)
        text = self.answers.pop(0)
        ids = [*tiny_tokenizer().encode(text, add_special_tokens=False), STOP]
        logprobs = [-index / 10 for index in range(len(ids))]
        return Completion(
            token_ids=ids, logprobs=logprobs, finish_reason="stop", adapter=request.adapter
        )


def model_player(engine, style="answer", parser="brackets", adapter="main@3", version=3, **changes):
    put = STYLES[style].of_game(GameConfig(parser=parser))
    prompts = PromptBuilder(tiny_tokenizer(), put, {}, 4096)
    fields = {"engine": engine, "adapter": adapter, "version": version, "prompts": prompts}
    return ModelPlayer(**fields | {"temperature": 0.7, "max_tokens": 9} | changes)
