"""A step's input, and its way to report results."""

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
    """An error for a step that cannot run here; its message gives the reason."""


class Figure(NamedTuple):
    """A row of the table: a measured value and its target."""

    value: float | str
    unit: str
    aim: str


@dataclass(eq=False)
class Job:
    """A step's input, and the file to which it writes each figure at once."""

    notes: Path
    folder: Path  # of the step
    models: Path  # shared by all steps and calls
    engine: str  # vllm or embedded
    dry: bool
    card: bool
    seconds: float  # timeout of the step
    figures: dict[str, Figure] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """Seconds until the step's timeout."""
        return self.seconds - (time.monotonic() - self.began)

    def note(self, name: str, value: float | str, unit: str = "", aim: str = "") -> None:
        """Record a figure at once, which persists even if the step fails."""
        self.figures[name] = Figure(value, unit, aim)
        self.notes.write_text(json.dumps({"figures": self.figures}))
        print(f"{name}: {value} {unit}", flush=True)

    def sized(self, real: T, dry: T) -> T:
        """Return the value for a GPU, or for a dry run on the CPU."""
        return dry if self.dry else real

    def skipped(self, why: str) -> None:
        """Record that the step, or the rest of it, was skipped."""
        self.notes.write_text(json.dumps({"figures": self.figures, "skipped": why}))

    @cached_property
    def small(self) -> str:
        """The small model's name. vLLM has no kernel for the tiny model's heads."""
        return "tiny" if self.dry and self.engine == "embedded" else "smollm2-135m"

    def shaped(self) -> str:
        """Return a folder with random weights of Qwen3-1.7B's shape, and SmolLM2's tokenizer.

        Creates it once. Dry: returns the small model.
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
        """Run a program, print its output, and return both."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout or max(self.left - 5, 1)
        )
        print(done.stdout + done.stderr, flush=True)
        return done

    def unstable(self, *words: str) -> list[str]:
        """Return a command line of `unstable`, which need not be installed."""
        return [sys.executable, "-m", "unstable.cli", *words]


Step = Callable[[Job], None]
