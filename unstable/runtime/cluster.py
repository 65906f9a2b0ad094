"""Ray on this machine: started, silent, and gone afterwards; what its processes are given."""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import ray


@contextlib.contextmanager
def cluster(processes: int) -> Iterator[None]:
    """Ray on this machine, with room for `processes`, silent, and gone afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # What Ray brought when it was imported writes to the terminal; ours is where all logs go.
    rays = logging.getLogger("ray")
    rays.handlers.clear()
    rays.propagate = True
    # Ray prints how a worker died, in thirty lines, without being asked; ours is in the log.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    ray.init(
        num_cpus=processes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def process_options(threads: int, gpu: str | None = None, **more: object) -> dict[str, Any]:
    """One logical processor for each process; its threads and its import path are set by us.

    `gpu` is the one card that it sees, as CUDA_VISIBLE_DEVICES names it; none is all that we see.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if gpu is not None:
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu}
    return {"num_cpus": 1, "runtime_env": {"env_vars": variables}, **more}
