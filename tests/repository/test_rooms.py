"""The house: which outside packages and which other rooms a file may import.

A room is a folder of the package, or a file that lies beside the folders. The table is the only
list: what it does not allow is refused, and a room that it lacks is an error.
"""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "unstable"
HEAVY = {"torch", "transformers", "peft", "ray", "vllm", "textarena", "wandb", "openai"}
HEAVY |= {"pandas", "polars", "vl_convert", "tensorboard"}
PLAIN = {"numpy", "pydantic", "pydantic_core", "yaml", *sys.stdlib_module_names}
MODEL = {"torch", "transformers", "peft", "safetensors"}


class Allowed(NamedTuple):
    """What a room may import: outside packages besides PLAIN, and other rooms."""

    outside: set[str]
    rooms: set[str]


BASE = {"types", "config"}
ALLOWED = {
    "types": Allowed(set(), set()),
    "config": Allowed(set(), set()),
    "records": Allowed({"filelock", "pandas", "polars", "torch", "transformers"}, BASE),
    "report": Allowed({"vl_convert"}, BASE | {"records"}),
    "prompts": Allowed({"jinja2"}, BASE),
    "models": Allowed(
        MODEL | {"tokenizers", "huggingface_hub", "torchao", "bitsandbytes", "gguf", "jinja2"},
        BASE | {"records"},
    ),
    "league": Allowed({"trueskill"}, BASE),
    "rewards": Allowed({"httpx", "torch", "transformers"}, BASE),
    "buffers": Allowed(set(), {"types"}),
    "games": Allowed({"textarena", "nltk", "pyspiel"}, BASE | {"prompts"}),
    "planning": Allowed({"packaging", "psutil", "pynvml"}, {"config", "models"}),
    "engines": Allowed(MODEL | {"vllm", "packaging"}, BASE | {"models", "planning"}),
    "collectors": Allowed({"openai"}, BASE | {"prompts", "models", "games", "engines"}),
    "solving": Allowed(set(), BASE | {"games", "collectors"}),
    "learners": Allowed(MODEL, BASE | {"models", "records"}),
    "datasets": Allowed(set(), BASE | {"prompts", "games", "records"}),
    "tracking": Allowed(
        {"rich", "wandb", "tensorboard", "psutil"}, BASE | {"prompts", "records", "planning"}
    ),
    "loop": Allowed(
        set(), BASE | {"records", "league", "rewards", "buffers", "datasets", "tracking"}
    ),
    "runtime": Allowed(
        {"ray", "torch", "psutil"},
        {
            *("types", "config", "records", "models", "engines", "collectors", "solving"),
            *("rewards", "learners", "planning", "tracking", "loop"),
        },
    ),
    "commands": Allowed(
        {"torch", "transformers", "psutil", "rich", "packaging", "vl_convert"},
        {
            *("types", "config", "records", "prompts", "models", "games", "engines", "collectors"),
            *("league", "rewards", "learners", "datasets", "planning", "tracking"),
            *("report", "loop", "runtime", "solving"),
        },
    ),
    "cli": Allowed({"rich"}, {"config", "commands"}),
    "__init__": Allowed(set(), {"config", "records", "commands", "tracking"}),
}
TARGET = r"unstable(\.\w+)+(:\w+)?"
"""A string that names a module, or what is in one."""
RAY = {"actors", "cluster", "crew", "learner_ranks", "node_actor"}
RAY |= {"node_logs", "nodes", "placement"}
MOST_ARROWS = 109
MOST_FILES_BESIDE = 8
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of all that a file imports: for types, locally and by `module:name` included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and re.fullmatch(TARGET, str(node.value)):
            found.add(str(node.value).replace(":", "."))
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def rooms_imported(path: Path) -> set[str]:
    """Rooms that a file imports; the package itself is the room `__init__`."""
    names = {name for name in imports(path) if name.partition(".")[0] == "unstable"}
    parts = {(name.split(".") + ["__init__"])[1] for name in names}
    return {part if part in ALLOWED else "__init__" for part in parts}


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(PACKAGE)) for p in FILES])
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    allowed = ALLOWED[room_of(path)]
    assert rooms_imported(path) - {room_of(path)} <= allowed.rooms
    outside = {name.partition(".")[0] for name in imports(path)} - {"unstable"}
    assert outside <= allowed.outside | PLAIN


def test_the_table_is_the_house() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)
    for room, allowed in ALLOWED.items():
        files = [path for path in FILES if room_of(path) == room]
        used = set().union(*map(rooms_imported, files)) - {room}
        assert used == allowed.rooms, f"{room} may import {allowed.rooms - used} and does not"


def test_imports_run_one_way() -> None:
    TopologicalSorter({room: allowed.rooms for room, allowed in ALLOWED.items()}).prepare()


def test_arrows_and_files_beside_the_folders_stay_few() -> None:
    bench = set().union(*map(rooms_imported, (ROOT / "bench").glob("*.py")))
    arrows = sum(len(allowed.rooms) for allowed in ALLOWED.values()) + len(bench)
    assert arrows <= MOST_ARROWS
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_BESIDE


@pytest.mark.parametrize("folder", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir()))
def test_a_folder_says_in_two_to_four_lines_why_it_exists(folder: str) -> None:
    path = PACKAGE / folder / "__init__.py"
    if not path.exists():
        assert not list((PACKAGE / folder).rglob("*.py"))
        return
    why = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert why is not None and 2 <= len([line for line in why.splitlines() if line]) <= 4


def test_an_algorithm_is_a_small_file() -> None:
    for path in (PACKAGE / "learners/algorithms").glob("[a-z]*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name


def test_http_ray_and_vllm_stay_where_they_are() -> None:
    for package, files in (
        ("openai", {"collectors/players/openai.py"}),
        ("httpx", {"rewards/oracles/service.py"}),
        ("ray", {f"runtime/{name}.py" for name in RAY}),
        ("vllm", {f"engines/vllm/{name}.py" for name in ("core", "engine", "loras", "whole")}),
    ):
        holders = {
            str(path.relative_to(PACKAGE))
            for path in FILES
            if any(name.partition(".")[0] == package for name in imports(path))
        }
        assert holders == files


@pytest.mark.parametrize(
    ("module", "needed"),
    [
        ("unstable", set()),
        ("unstable.cli", set()),
        ("unstable.loop.train", set()),
        ("unstable.commands.train", {"textarena"}),  # games are tried before processes start
    ],
)
def test_importing_stays_light(module: str, needed: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & HEAVY == needed


def test_tracking_shows_text_with_control_characters_spelled_out() -> None:
    """`Text` of tracking/text.py does that; Rich's own does not."""
    files = [path for path in FILES if room_of(path) == "tracking"]
    holders = [path.name for path in files if any("rich.text" in name for name in imports(path))]
    assert holders == ["text.py"]


def test_no_file_uses_the_global_random_state() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value)
            allowed = {"Random", "getstate", "setstate", "default_rng", "Generator", "Philox"}
            allowed |= {"get_state", "set_state", "SeedSequence"}
            if owner in ("random", "np.random", "numpy.random"):
                assert node.func.attr in allowed, f"{path}:{node.lineno}"
