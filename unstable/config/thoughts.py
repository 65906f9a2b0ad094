"""What a model thinks before it answers: how it is marked, how long it may be, whether it stays."""

from typing import Self

from pydantic import Field, model_validator

from unstable.config.base import Auto, NonNegativeInt, PositiveInt, Section


class ThoughtsConfig(Section):
    """Thoughts: the part of an answer between two tags, which no other seat sees."""

    tags: list[str] | Auto = Field(
        "auto",
        description="what begins and ends a thought, such as [<think>, </think>]; auto: the known "
        "pair that the tokenizer or its chat template has, else that one",
    )
    budget: PositiveInt | None = Field(
        None,
        description="tokens after which a thought that is still open is ended; what is inserted "
        "for it is not trained on; default: as long as max_tokens allows",
    )
    ending: str = Field(
        "",
        description="text that is inserted before the closing tag of a thought that is ended so",
    )
    keep: NonNegativeInt = Field(
        0,
        description="most tokens of a seat's own earlier thoughts in its prompts, the newest ones; "
        "0: earlier thoughts are dropped",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.tags != "auto" and (len(set(self.tags)) != 2 or len(self.tags) != 2):
            raise ValueError(
                f"tags = {self.tags} is not two different tags; give the one that begins a thought "
                "and the one that ends it, or auto"
            )
        if self.tags != "auto" and not all(tag.strip() for tag in self.tags):
            raise ValueError(f"tags = {self.tags}: a tag has to be there; give both, or auto")
        if self.ending and self.budget is None:
            raise ValueError("ending is inserted where a thought is ended; set budget, or leave it")
        return self
