"""Commands about a run: what it does, has come to, and what others get of it."""

from collections.abc import Sequence

from unstable.cli.help import show_help
from unstable.cli.options import (
    HELP,
    SHORT_FORMS,
    configured,
    folder_at,
    parse_options,
    run_and_version,
    text_of,
    typed,
    usage_shown,
    version_of,
)
from unstable.cli.usage import (
    DOCTOR_USAGE,
    EVAL_USAGE,
    EXPLOIT_USAGE,
    EXPORT_USAGE,
    REPORT_USAGE,
    RUNS_USAGE,
    WATCH_USAGE,
)
from unstable.config import ConfigError


def doctor_command(arguments: Sequence[str]) -> int:
    """`unstable doctor`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        if len(arguments) == 1:
            print(DOCTOR_USAGE)
            return 0
        return show_help("unstable doctor", arguments)
    if arguments and not arguments[0].startswith("-"):
        run_dir, *rest = arguments
        if rest:
            raise ConfigError(f"{rest[0]!r}: doctor RUN_DIR takes nothing else; leave it out")
        from unstable.commands.diagnosis import diagnose

        return diagnose(folder_at("RUN_DIR", run_dir))
    config = configured(arguments)
    from unstable.commands.doctor import doctor

    return doctor(config)


def evaluate_command(arguments: Sequence[str]) -> int:
    """`unstable eval`; returns its exit code."""
    if (code := usage_shown(arguments, EVAL_USAGE)) is not None:
        return code
    run_dir, *rest = arguments
    folder, version = run_and_version("RUN_DIR", run_dir)
    options = parse_options(rest, {"--games": "eval.games", "--opponents": "eval.opponents"})
    option = version_of("--version", options.pop("version", None))
    if None not in (version, option):
        raise ConfigError(f"--version = {option}: {run_dir} names a version; give one of the two")
    version = option if version is None else version
    from unstable.commands.evaluate import evaluate

    evaluate(folder, version, options)
    return 0


def exploit_command(arguments: Sequence[str]) -> int:
    """`unstable exploit`; returns its exit code."""
    if (code := usage_shown(arguments, EXPLOIT_USAGE)) is not None:
        return code
    run_dir, *rest = arguments
    folder, version = run_and_version("RUN_DIR", run_dir)
    if "--learn" in rest:
        from unstable.commands.exploit import learn

        rest.remove("--learn")
        command = typed("exploit", arguments)
        learn(folder, version, parse_options(rest, SHORT_FORMS), command)
        return 0
    short = {f"--{name}": f"eval.exploitability.{name}" for name in ("games", "samples")}
    options = parse_options(rest, short)
    games = options.pop("eval.exploitability.games", [])
    from unstable.commands.exploit import measure

    measure(folder, version, [games] if isinstance(games, str) else games, options)
    return 0


def report_command(arguments: Sequence[str]) -> int:
    """`unstable report`; returns its exit code."""
    if (code := usage_shown(arguments, REPORT_USAGE)) is not None:
        return code
    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    folders = [folder_at("RUN_DIR", run_dir) for run_dir in arguments[:count]]
    options = parse_options(arguments[count:], {})
    out = text_of(options, "out")
    if options:
        raise ConfigError(f"--{[*options][0]} is no option of unstable report; it has --out FILE")
    from unstable.commands.report import report

    report(folders, None if out is None else folder_at("--out", out))
    return 0


def watch_command(arguments: Sequence[str]) -> int:
    """`unstable watch`; returns its exit code."""
    if (code := usage_shown(arguments, WATCH_USAGE)) is not None:
        return code
    run_dir, *rest = arguments
    if rest not in ([], ["--once"]):
        raise ConfigError(f"{' '.join(rest)}: unstable watch has --once alone; leave it out")
    from unstable.commands.watch import watch

    watch(folder_at("RUN_DIR", run_dir), once=bool(rest))
    return 0


def runs_command(arguments: Sequence[str]) -> int:
    """`unstable runs`; returns its exit code."""
    if any(argument in HELP for argument in arguments):
        print(RUNS_USAGE)
        return 0
    named = bool(arguments) and not arguments[0].startswith("-")
    options = parse_options(arguments[named:], {})
    tag = text_of(options, "tag")
    if options:
        raise ConfigError(f"--{[*options][0]} is no option of unstable runs; it has --tag WORD")
    from unstable.commands.runs import runs

    runs(folder_at("FOLDER", arguments[0] if named else "outputs"), tag)
    return 0


def export_command(arguments: Sequence[str]) -> int:
    """`unstable export`; returns its exit code."""
    if (code := usage_shown(arguments, EXPORT_USAGE)) is not None:
        return code
    run_dir, *rest = arguments
    folder, version = run_and_version("RUN_DIR", run_dir)
    merged = "--merged" in rest
    options = parse_options([word for word in rest if word != "--merged"], {})
    out, repository = text_of(options, "out"), text_of(options, "push")
    if options:
        known = "--merged, --out FOLDER and --push OWNER/NAME"
        raise ConfigError(f"--{[*options][0]} is no option of unstable export; it has {known}")
    from unstable.commands.export import export

    place = None if out is None else folder_at("--out", out)
    export(folder, version, place, merged=merged, repository=repository)
    return 0
