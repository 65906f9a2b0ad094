"""Benchmarks, each a script: `python -m bench.NAME` from the repository's root."""

import argparse
import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Any


def parser(doc: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return a parser described by a docstring's first line, with options from their defaults.

    A pair is a default and a help text. `--in_flight` may be written `--in-flight`.
    """
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, given in options.items():
        default, text = given if isinstance(given, tuple) else (given, None)
        names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        made.add_argument(*names, type=type(default), default=default, help=text)
    return made


def forks(*modules: str) -> ForkServerContext:
    """Return a context whose processes start at once, as forks of one that imported the modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*modules])
    return context
