"""What each engine needs of a machine."""

from collections.abc import Mapping

from unstable.engines.embedded.needs import NEEDS as EMBEDDED
from unstable.engines.vllm.needs import NEEDS as VLLM
from unstable.planning.needs import EngineNeeds

NEEDS: Mapping[str, EngineNeeds] = {
    "embedded": EMBEDDED,
    "vllm": VLLM,
}
"""By the engine's name."""
