"""Additions to vLLM's workers: they end with the engine's owner, and prepare LoRAs faster.

vLLM's processes outlive an owner that is killed, and keep its memory. vLLM imports this file in
every worker as it starts; the import starts a watch on the owner. A worker's end also ends its
engine core.
"""

import os
import select
import signal
import threading
from typing import Any

import torch

from unstable.engines.vllm.lora_metadata import prepare_on_cpu

OWNER_VARIABLE = "UNSTABLE_ENGINE_OWNER"
"""Environment variable with the process id of the engine's owner."""


class Extension:
    """Methods that vLLM adds to its workers (`worker_extension_cls`)."""

    model_runner: Any
    reload_weights: Any  # of vLLM's worker

    def put_weights(self, folder: str) -> None:
        """Replace the model's weights in place by those in a folder."""
        self.reload_weights(weights_path=folder)
        # On a CPU vLLM (0.32) computes a tied head with a packed copy of its weights, and does not
        # repack the copy if the file has no entry for the head.
        for module in self.model_runner.get_model().modules():
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)

    def prepare_loras_on_cpu(self, on: bool) -> bool:
        """Switch `lora_metadata.prepare_on_cpu` on or off, for comparisons; return its result."""
        return prepare_on_cpu(on)


def end_with(owner: int) -> None:
    """Wait until the process `owner` is gone, and kill this one."""
    try:
        watched = select.poll()
        watched.register(os.pidfd_open(owner), select.POLLIN)
        watched.poll()
    except ProcessLookupError:  # already exited
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if OWNER_VARIABLE in os.environ:
    _owner = int(os.environ[OWNER_VARIABLE])
    threading.Thread(target=end_with, args=(_owner,), name="owner watch", daemon=True).start()
    if torch.version.cuda is not None:
        prepare_on_cpu()
