"""The number of runs that fit a machine at once, and each run's share of it."""

from tests.helpers.machines import QWEN, machine
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import RunConfig, load
from unstable.engines.kinds import NEEDS
from unstable.studies.shares import Share, check_at_once, most_at_once, shares

LARGE = {"model.name": str(QWEN), "model.init": "fresh"}


def tiny(**changes: object) -> RunConfig:
    return load("tiny_nim", {name.replace("__", "."): value for name, value in changes.items()})


def large(**changes: object) -> RunConfig:
    return load("default", {**LARGE, **{n.replace("__", "."): v for n, v in changes.items()}})


def test_shares_are_equal_and_disjoint() -> None:
    found = shares(machine(5, cores=7), 2, [0, 1, 2, 3, 8, 9, 10])
    assert found == [Share((0, 1, 2), ("0", "1")), Share((3, 8, 9), ("2", "3"))]
    assert found[1].variables == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert shares(machine(1, cores=4), 4, range(4))[2] == Share((2,), ())  # without a GPU


@every_row(
    "configs, there, most",
    ([tiny()], machine(cores=8), 8),  # sync: one core per run
    ([tiny(loop__mode="async")], machine(cores=8), 4),  # actor and learner
    ([tiny(), tiny(actors__num=4)], machine(cores=8), 2),  # the largest decides
    ([tiny(actors__num=16)], machine(cores=8), 1),
    ([tiny()], machine(cores=8, memory_bytes=4_000_000_000, free_bytes=4_000_000_000), 2),
    ([large()], machine(4), 4),
    ([large(actors__tensor_parallel=2)], machine(4, gigabytes=80), 2),  # with the learner
    ([large(learner__num=2)], machine(8, gigabytes=80), 4),
    ([tiny(), large()], machine(2), 2),
)
def test_concurrent_runs_are_limited_by_cores_gpus_and_memory(configs, there, most):
    assert most_at_once(configs, there, NEEDS) == most
    if most > 1:
        for config in configs:
            check_at_once(config, there, most, NEEDS)


@every_row(
    "config, there, count, said",
    (tiny(), machine(cores=2), 3, "at_once = 3: only 2 cores; lower it, or set auto"),
    (large(), machine(2), 4, "at_once = 4: only 2 GPUs; lower it"),
    (tiny(actors__num=2), machine(cores=2), 2, "a run needs 2 cores and gets 1; lower it"),
    (tiny(loop__mode="auto"), machine(cores=2), 2, "too few cores per run for loop.mode = async"),
)
def test_too_many_concurrent_runs_are_rejected(config, there, count, said):
    assert said in line_of(check_at_once, config, there, count, NEEDS)


def test_single_run_may_use_more_processes_than_cores() -> None:
    check_at_once(tiny(actors__num=16), machine(cores=8), 1, NEEDS)
