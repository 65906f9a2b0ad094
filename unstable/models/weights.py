"""Download of a hub's weights, once, before the processes start that load them.

    python -m unstable.models.weights NAME

is the process that downloads, so that an interrupt ends it at once: it prints the number of bytes,
and ends when they are in the hub's cache.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unstable.config import ConfigError, ModelConfig, shown
from unstable.models.base import model_path

MB, GB = 1_000_000, 1e9
_EVERY_S = 1.0
_MODULE = "unstable.models.weights"
_SAFETENSORS = "model.safetensors"
_NEEDED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
_SPARE_BYTES = 500_000_000  # disk bytes to leave free
Progress = Callable[[str, int, int], None]
"""Callback that receives the activity, the MB done and the MB in total."""


def ready_weights(
    model: ModelConfig, progress: Progress, command: Sequence[str] | None = None
) -> None:
    """Ensure that the model's weights are on this machine, downloaded or unpacked if needed.

    `command` downloads, by default this module. Raises `ConfigError` if that fails.
    """
    path = model_path(model)  # unpacks the embedded model
    if Path(path).is_dir() or _are_cached(path):
        return
    place = f"model.name = {shown(model.name)}"
    process = subprocess.Popen(
        command or [sys.executable, "-m", _MODULE, path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None and process.stderr is not None
            told = json.loads(process.stdout.readline() or "null")
            if told is not None:
                total, folder = int(told["bytes"]), Path(told["cache"])
                _check_room(place, total, folder)
                while process.poll() is None:
                    done = min(total, _size(folder))
                    progress(f"downloading {path} (MB)", done // MB, total // MB)
                    time.sleep(_EVERY_S)
            said = process.stderr.read().strip().splitlines() or ["no answer"]
            if process.wait():
                raise ConfigError(
                    f"{place}: its weights cannot be downloaded ({said[-1][:200]}); check the "
                    "network, or give the folder of a model"
                )
        finally:
            process.kill()


def _are_cached(name: str) -> bool:
    """Return whether all files that hold weights are in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    def cached(file: str) -> str | None:
        found = try_to_load_from_cache(name, file)
        return found if isinstance(found, str) else None

    for single in (_SAFETENSORS, "pytorch_model.bin"):
        if cached(single):
            return True
        if index := cached(f"{single}.index.json"):
            shards = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
            return all(cached(shard) for shard in set(shards))
    return False


def _check_room(place: str, total: int, folder: Path) -> None:
    there = folder
    while not there.is_dir():
        there = there.parent
    free, needed = shutil.disk_usage(there).free, total - _size(folder) + _SPARE_BYTES
    if free < needed:
        raise ConfigError(
            f"{place}: its weights need {needed / GB:.1f} GB, but {free / GB:.1f} GB are free in "
            f"{there}; free disk space, or set HF_HOME to another folder"
        )


def _size(folder: Path) -> int:
    """Return the bytes that have been downloaded, in complete files or not."""
    total = 0
    for path in (folder / "blobs").glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # renamed concurrently
            continue
    return total


def main(name: str) -> None:
    """Print the number of bytes to download and their folder, and download them."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import disable_progress_bars, filter_repo_objects

    disable_progress_bars()
    files = HfApi().model_info(name, files_metadata=True).siblings or []
    safe = any(file.rfilename.endswith(".safetensors") for file in files)
    needed = [*_NEEDED] if safe else [*_NEEDED, "pytorch_model*.bin"]
    wanted = filter_repo_objects(files, allow_patterns=needed, key=lambda file: file.rfilename)
    cache = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type="model"))
    told = {"bytes": sum(file.size or 0 for file in wanted), "cache": str(cache)}
    print(json.dumps(told), flush=True)
    snapshot_download(name, allow_patterns=needed)


if __name__ == "__main__":
    # The reading process expects an error as one line.
    sys.excepthook = lambda kind, error, _: print(
        " ".join(str(error).split()) or kind.__name__, file=sys.stderr
    )
    main(sys.argv[1])
