"""Expected duration of a training run, stated before it starts."""

from unstable.commands.prepare import Resolved
from unstable.config import RunConfig, load
from unstable.records.text import duration

MEASURED_S = dict(first_run=50, smollm2=46, tiny=4.2, tiny_kuhn=1.6, tiny_leduc=2.7, tiny_nim=2)
"""Seconds per update on two CPU cores (docs/results.md, docs/small_worlds.md), start included."""


def expected_line(resolved: Resolved) -> str:
    """Return a line with the expected duration of a run, if its updates are those of a config."""
    steps, wanted = resolved.config.loop.steps, _sizes(resolved.config)
    for name, seconds in MEASURED_S.items():
        if not resolved.machine.gpus and _sizes(load(name)) == wanted:
            total = duration(seconds * steps)
            return f"duration about {total} for {steps} updates ({name} on two CPU cores)"
    return f"duration unknown until update 1 of {steps}"


def _sizes(config: RunConfig) -> tuple[object, ...]:
    """Return the parts of a config on which the duration of an update depends."""
    games = [(game.env, game.args, game.prompt) for game in config.games]
    batch = config.learner.batch_size, config.learner.epochs, config.learner.algorithm.name
    return type(config), config.model.name, games, batch, config.sampling.max_tokens
