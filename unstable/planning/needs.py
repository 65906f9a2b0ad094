"""Needs of the engines on a machine, and the choice of the engine that serves a config."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.requirements import Requirement

from unstable.config import DISTRIBUTION, ConfigError, RunConfig
from unstable.models.sizes import ModelShape
from unstable.planning.machine import Machine
from unstable.planning.memory import EngineMemory

Dtype = Literal["bfloat16", "float32"]
QUANTIZE_LIBRARIES: Mapping[str, Requirement] = {
    "8bit": Requirement("torchao>=0.18"),
    "4bit": Requirement("bitsandbytes>=0.48.1"),
}
"""Libraries of `model.quantize`, in versions that hold weights as `models/quantize.py` expects."""
_ON_PROCESSOR = (
    "or set actors.engine to embedded to play on the CPU, or CUDA_VISIBLE_DEVICES= to run "
    "everything there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Setup of an engine on one kind of device."""

    config: RunConfig
    shape: ModelShape
    dtype: Dtype
    max_requests: int
    max_loras: int  # maximum in one forward pass
    max_cpu_loras: int  # maximum in memory
    on_gpu: bool


class EngineNeeds:
    """Needs of an engine; `engines/kinds.py` has one instance for each engine."""

    uses_gpus = False
    """True if the engine runs on GPUs if there are any; else it runs on the CPU."""
    most_on_processor: int | None = None
    """Most engines that a CPU can serve well; None: one per core."""
    one_model_at_a_time = False
    """True if one whole-model version is in memory at a time, and the others are in files."""

    def lack(self, machine: Machine) -> str | None:
        """Return what is missing and can be installed, with the remedy; None if nothing is."""
        return None

    def misfit(self, config: RunConfig, machine: Machine, dtype: Dtype) -> str | None:
        """Return why the engine cannot serve a config on such a machine at all; None if it can."""
        return None

    def problem(self, config: RunConfig, machine: Machine, dtype: Dtype) -> str | None:
        """Return the lack or the misfit, with a remedy; None if the engine can serve the config."""
        return self.lack(machine) or self.misfit(config, machine, dtype)

    def check(self, config: RunConfig) -> None:
        """Raise `ConfigError` for settings that the engine cannot serve on any machine."""

    def memory(self, setup: EngineSetup) -> EngineMemory:
        """Return the memory that the engine takes of one device."""
        raise NotImplementedError


def choose_engine(
    config: RunConfig, machine: Machine, engines: Mapping[str, EngineNeeds]
) -> tuple[str, list[str]]:
    """Return the name of the engine that serves a config, and notes for the user.

    With "auto" it is an engine that uses GPUs if the machine has any that it can use, else the
    embedded one. Raises `ConfigError` if the configured engine cannot serve the config here, or if
    "auto" finds GPUs that could be used after a repair of the machine.
    """
    _check_quantize(config, machine)
    asked, gpus = config.actors.engine, machine.usable_gpus
    if asked == "auto" and machine.cuda_problem:
        raise ConfigError(f"GPUs cannot be used: {machine.cuda_problem}; {_ON_PROCESSOR}")
    notes = [f"GPUs are not used: {machine.cuda_problem}"] if machine.cuda_problem else []
    dtype = choose_dtype(config, machine)
    engine = "embedded" if asked == "auto" else asked
    if asked == "auto" and gpus:
        on_gpus = {name: needs for name, needs in engines.items() if needs.uses_gpus}
        misfits = {name: needs.misfit(config, machine, dtype) for name, needs in on_gpus.items()}
        fitting = [name for name, misfit in misfits.items() if misfit is None]
        lacks = {name: on_gpus[name].lack(machine) for name in fitting}
        engine = next((name for name, lack in lacks.items() if lack is None), engine)
        if engine == "embedded" and fitting:
            raise ConfigError(f"{lacks[fitting[0]]}; {_ON_PROCESSOR}")
        if engine == "embedded":
            notes.append(f"actors play on the CPU: {next(iter(misfits.values()))}")
    needs = engines[engine]
    if (problem := needs.problem(config, machine, dtype)) is not None:
        raise ConfigError(
            f"actors.engine = {engine!r}: {problem}, or set actors.engine to embedded"
        )
    needs.check(config)
    notes += machine.notes
    if config.actors.share_gpu in ("split", "sleep") and not (needs.uses_gpus and gpus):
        raise ConfigError(
            f"actors.share_gpu = {config.actors.share_gpu!r}: actors play on the CPU; "
            "set actors.share_gpu to auto"
        )
    return engine, notes


def _check_quantize(config: RunConfig, machine: Machine) -> None:
    """Raise `ConfigError` if the library that quantizes is missing or too old."""
    needed = QUANTIZE_LIBRARIES.get(config.model.quantize)
    version = machine.packages.get(needed.name) if needed else None
    if needed is None or (
        version is not None and needed.specifier.contains(version, prereleases=True)
    ):
        return
    found = "not installed" if version is None else f"{version}, but must be {needed.specifier}"
    raise ConfigError(
        f"model.quantize = {config.model.quantize!r}: {needed.name} is {found}; "
        f"run: pip install '{DISTRIBUTION}[quantize]', or set model.quantize to none"
    )


def choose_dtype(config: RunConfig, machine: Machine) -> Dtype:
    """Return the precision of the base weights, the same for all processes."""
    if config.model.dtype != "auto":
        return config.model.dtype
    gpus = machine.usable_gpus
    fast = all(gpu.bfloat16 for gpu in gpus) if gpus else machine.bfloat16
    return "bfloat16" if fast else "float32"
