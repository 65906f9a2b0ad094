"""A user's own sinks: those that the config names, and the callbacks that `train` is given."""

from collections.abc import Sequence

from unstable.config import ConfigError, RunConfig, shown
from unstable.config.plugins import FAULTS, check_call, check_target, described
from unstable.records.folder import RunFolder
from unstable.tracking.sinks import SinkMaker
from unstable.tracking.sinks.base import Sink
from unstable.tracking.sinks.tensorboard import check_tensorboard

Callback = Sink | SinkMaker
"""A sink, or what makes one of the run's config and folder, such as its class."""
REMEDY = "give a subclass of unstable.Sink, which is called with (config, folder)"


def check_sinks(config: RunConfig) -> None:
    """Raise `ConfigError` for a sink that cannot be imported or called; makes none."""
    if config.tracking.tensorboard:
        check_tensorboard()
    own_sinks(config)


def own_sinks(config: RunConfig, callbacks: Sequence[Callback] = ()) -> list[SinkMaker]:
    """What makes a user's sinks; raises `ConfigError` for what cannot be called so."""
    makers = []
    for index, target in enumerate(config.tracking.sinks):
        field = f"tracking.sinks.{index}"
        make = check_target(field, target, REMEDY, config, None)
        makers.append(_maker(f"{field} = {shown(target)}", make))
    for index, callback in enumerate(callbacks):
        place = f"callbacks.{index} = {shown(repr(callback))}"
        if not isinstance(callback, Sink):
            check_call(place, callback, REMEDY, config, None)
        makers.append(_maker(place, callback))
    return makers


def _maker(place: str, callback: Callback) -> SinkMaker:
    def make(config: RunConfig, folder: RunFolder) -> Sink:
        if isinstance(callback, Sink):
            return callback
        try:
            sink = callback(config, folder)
        except ConfigError:
            raise
        except FAULTS as error:
            raise ConfigError(f"{place}: raises {described(error)}; mend it there") from error
        if not isinstance(sink, Sink):
            raise ConfigError(f"{place}: makes a {type(sink).__name__}; {REMEDY}")
        return sink

    return make
