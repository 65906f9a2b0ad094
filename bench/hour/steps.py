"""The steps in order of value, with their requirements and timeouts."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from bench.hour.job import Job

Need = Literal["card", "vllm", "ray", "smollm2"]


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its timeout: the most `seconds` that it takes on a GPU."""

    name: str
    seconds: int
    does: str  # module of this folder and function
    needs: tuple[Need, ...] = ()

    def function(self) -> Callable[[Job], None]:
        """Return the step's function; imports its module."""
        module, _, name = self.does.partition(":")
        found: Callable[[Job], None] = getattr(import_module(f"bench.hour.{module}"), name)
        return found


STEPS = [
    Step("doctor", 60, "runs:doctor"),
    Step("learner, 1.7b", 120, "learning:large", ("smollm2",)),
    Step("learner, compiled", 150, "learning:compiled", ("smollm2",)),
    Step("tests of packing", 60, "tests:packing", ("card",)),
    Step("learner, smollm2", 60, "learning:small", ("smollm2",)),
    Step("prefix", 60, "learning:prefix", ("smollm2",)),
    Step("serving, smollm2", 300, "serving:small", ("smollm2", "vllm")),
    Step("serving, 1.7b", 300, "serving:large", ("smollm2", "vllm")),
    Step("several engines", 200, "serving:several", ("smollm2", "vllm")),
    Step("tests of a life", 200, "tests:life", ("card", "vllm", "ray")),
    Step("tests of scores", 120, "tests:scores", ("card", "vllm")),
    Step("training", 520, "runs:training", ("smollm2", "vllm", "ray")),
    Step("sleep", 200, "serving:sleeping", ("smollm2", "vllm")),
    Step("tests of a full card", 120, "tests:memory", ("card",)),
    Step("profile", 150, "learning:profile", ("smollm2",)),
    Step("masks", 120, "learning:masks", ("smollm2",)),
    Step("learner, 4,096", 150, "learning:short", ("smollm2",)),
    Step("slots", 530, "serving:slots", ("smollm2", "vllm")),
    Step("half precision", 320, "serving:half", ("smollm2", "vllm")),
    Step("prefill", 480, "serving:prefill", ("smollm2", "vllm")),
    Step("stepped", 480, "runs:stepped", ("smollm2", "vllm")),
]
