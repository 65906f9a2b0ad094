"""The commands: one table, and a function for each that calls what carries it out."""

from collections.abc import Callable
from typing import Any

from unstable.cli.options import (
    EXIT_FAILED,
    EXIT_USER_ERROR,
    any_value,
    choice_of,
    folder_at,
    loaded,
    loaded_run,
    number_of,
    run_and_version,
    scalar_of,
    text_of,
    version_of,
    versions_of,
    whole_number_of,
)
from unstable.cli.table import Command, Given
from unstable.config import ConfigError, dump, shown


def _train(given: Given) -> None:
    resumed, forked = given["resume"], given["fork"]
    if resumed is None and forked is None:
        config = loaded_run(given["config"], given.fields)
        from unstable.commands.train import train

        train(config, given.typed)
        return
    if given["config"] is not None or (resumed and forked):
        raise ConfigError("--resume, --fork and --config: give one of them")
    from unstable.commands.resume import fork, resume

    if resumed is not None:
        resume(folder_at("--resume", resumed), given.fields)
    else:
        run_dir, version = run_and_version("--fork", forked)
        with_state = given["fork_state"] is not False
        fork(run_dir, version, given.fields, with_state=with_state, command=given.typed)


def _sft(given: Given) -> None:
    if given["resume"] is None:
        config = loaded(given["config"], given.fields)
        from unstable.commands.sft import sft

        sft(config, given.typed)
        return
    for name in given.fields if given["config"] is None else ["config"]:
        raise ConfigError(f"--resume goes on with a run as it was begun; leave out --{name}")
    from unstable.commands.sft import resume

    resume(folder_at("--resume", given["resume"]))


def _world(given: Given) -> None:
    config = loaded(given["config"], given.fields)
    from unstable.commands.world import make_world

    make_world(config)


def _config(given: Given) -> None:
    config = loaded_run(given["config"], given.fields)
    from unstable.commands.prepare import prepare

    print(dump(prepare(config).config), end="")


def _doctor(given: Given) -> int:
    if not given.words:
        config = loaded_run(given["config"], given.fields)
        from unstable.commands.doctor import doctor

        return doctor(config, given["machine"], given["nodes"], given["gpus"])
    own = [n for n in ("config", "machine", "nodes", "gpus") if given[n] is not None]
    for name in [*own, *given.fields]:
        raise ConfigError(f"'--{name}': doctor RUN_DIR takes nothing else; leave it out")
    from unstable.commands.diagnosis import diagnose

    return diagnose(folder_at("RUN_DIR", given.words[0]))


