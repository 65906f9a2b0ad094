"""What each engine needs of a machine: the NEEDS of `<name>/needs.py`, by the engine's name."""

from collections.abc import Mapping
from importlib import import_module

from unstable.config import ENGINES
from unstable.planning.needs import EngineNeeds

NEEDS: Mapping[str, EngineNeeds] = {
    name: import_module(f"unstable.engines.{name}.needs").NEEDS for name in ENGINES
}
