"""Run on a node: two learner ranks, each at another one, beside a learner of this process."""

import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.helpers.learners import packed_batch, unlike_batch
from unstable.config import ClusterConfig, RunConfig
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import joined
from unstable.runtime.crew import crew_of
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.runtime.local import LocalLearner
from unstable.types.processes import Waits

RANKS = 2
MODEL = "/tmp/model"


def config_of(address: str, num: int) -> RunConfig:
    """Build a config of a learner of `num` ranks, with a model that every node has a copy of."""
    adapter = {"rank": 4, "alpha": 8}
    return RunConfig.model_validate(
        {
            "model": {"name": MODEL, "dtype": "float32", "adapter": adapter, "init": "fresh"},
            "learner": {"batch_size": 8, "micro_batch_size": 2, "num": num, "learning_rate": 1e-3},
            "cluster": {"address": address},
        }
    )


async def both(address: str, scratch: Path) -> tuple[RunFolder, RunFolder]:
    """Two updates by ranks afar and by one learner here; returns their folders."""
    folders = RunFolder(scratch / "afar"), RunFolder(scratch / "here")
    for folder in folders:
        folder.root.mkdir()
    config = config_of(address, RANKS)
    async with crew_of(config, folders[0], Waits(), print, grows=False) as crew:
        others = [name for name, node in crew._nodes.items() if not node.is_drivers]
        places = crew.reserve([Placement(name) for name in others[:RANKS]])
        afar = RemoteLearner(config, folders[0], places, RANKS, None, crew)
        await afar.start()
        here = LocalLearner(config_of(address, 1), folders[1])
        for learner in (afar, here):
            for version in range(2):
                await learner.update(packed_batch(unlike_batch(version)))
            await (await learner.hold()).save()
    return folders


def main(address: str) -> None:
    """Print how far apart their weights are."""
    with tempfile.TemporaryDirectory() as scratch, joined(ClusterConfig(address=address)):
        folders = asyncio.run(both(address, Path(scratch)))
        files = (folder.checkpoint(2) / "adapter_model.safetensors" for folder in folders)
        one, other = map(load_file, files)
        apart = max(np.abs(one[name] - other[name]).max() for name in one)
        moved = max(np.abs(one[name]).max() for name in one if "lora_B" in name)
        print(f"apart {apart:.2e} moved {moved:.2e}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
