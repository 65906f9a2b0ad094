"""Commands that play at the terminal, and what there is to play."""

from collections.abc import Sequence

from unstable.cli.options import (
    EXIT_FAILED,
    EXIT_USER_ERROR,
    HELP,
    SHORT_FORMS,
    folder_at,
    number_of,
    parse_options,
    run_and_version,
    scalar_of,
    text_of,
    typed,
    version_of,
)
from unstable.cli.usage import PLAY_USAGE, REPLAY_USAGE, USAGE
from unstable.config import ConfigError, shown


def play_command(arguments: Sequence[str]) -> int:
    """`unstable play`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        print(PLAY_USAGE)
        return 0
    is_run = bool(arguments) and not arguments[0].startswith("-")
    folder, version = run_and_version("RUN_DIR", arguments[0]) if is_run else (None, None)
    options = parse_options(arguments[1:] if is_run else arguments, SHORT_FORMS)
    config = text_of(options, "config")
    from unstable.commands.play.play import Choices, play

    choices = Choices(
        game=text_of(options, "game"),
        seat=number_of("--seat", options.pop("seat", None), int),
        opponent=text_of(options, "opponent"),
        temperature=number_of("--temperature", options.pop("temperature", None), float),
    )
    command = typed("play", arguments)
    play(folder, version, config, choices, options, command=command)
    return 0


def replay_command(arguments: Sequence[str]) -> int:
    """`unstable replay`; returns its exit code."""
    if any(argument in HELP for argument in arguments) or len(arguments) < 2:
        print(REPLAY_USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    folder, number = folder_at("RUN_DIR", arguments[0]), scalar_of(arguments[1])
    if type(number) is not int:
        raise ConfigError(f"GAME = {shown(arguments[1])}: give a game's number, such as 12")
    options = parse_options(arguments[2:], SHORT_FORMS)
    version = version_of("--version", options.pop("version", None))
    purpose, turn = text_of(options, "purpose"), number_of("--from", options.pop("from", None), int)
    from unstable.commands.audit.replay import Change, audit, explore
    from unstable.commands.play.found import find

    if turn is None and options:
        raise ConfigError(f"--{[*options][0]}: only with --from TURN, which plays the game on")
    found = find(folder, number, purpose, version)
    if turn is None:
        return 0 if audit(found) else EXIT_FAILED
    change = Change(
        turn=turn,
        player=text_of(options, "with") or "me",
        seat=number_of("--seat", options.pop("seat", None), int),
        opponent=text_of(options, "opponent"),
        temperature=number_of("--temperature", options.pop("temperature", None), float),
    )
    explore(found, change, options, typed("replay", arguments))
    return 0


def games_command(arguments: Sequence[str]) -> int:
    """`unstable games`; returns its exit code."""
    if arguments:
        print(USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    from unstable.commands.games import vetted_games

    columns, rows = vetted_games()
    blocks = (
        "\n  ".join(
            [game, *(f"{name:8} {cell}" for name, cell in zip(columns[1:], cells, strict=True))]
        )
        for game, *cells in rows
    )
    print("\n\n".join(blocks))
    return 0


def model_command(arguments: Sequence[str]) -> int:
    """`unstable model`; returns its exit code."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(USAGE)
        return 0 if any(argument in HELP for argument in arguments) else EXIT_USER_ERROR
    from unstable.commands.prepare import base_folder

    print(base_folder(arguments[0]))
    return 0
