"""NVML, NVIDIA's management library: the one place that opens it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class NVMLError(RuntimeError):
    """A driver, or a card, that is there and does not answer."""


@contextmanager
def opened_nvml() -> Iterator[Any | None]:
    """The module `pynvml`, ready to be asked; None where it, or a driver, is missing.

    What the library raises leaves as our `NVMLError`.
    """
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            yield None
        else:
            yield pynvml
    except pynvml.NVMLError as error:
        raise NVMLError(str(error)) from error


def find_card(nvml: Any, id: str) -> Any:
    """The handle of a card by its index or UUID."""
    if id.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(id))
    return nvml.nvmlDeviceGetHandleByUUID(id)