def _evaluate(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    option = given["version"]
    if None not in (version, option):
        problem = f"{given.words[0]} names a version; give one of the two"
        raise ConfigError(f"--version = {option}: {problem}")
    from unstable.commands.evaluate import evaluate

    evaluate(folder, option if version is None else version, given.fields)


def _exploit(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    own = {name: value for name, value in given.own.items() if value is not None}
    files = {name: folder_at(f"--{name}", own.pop(name)) for name in _FILES if name in own}
    average = own.pop("average", None)
    if given.flags:
        for option in (*files, "average", "nodes"):
            if option in files or given[option] is not None:
                raise ConfigError(f"--{option}: --learn solves nothing exactly; leave it out")
        from unstable.commands.exploit import learn

        learn(folder, version, own | given.fields, given.typed)
        return
    games = own.pop("games", [])
    named = [games] if isinstance(games, str) else games
    options = {f"eval.exploitability.{name}": value for name, value in own.items()} | given.fields
    from unstable.commands.measure import measure, measure_table

    if average is not None and version is not None:
        raise ConfigError(f"--average: {given.words[0]} names a version; give one of the two")
    if (policy := files.pop("policy", None)) is not None:
        if files or average is not None or version is not None:
            raise ConfigError("--policy takes the place of the run's versions; leave them out")
        measure_table(folder, policy, named, options)
        return
    measure(folder, version, named, options, average=average, **files)


_FILES = ("table", "policy")


def _play(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0]) if given.words else (None, None)
    from unstable.commands.play.play import Choices, play

    choices = Choices(**{name: given[name] for name in ("game", "seat", "opponent", "temperature")})
    play(folder, version, given["config"], choices, given.fields, command=given.typed)


def _replay(given: Given) -> int:
    folder, number = folder_at("RUN_DIR", given.words[0]), scalar_of(given.words[1])
    if type(number) is not int:
        raise ConfigError(f"GAME = {shown(given.words[1])}: give a game's number, such as 12")
    change = ("with", "seat", "opponent", "temperature")
    others = [*(name for name in change if given[name] is not None), *given.fields]
    if given["from"] is None and others:
        raise ConfigError(f"--{others[0]}: only with --from TURN, which plays the game on")
    from unstable.commands.audit.replay import Change, audit, explore
    from unstable.commands.play.found import find

    found = find(folder, number, given["purpose"], given["version"])
    if given["from"] is None:
        return 0 if audit(found) else EXIT_FAILED
    choices = {name: given[name] for name in change[1:]}
    changed = Change(turn=given["from"], player=given["with"] or "me", **choices)
    explore(found, changed, given.fields, given.typed)
    return 0


def _report(given: Given) -> None:
    folders = [folder_at("RUN_DIR", word) for word in given.words]
    from unstable.commands.report import report

    report(folders, given["out"])


def _export(given: Given) -> None:
    folder, version = run_and_version("RUN_DIR", given.words[0])
    from unstable.commands.export import export

    merged = "--merged" in given.flags
    export(folder, version, given["out"], merged=merged, repository=given["push"])


def _watch(given: Given) -> None:
    from unstable.commands.watch import watch

    watch(folder_at("RUN_DIR", given.words[0]), once="--once" in given.flags)


def _runs(given: Given) -> None:
    from unstable.commands.runs import runs

    runs(folder_at("FOLDER", given.words[0] if given.words else "outputs"), given["tag"])


def _model(given: Given) -> None:
    from unstable.commands.prepare import base_folder

    print(base_folder(given.words[0]))


def _games(given: Given) -> None:
    from unstable.commands.games import vetted_games

    (_, *names), rows = vetted_games()
    blocks = (
        [game, *(f"{name:8} {cell}" for name, cell in zip(names, cells, strict=True))]
        for game, *cells in rows
    )
    print("\n\n".join("\n  ".join(block) for block in blocks))


def _completion(given: Given) -> int:
    from unstable.cli.completion import SHELLS, completion

    if given.words[0] not in SHELLS:
        print(COMMANDS["completion"].usage("completion"))
        return EXIT_USER_ERROR
    print(completion(given.words[0], COMMANDS), end="")
    return 0


def _folder_of(option: str, value: Any) -> Any:
    text = text_of(option, value)
    return None if text is None else folder_at(option, text)


CONFIG: dict[str, Callable[[str, Any], Any]] = {"config": text_of}
SITTING: dict[str, Callable[[str, Any], Any]] = {
    **{"seat": whole_number_of, "opponent": text_of, "temperature": number_of}
}
CONFIGURED = "[--config NAME|PATH] [--FIELD VALUE ...]"
MOST = 10_000
COMMANDS = {
    "train": Command(
        _train,
        {
            CONFIGURED: "Train a model by self-play",
            "--resume RUN_DIR [--steps N ...]": "Go on where it ended",
            "--fork RUN_DIR[@VERSION] [--FIELD VALUE ...]": "Begin another from a version",
        },
        """\
Without --config it begins with first_run (SmolLM2 on TicTacToe, 12 updates, evaluated before and
after), or with default where an option names a game, a model or an algorithm.""",
        own={**CONFIG, "resume": text_of, "fork": text_of, "fork_state": choice_of},
        takes_fields=True,
    ),
    "sft": Command(
        _sft,
        {
            CONFIGURED: "Train a start on examples first",
            "--resume RUN_DIR": "Go on after an interrupt",
        },
        own={**CONFIG, "resume": text_of},
        takes_fields=True,
    ),
    "world": Command(_world, {CONFIGURED: "Make a tiny base model"}, own=CONFIG, takes_fields=True),
    "eval": Command(
        _evaluate,
        {
            "RUN_DIR[@VERSION] [--games N] [--opponents NAME ...] [--FIELD VALUE ...]": (
                "Play a finished version again"
            )
        },
        """\
Plays a version of a run (the newest, if none is given) against fixed opponents: random, expert,
rules, base, or those that the run's config names. RUN_DIR is a folder that unstable train left,
VERSION a number or best; --version VERSION is the same.
--eval.temperature [1.0,0.0] plays all games twice, sampled and greedy;
--eval.votes 5 plays the action that is named most often in five samples a turn;
--eval.exploitability.every 1 computes how exploitable the version is, too.""",
        words=(1, 1),
        own={"version": version_of},
        takes_fields=True,
        short={"--games": "eval.games", "--opponents": "eval.opponents"},
    ),
    "exploit": Command(
        _exploit,
        {
            "RUN_DIR[@VERSION] [--games NAME ...] [--samples N] [--FIELD VALUE ...]": (
                "How far from an equilibrium?"
            ),
            "RUN_DIR --average FROM:TO [--table FILE] [--games NAME ...]": "Of versions' average",
            "RUN_DIR --policy FILE [--games NAME ...]": "Of a table's policy",
            "RUN_DIR[@VERSION] --learn [--FIELD VALUE ...]": "Train a best response to it",
        },
        """\
Computes exactly how exploitable a version of a run (the newest, if none is given) is, in those of
the run's games that can be solved exactly, or in the named ones. RUN_DIR is a folder that unstable
train left. --table FILE (.csv or .json) writes the policy that was measured, and --policy FILE
measures such a table. --average 150:200 measures the average of these versions, each weighted by
how probable it makes that its seat gets to a position. --nodes N allows trees of N positions.
With --learn, for games of any size, a best response to the version is trained, from it on; what
that wins is a lower bound. What it means is in docs/exploitability.md.""",
        words=(1, 1),
        own={
            **{"games": any_value, "samples": any_value, "nodes": any_value},
            **{"table": text_of, "policy": text_of, "average": versions_of},
        },
        flags=("--learn",),
        takes_fields=True,
    ),
    "play": Command(
        _play,
        {
            "RUN_DIR[@VERSION] [--game ENV] [--seat N] [--opponent PLAYER] ...": (
                "Play a game against a model"
            ),
            "[--config NAME|PATH] [--game ENV] [--seat N] [--opponent PLAYER] ...": (
                "Play one without a run"
            ),
        },
        """\
Plays one game at the terminal: you against a version of a run (the newest, if none is given), or
against PLAYER: random, expert (the default without a run), rules, base, an opponent that the config
names, or RUN_DIR[@VERSION]. ENV is one of the config's games or any other; the default is the
config's first. --seed N deals the same game again, --temperature T is the opponent's, 0: greedy;
--FIELD VALUE sets fields of the config. In the game ? lists what can be asked: legal actions, a
solver's hints, the model's reasoning and probabilities. The game is saved in
outputs/play-<game-players-time>, or in --run_dir DIR.""",
        words=(0, 1),
        own={**CONFIG, "game": text_of, **SITTING},
        takes_fields=True,
    ),
    "replay": Command(
        _replay,
        {
            "RUN_DIR GAME [--purpose train|eval] [--version N]": "Play a recorded game again",
            "RUN_DIR GAME --from TURN [--with PLAYER] [--seat N] [--opponent PLAYER] ...": (
                "Play it on from a turn"
            ),
        },
        """\
Plays a recorded game again from its seed and says whether all is as it was; exit code 1 where not.
GAME is its number in the viewer. Programs are asked again, and so are models on the embedded engine
whose version is kept; of others a line says why not.
With --from, the game is played as recorded up to TURN (1 is the first), and on from there by PLAYER
at one seat (the trained one's, or --seat N): me (the default), random, expert, rules, base, an
opponent of the run, or RUN_DIR[@VERSION]. The others are who they were, or --opponent PLAYER.""",
        words=(2, 2),
        own={
            **{"purpose": text_of, "version": version_of, "from": whole_number_of},
            **{"with": text_of, **SITTING},
        },
        takes_fields=True,
    ),
    "report": Command(
        _report,
        {"RUN_DIR... [--out FILE]": "A page on runs, and their games"},
        """\
Writes one HTML file on a run, or on several compared: whether it learned, curves, ratings, how
training went, what was set, and its games to step through. It opens without a network. FILE is
report.html, in the run's folder where there is one run.""",
        words=(1, MOST),
        own={"out": _folder_of},
    ),
    "watch": Command(
        _watch,
        {"RUN_DIR [--once]": "A run's dashboard, anywhere"},
        """\
Shows a run's dashboard in this terminal, while it goes on or afterwards, from its folder alone; so
also from another machine that sees the folder. q leaves. --once prints it as it is now.""",
        words=(1, 1),
        flags=("--once",),
    ),
    "runs": Command(
        _runs,
        {"[FOLDER] [--tag WORD]": "List runs, with state and score"},
        """\
Lists the runs in a folder (outputs, if none is given), the newest last: what each is at, how far,
its newest score, when it last wrote, and its tags (--tags WORD ... of unstable train).""",
        words=(0, 1),
        own={"tag": text_of},
    ),
    "export": Command(
        _export,
        {
            "RUN_DIR[@VERSION] [--merged] [--out FOLDER] [--push OWNER/NAME]": (
                "A folder that others load"
            )
        },
        """\
Writes a version of a run (the newest, if none is given) as a folder that others load: a PEFT
adapter, or with --merged whole weights; with tokenizer, prompts and a model card. FOLDER is new or
empty; by default it lies in the run's, in exports/. --push uploads it to the hub too.""",
        words=(1, 1),
        own={"out": _folder_of, "push": text_of},
        flags=("--merged",),
    ),
    "config": Command(
        _config, {CONFIGURED: "Print the resolved config"}, own=CONFIG, takes_fields=True
    ),
    "doctor": Command(
        _doctor,
        {
            f"{CONFIGURED} [--machine NAME|FILE] [--nodes N] [--gpus N]": "Would it run here?",
            "RUN_DIR": "What does it do, or why not?",
        },
        """\
Says what this machine has, what a config needs of it, the plan, and whether it would run. Or, of a
run's folder: whether the run goes on, what it does and waits for, when it last moved, the last
error of each log, and what to do next; exit code 1 where it has died, failed or stopped.
--machine plans for one that is not here: h200, 8xh100, 4x24gb, or a YAML file of cores, memory (GB)
and cards (name, memory, compute, count). --nodes 4 --gpus 8 plans for four of them, with eight such
cards each (H100 unless --machine names others), and says what that comes to in an hour.""",
        words=(0, 1),
        own={
            **CONFIG,
            "machine": text_of,
            "nodes": whole_number_of,
            "gpus": whole_number_of,
        },
        takes_fields=True,
    ),
    "model": Command(_model, {"NAME": "Print a base model's folder"}, words=(1, 1)),
    "games": Command(_games, {"": "List the vetted games"}),
    "completion": Command(
        _completion,
        {"bash|zsh": "Complete by Tab"},
        """\
Prints what completes commands and options by Tab. In ~/.bashrc or ~/.zshrc:
  eval "$(unstable completion bash)\"""",
        words=(1, 1),
    ),
}
