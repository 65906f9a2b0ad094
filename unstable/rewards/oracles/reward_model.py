"""A Hugging Face sequence classifier as reward model: one of its outputs is the value.

The first question loads it into the asking process; it computes in a thread of that process.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from unstable.config import ConfigError, RewardModelOracle, shown
from unstable.rewards.oracles.base import Oracle, OracleCaller, OracleQuestion, ValueOrError
from unstable.rewards.oracles.cache import files_of
from unstable.rewards.oracles.telling import filled, places
from unstable.types import GameResult, Turn


class RewardModel(Oracle):
    """A scorer of batches of texts, or of chats by the tokenizer's own template."""

    def __init__(self, name: str, field: str, config: RewardModelOracle) -> None:
        super().__init__(name, field, at_once=1)
        self._config = config
        self._model: Any = None
        self._tokenizer: Any = None
        self._names_padding = False
        self._thread: ThreadPoolExecutor | None = None

    @property
    def _place(self) -> str:
        return f"{self.field}.args.path = {shown(self._config.path)}"

    @property
    def settings(self) -> Any:
        told = self._config.model_dump(exclude={"device"})
        return {**told, "files": files_of(self._config.folder)}

    def questions(
        self, result: GameResult, game: GameResult, judged: Turn | int
    ) -> Sequence[OracleQuestion]:
        most = 8 * self._config.max_tokens  # characters; few tokens have more than 8
        words = places(game, judged, most)
        content: Any = {"chat": [words["observation"], words["answer"]]}
        if self._config.template is not None:
            content = {"text": filled(self._config.template, words)}
        elif not isinstance(judged, Turn):
            content = {"chat": [words["rules"], words["transcript"]]}
        return [OracleQuestion(content, game, judged)]

    async def answer(
        self, questions: Sequence[OracleQuestion], call: OracleCaller
    ) -> Sequence[ValueOrError]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"reward term {self.name}")
        thread, contents = self._thread, [question.content for question in questions]
        if self._model is None:  # loading does not count toward the call's timeout
            await asyncio.get_running_loop().run_in_executor(thread, self._load)

        async def ask() -> list[float]:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, self._scores, contents)

        return await call(ask)

    def check(self) -> None:
        folder, place = self._config.folder, self._place
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{place}: config.json not found; name a model's folder")
        if not any(folder.glob("*.safetensors")):
            raise ConfigError(f"{place}: *.safetensors not found; name a complete model's folder")
        self._classifier(device_map={"": "meta"})

    async def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self._model = self._tokenizer = self._thread = None

    def _classifier(self, **options: Any) -> Any:
        """Load the model; raises `ConfigError` for a missing tensor, such as its head's."""
        from transformers import AutoModelForSequenceClassification

        model, found = AutoModelForSequenceClassification.from_pretrained(
            self._config.folder,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
        misfits = {each[0] for each in found["mismatched_keys"]}
        if wrong := sorted({*found["missing_keys"], *misfits}):
            problem = "has the wrong shape" if wrong[0] in misfits else "is missing"
            raise ConfigError(
                f"{self._place}: the sequence classifier's tensor {wrong[0]} {problem}; name the "
                "folder of a complete reward model"
            )
        return model

    def _load(self) -> None:
        import torch
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(self._config.folder), local_files_only=True)
        model = self._classifier()
        if self._config.label >= model.config.num_labels:
            raise ValueError(
                f"{self.field}.args.label = {self._config.label}: the model has no such output; "
                f"set a number from 0 to {model.config.num_labels - 1}"
            )
        size = sum(each.nbytes for each in model.parameters())
        device = self._config.device
        if device == "auto":
            fits = torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > 2 * size
            device = "cuda" if fits else "cpu"
        self._tokenizer = tokenizer
        self._names_padding = model.config.pad_token_id is not None
        self._model = model.to(device).eval()

    def _scores(self, contents: Sequence[Any]) -> list[float]:
        """Return the value of each text; pads them on the right, which changes no value.

        The model reads its output at the last token that is not padding. A model without a padding
        token gets an id that none of the texts contains.
        """
        import torch

        ids = [self._ids(content) for content in contents]
        longest, config = max(map(len, ids)), self._model.config
        if self._names_padding:
            pad = config.pad_token_id
        else:
            used = {index for each in ids for index in each}
            pad = config.pad_token_id = next(i for i in count() if i not in used)
        padded = torch.tensor([[*each, *[pad] * (longest - len(each))] for each in ids])
        mask = torch.tensor([[1] * len(each) + [0] * (longest - len(each)) for each in ids])
        with torch.inference_mode():
            where = self._model.device
            logits = self._model(input_ids=padded.to(where), attention_mask=mask.to(where)).logits
        return [float(value) for value in logits[:, self._config.label].float().cpu()]

    def _ids(self, content: Any) -> list[int]:
        """Return a text's tokens, the last `max_tokens` of them."""
        if "text" in content:
            ids = self._tokenizer.encode(content["text"])
        else:
            asked, answered = content["chat"]
            messages = [
                {"role": "user", "content": asked},
                {"role": "assistant", "content": answered},
            ]
            text = self._tokenizer.apply_chat_template(messages, tokenize=False)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        return list(ids[-self._config.max_tokens :])
