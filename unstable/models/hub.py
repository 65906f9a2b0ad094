"""Uploads to the hub, and the user's own cache."""

import os
from pathlib import Path
from typing import NoReturn

from unstable.config import ConfigError, RunFailedError, one_line, shown
from unstable.config.plugins import faults_to
from unstable.config.remote import silence


def check_push(repository: str) -> None:
    """Raise `ConfigError` if nothing could be pushed; queries the hub, for seconds at most."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    place = f"--push = {shown(repository)}"
    try:
        validate_repo_id(repository)
        wrong = "/" not in repository
    except HFValidationError:
        wrong = True
    if wrong:
        raise ConfigError(f"{place}: invalid repository name; give OWNER/NAME")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{place}: HF_HUB_OFFLINE is set; unset it, or drop --push")
    if get_token() is None:
        raise ConfigError(f"{place}: no login; set HF_TOKEN or run hf auth login, or drop --push")
    if (why := silence(constants.ENDPOINT)) is not None:
        raise ConfigError(f"{place}: the hub is unreachable ({why}); retry later, or drop --push")


def push(folder: Path, repository: str, message: str) -> str:
    """Upload all of a folder in one commit; returns its address.

    A new repository is private. Raises `RunFailedError` for errors of the hub.
    """
    from huggingface_hub import HfApi

    api = HfApi()

    def fail(error: BaseException) -> NoReturn:
        raise RunFailedError(
            f"--push = {shown(repository)}: {one_line(str(error))}; the export is in {folder}"
        ) from error

    with faults_to(fail):  # its client's HTTP library raises errors of its own
        api.create_repo(repository, private=True, exist_ok=True)
        done = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return str(done.commit_url)


def cache_folder() -> Path:
    """Return the folder `unstable` in XDG_CACHE_HOME, or else in `~/.cache`, made if missing.

    Raises `ConfigError` if it cannot be made or written to.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "unstable"
    remedy = "set XDG_CACHE_HOME to a writable folder"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror}); {remedy}") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: not writable; {remedy}")
    return folder
