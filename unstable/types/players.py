"""Players: permanent names, and the weights that they denote."""

import re
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import core_schema

MAIN = "main"
"""Default name of the policy that a run trains."""
PAST = "past"
"""Name of all versions before the evaluated one together, as its opponent."""
_VERSION = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)@(0|[1-9][0-9]{0,17})")


class PlayerId:
    """A player: a version of a policy, or a player that never changes.

    PlayerId("main", 12), PlayerId("random"), PlayerId("openai:some/model"), PlayerId("base").
    """

    __slots__ = ("label", "name", "version")  # not a dataclass, which files would store by field

    def __init__(self, label: str, version: int | None = None) -> None:
        self.label = label  # the policy's name, or the player's
        self.version = version  # of the policy; None for other players
        self.name = label if version is None else f"{label}@{version}"
        """Name in files and tables; for a version, also the immutable name of its adapter."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PlayerId)
            and self.label == other.label
            and self.version == other.version
        )

    def __hash__(self) -> int:
        return hash((self.label, self.version))

    def __repr__(self) -> str:
        return f"PlayerId({self.label!r}, {self.version})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[type["PlayerId"], tuple[str, int | None]]:
        return PlayerId, (self.label, self.version)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        known = core_schema.is_instance_schema(cls)
        name = core_schema.no_info_after_validator_function(cls.parse, core_schema.str_schema())
        return core_schema.union_schema(
            [known, name], serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def policy(cls, version: int, name: str = MAIN) -> "PlayerId":
        """Return a version of the policy `name`."""
        return cls(name, version)

    @classmethod
    def parse(cls, name: str) -> "PlayerId":
        """Return the player that files call `name`.

        NAME@N is version N of the policy NAME: a word of ASCII letters, digits, _ and - that begins
        with a letter. Every other name denotes a player that never changes; the config refuses an
        opponent whose name has the form of a version.

        >>> PlayerId.parse("main@12").version, PlayerId.parse("checkpoint:warm@2").version
        (12, None)
        """
        version = _VERSION.fullmatch(name)
        return cls(name) if version is None else cls(version[1], int(version[2]))


BASE = PlayerId("base")
"""The base model without an adapter, as a player."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Trained weights under a name never used for other weights: `main@3`, `checkpoint:warm`.

    For a LoRA, `weights` is a safetensors file with PEFT's keys, and `config` is PEFT's
    `adapter_config.json`. For a whole model, the keys are the names of the base model's parameters,
    tied ones once, and `config` is empty.
    """

    name: str
    weights: bytes = field(repr=False)
    config: dict[str, Any] = field(repr=False)

    @property
    def is_whole(self) -> bool:
        """True if the adapter replaces all weights of the base model."""
        return not self.config
