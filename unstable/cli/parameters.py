"""Arguments and options that several commands share, and the parsers of their values."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from typer import Argument, Option

from unstable.config import CONFIGS, path_problem

Number = int | Literal["best"]


class At(NamedTuple):
    """A run's folder and one of its versions, RUN_DIR[@VERSION]; None: the newest version."""

    folder: Path
    version: Number | None


def at(text: str) -> At:
    """Parse RUN_DIR[@VERSION]; raise `ValueError` if the text has another form."""
    path, sign, number = text.rpartition("@")
    is_version = sign and "/" not in number
    return At(folder(path if is_version else text), version_of(number) if is_version else None)


def folder(text: str) -> Path:
    """Parse the path of a folder or file; raise `ValueError` if it cannot be one."""
    if problem := path_problem(text):
        raise ValueError(problem)
    return Path(text).expanduser()


def version_of(text: str) -> Number:
    """Parse a version: a number or "best"; raise `ValueError` for any other text."""
    if text == "best":
        return "best"
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise ValueError("invalid version; give a number such as 12, or best")
    return int(text)


def names_of(text: str) -> list[str]:
    """Parse a list of names, separated by commas."""
    return [part.strip() for part in text.strip("[]").split(",")]


def versions_of(text: str) -> list[Number]:
    """Parse a list of versions, separated by commas."""
    return [*map(version_of, names_of(text))]


def range_of(text: str) -> tuple[int, int]:
    """Parse FROM:TO, the first and the last version of a range."""
    if (ends := re.fullmatch(r"([0-9]{1,18}):([0-9]{1,18})", text)) is None:
        raise ValueError("invalid range; give two versions, such as 150:200")
    return int(ends[1]), int(ends[2])


PLAYERS = "random, expert, rules, base, RUN_DIR[@VERSION], or a configured opponent"


def _players() -> list[str]:
    return ["random", "expert", "rules", "base"]


def _configs() -> list[str]:
    return [path.stem for path in CONFIGS.glob("*.yaml")]


_AT = "RUN_DIR[@VERSION]"
_RUN = Argument(metavar=_AT, parser=at, help="run, by default its newest version")
_RUNS = Argument(metavar="RUN_DIR", parser=folder, help="folders of runs")
Run = Annotated[At, _RUN]
RunOrNone = Annotated[At | None, _RUN]
RunDir = Annotated[Path, Argument(metavar="RUN_DIR", parser=folder, help="folder of a run")]
RunDirs = Annotated[list[Path], _RUNS]
RunDirsOrNone = Annotated[list[Path] | None, _RUNS]
File = Annotated[Path | None, Argument(metavar="FILE", parser=folder, help="YAML file or FOLDER")]
Config = Annotated[
    str | None, Option(metavar="NAME|PATH", autocompletion=_configs, help="shipped config or file")
]
Out = Annotated[Path | None, Option(parser=folder, help="folder or file to write")]
Resume = Annotated[Path | None, Option(parser=folder, help="folder to resume")]
Fork = Annotated[At | None, Option(metavar=_AT, parser=at, help="run to fork a new run from")]
ForkState = Annotated[
    Literal["true", "false"] | None,
    Option("--fork_state", help="with --fork: keep optimizer, baselines and reference (true)"),
]
Average = Annotated[Any, Option(metavar="FROM:TO", parser=range_of, help="versions to average")]
Versions = Annotated[Any, Option(metavar="N,N", parser=versions_of, help="such as 0,12,best")]
Version = Annotated[Any, Option(metavar="N|best", parser=version_of, help="default: the newest")]
Baseline = Annotated[int | None, Option(min=0, help="version whose values reduce the variance")]
Relabel = Annotated[int | None, Option(metavar="N", min=1, help="also in N other wordings")]
Games = Annotated[list[str] | None, Option(metavar="NAME ...", help="default: all of the config")]
Seat = Annotated[int | None, Option(min=0, help="seat number, from 0")]
Opponent = Annotated[str | None, Option(autocompletion=_players, help=PLAYERS)]
Against = Annotated[
    Any, Option(metavar="NAME,NAME", parser=names_of, help="with --openenv: more opponents")
]
Temperature = Annotated[float | None, Option(min=0, max=1e6, help="models' temperature; 0: greedy")]
Forfeits = Annotated[float, Option(min=0, help="weight of forfeited games")]
Seed = Annotated[int | None, Option(min=0, help="seed; default: the file's")]
Json = Annotated[bool, Option("--json", help="print JSON")]
Plan = Annotated[bool, Option("--plan", help="print the runs' commands without starting")]
Retry = Annotated[bool, Option("--retry", help="with --resume: rerun failed runs")]
Table = Annotated[bool, Option("--table", help="print the results table of FOLDER")]
