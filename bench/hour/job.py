"""What a step is given, and how it says what it found."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Skip(Exception):
    """A step cannot be done here; its message says why."""


class Figure(NamedTuple):
    """A row of the table: what was measured, and what it should be."""

    value: float | str
    unit: str
    aim: str


@dataclass(eq=False)
class Job:
    """A step's input, and the file that its figures go into as soon as they are known."""

    notes: Path
    folder: Path  # of the step
    models: Path  # kept from step to step, and from call to call
    engine: str  # vllm or embedded
    dry: bool
    card: bool
    seconds: float  # that the step may take
    figures: dict[str, Figure] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the step is ended."""
        return self.seconds - (time.monotonic() - self.began)

    def note(self, name: str, value: float | str, unit: str = "", aim: str = "") -> None:
        """A figure; what was noted stands, whatever becomes of the step."""
        self.figures[name] = Figure(value, unit, aim)
        self.notes.write_text(json.dumps({"figures": self.figures}))
        print(f"{name}: {value} {unit}", flush=True)

    def sized(self, real: T, dry: T) -> T:
        """What a card is given, or the processor."""
        return dry if self.dry else real

    def skipped(self, why: str) -> None:
        """The step, or what is left of it, is not done."""
        self.notes.write_text(json.dumps({"figures": self.figures, "skipped": why}))

    @cached_property
    def small(self) -> str:
        """The small model's name. vLLM has no kernel for the heads of the tiny one."""
        return "tiny" if self.dry and self.engine == "embedded" else "smollm2-135m"

    def shaped(self) -> str:
        """A folder with random weights of Qwen3-1.7B's shape, and SmolLM2's tokenizer; made once.

        Dry: the small model.
        """
        if self.dry:
            return self.small
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from bench.learner import SHAPES
        from unstable.config import ModelConfig
        from unstable.models.base import model_path

        folder = self.models / "qwen3-1.7b-random"
        if not (folder / "complete").exists():
            import torch

            tokenizer = AutoTokenizer.from_pretrained(model_path(ModelConfig()))
            tokenizer.save_pretrained(folder)
            with torch.device("cuda" if self.card else "cpu"):
                model = AutoModelForCausalLM.from_config(SHAPES["1.7b"], dtype=torch.bfloat16)
            model.save_pretrained(folder)
            (folder / "complete").touch()
        return str(folder)

    def run(
        self, *command: str, timeout: float | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """A program, with what it printed; printed here as well."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout or max(self.left - 5, 1)
        )
        print(done.stdout + done.stderr, flush=True)
        return done

    def unstable(self, *words: str) -> list[str]:
        """The command line of `unstable`, which need not be installed."""
        return [sys.executable, "-m", "unstable.cli", *words]


Step = Callable[[Job], None]
