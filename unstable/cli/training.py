"""Commands that make models: train, sft, world; and what is printed of a config."""

from collections.abc import Sequence

from unstable.cli.help import show_help
from unstable.cli.options import (
    HELP,
    SHORT_FORMS,
    choice_of,
    configured,
    folder_at,
    loaded,
    parse_options,
    run_and_version,
    text_of,
    typed,
)
from unstable.config import ConfigError, dump


def train_command(arguments: Sequence[str]) -> int:
    """`unstable train`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        return show_help("unstable train", arguments)
    options = parse_options(arguments, SHORT_FORMS)
    resumed, forked = text_of(options, "resume"), text_of(options, "fork")
    if resumed is None and forked is None:
        config = loaded(options)
        from unstable.commands.train import train

        train(config, typed("train", arguments))
        return 0
    if "config" in options or (resumed and forked):
        raise ConfigError("--resume, --fork and --config: give one of them")
    from unstable.commands.resume import fork, resume

    if resumed is not None:
        resume(folder_at("--resume", resumed), options)
    elif forked is not None:
        with_state = choice_of("--fork_state", options.pop("fork_state", True))
        run_dir, version = run_and_version("--fork", forked)
        fork(run_dir, version, options, with_state=with_state, command=typed("train", arguments))
    return 0


def sft_command(arguments: Sequence[str]) -> int:
    """`unstable sft`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        return show_help("unstable sft", arguments)
    options = parse_options(arguments, SHORT_FORMS)
    run_dir = text_of(options, "resume")
    if run_dir is None:
        config = loaded(options)
        from unstable.commands.sft import sft

        sft(config, typed("sft", arguments))
        return 0
    if options:
        raise ConfigError(
            f"--resume goes on with a run as it was begun; leave out --{[*options][0]}"
        )
    from unstable.commands.sft import resume

    resume(folder_at("--resume", run_dir))
    return 0


def world_command(arguments: Sequence[str]) -> int:
    """`unstable world`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        return show_help("unstable world", arguments)
    config = configured(arguments)
    from unstable.commands.world import make_world

    make_world(config)
    return 0


def config_command(arguments: Sequence[str]) -> int:
    """`unstable config`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        return show_help("unstable config", arguments)
    config = configured(arguments)
    from unstable.commands.prepare import prepare

    print(dump(prepare(config).config), end="")
    return 0
