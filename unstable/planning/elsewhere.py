"""Machines that are not here, for a plan of what they would run: by a name, or from a file."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from unstable.config import ConfigError, nearest, path_problem, read_text, read_yaml, shown
from unstable.config.base import PositiveFloat, PositiveInt, Section
from unstable.config.reading import one_line
from unstable.planning.figures import CARDS, Card
from unstable.planning.machine import BFLOAT16_SINCE, GPU, Machine

_GB = 1_000_000_000
_NAME = re.compile(r"(?:(\d{1,3})x)?(?:(\d{1,4})gb|(\w+))", re.ASCII)
_TAKEN = 500_000_000
"""Bytes of a card that its driver keeps for itself."""
_LARGE = 40 * _GB
"""Cards from so many bytes on stand in servers."""
_SERVER = (16, 128 * _GB)
_WORKSTATION = (8, 32 * _GB)
"""Cores and memory for each card, where none are given; the first is what an H200 was lent with."""
_CUDA = "13.0"
_PACKAGES = ("torch", "vllm", "vllm-bnb-plugin", "torchao", "bitsandbytes")
"""All of that version, which is newer than any that is asked for."""
_MOST = 999


class CardsSection(Section):
    """Equal cards of a machine's file."""

    name: str = Field("a card", description="as NVML names it, such as NVIDIA H100")
    memory: PositiveFloat = Field(description="GB")
    compute: Annotated[float, Field(ge=1, le=99)] = Field(
        8.0, description="CUDA compute capability; bfloat16 needs 8.0"
    )
    count: Annotated[int, Field(ge=1, le=1024)] = 1


class MachineSection(Section):
    """A machine's file."""

    cores: PositiveInt
    memory: PositiveFloat = Field(description="GB")
    cards: list[CardsSection] = []


def machine_named(text: str) -> Machine:
    """The machine of a name (h200, 8xh100, 4x24gb) or of a YAML file (`MachineSection`).

    All that a run needs is installed there, and nothing else runs. Raises `ConfigError`.
    """
    field = f"--machine = {shown(text)}"
    if problem := path_problem(text):
        raise ConfigError(f"{field}: {problem}")
    path = Path(text).expanduser()
    if path.is_file():
        return _of_file(path, field)
    found = _NAME.fullmatch(text.lower())
    if found is None or (found[3] and found[3] not in CARDS):
        raise ConfigError(
            f"{field} is no file and no machine; write a card, [COUNTx]CARD such as 8xh100 or "
            f"4x24gb ({nearest(found[3] if found and found[3] else '', list(CARDS))}), or a file"
        )
    count = int(found[1] or 1)
    size = int(found[2] or 0)
    card = CARDS[found[3]] if found[3] else Card(f"a card of {size} GB", size * _GB, 8.0, 0, 0)
    if not count or not card.memory_bytes:
        raise ConfigError(f"{field} has no card; give at least one, of 1 GB or more")
    cores, memory = _SERVER if card.memory_bytes >= _LARGE else _WORKSTATION
    return _machine(count * cores, count * memory, [card] * count)


def nodes_named(text: str | None, nodes: int | None, gpus: int | None) -> list[Machine]:
    """So many equal machines of that name (`machine_named`), or with so many cards of that name.

    Without a name the cards are H100. Raises `ConfigError`.
    """
    for option, number in (("--nodes", nodes), ("--gpus", gpus)):
        if number is not None and not 0 < number <= _MOST:
            raise ConfigError(f"{option} = {number}: give a number from 1 to {_MOST}")
    if gpus is not None:
        card = (text or "h100").lower()
        if Path(card).expanduser().is_file() or re.match(r"\d+x", card):
            raise ConfigError(
                f"--gpus = {gpus}: --machine = {shown(card)} says itself which cards it has; give "
                "a card's name, or leave --gpus out"
            )
        text = f"{gpus}x{card}"
    machine = machine_named(text or "8xh100")
    if nodes is None or nodes == 1:
        return [machine]
    return [replace(machine, node=f"node-{number + 1}") for number in range(nodes)]


def _of_file(path: Path, field: str) -> Machine:
    data = read_yaml(read_text(path, field), field)
    if not isinstance(data, dict):
        raise ConfigError(f"{field}: holds no machine; write cores, memory and cards")
    try:
        section = MachineSection.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{field}: {one_line(error, data)}") from None
    cards = [
        Card(each.name, int(each.memory * _GB), each.compute, 0, 0)
        for each in section.cards
        for _ in range(each.count)
    ]
    return _machine(section.cores, int(section.memory * _GB), cards)


def _machine(cores: int, memory_bytes: int, cards: list[Card]) -> Machine:
    gpus = tuple(
        GPU(
            id=str(index),
            name=card.name,
            total_bytes=card.memory_bytes,
            free_bytes=max(0, card.memory_bytes - _TAKEN),
            bfloat16=card.compute >= BFLOAT16_SINCE,
        )
        for index, card in enumerate(cards)
    )
    return Machine(
        cores=cores,
        memory_bytes=memory_bytes,
        free_bytes=memory_bytes,
        bfloat16=True,
        packages=dict.fromkeys(_PACKAGES, _CUDA),
        torch_cuda=_CUDA,
        gpus=gpus,
        driver_cuda=_CUDA if gpus else None,
    )
