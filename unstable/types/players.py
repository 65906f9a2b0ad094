"""Who plays: names that mean one thing for good, and the weights behind them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PlayerId:
    """Who sits at a seat: a version of the policy, or a player that never changes.

    PlayerId("main", 12), PlayerId("random"), PlayerId("openai:some/model"), PlayerId("base").
    """

    label: str
    version: int | None = None  # of the policy; None for everyone else

    @classmethod
    def policy(cls, version: int) -> "PlayerId":
        """Version `version` of the policy."""
        return cls("main", version)

    @classmethod
    def parse(cls, name: str) -> "PlayerId":
        """The player that files call `name`.

        >>> PlayerId.parse("main@12").version, PlayerId.parse("random").version
        (12, None)
        """
        label, _, version = name.partition("@")
        is_policy = label == "main" and version.isdecimal() and version == str(int(version))
        return cls.policy(int(version)) if is_policy else cls(name)

    @property
    def name(self) -> str:
        """As files and tables have it; of a version, also the immutable name of its adapter.

        >>> PlayerId.policy(12).name
        'main@12'
        """
        return self.label if self.version is None else f"{self.label}@{self.version}"

    def __str__(self) -> str:
        return self.name


BASE = PlayerId("base")
"""The player that is the base model without an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA weights under a name never used for other weights: `main@3`, `checkpoint:warm`.

    `weights` is a safetensors file with PEFT's keys, `config` PEFT's `adapter_config.json`.
    """

    name: str
    weights: bytes = field(repr=False)
    config: dict[str, Any] = field(repr=False)
