"""Plugins: a user's own code, named in the config as a target, `package.module:name`."""

import importlib
from typing import Any

from unstable.config import ConfigError, nearest


def load_target(target: str, field: str = "target") -> Any:
    """What `package.module:name` names; raises `ConfigError` that starts with the config's field.

    >>> load_target("math:floor")(2.5)
    2
    """
    module_name, _, name = target.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{field} = {target!r}: write it as package.module:name")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{field} = {target!r}: cannot import {module_name} ({error}); "
            "run from the folder that holds it, or put that folder on PYTHONPATH"
        ) from error
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ConfigError(
            f"{field} = {target!r}: {module_name} has no {name}; {nearest(name, public)}"
        )
    return getattr(module, name)


def check_target(field: str, target: str, remedy: str, also: type | None = None) -> None:
    """Raise `ConfigError` unless the target can be called or is an instance of `also`."""
    if ":" not in target:
        raise ConfigError(f"{field} = {target!r}: there is none of that name; {remedy}")
    found = load_target(target, field)
    if not callable(found) and (also is None or not isinstance(found, also)):
        raise ConfigError(f"{field} = {target!r}: not callable; {remedy}")
