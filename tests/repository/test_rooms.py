"""Imports that a file may make, from outside packages and from other rooms.

A room is a folder of the package, or a file next to the folders. All other imports, and rooms that
are missing in the table, are errors.
"""

import json
import subprocess
import sys
from graphlib import TopologicalSorter
from typing import NamedTuple

from tests.helpers.measures import (
    FILES,
    PACKAGE,
    ROOMS,
    WINGS,
    arrows,
    files_imported,
    room_of,
    rooms_imported,
    source,
)

HEAVY = {"torch", "transformers", "peft", "ray", "vllm", "textarena", "wandb", "openai"}
HEAVY |= {"pandas", "polars", "vl_convert", "tensorboard", "starlette", "uvicorn", "scipy.stats"}
PLAIN = {"numpy", "msgspec", "pydantic", "pydantic_core", "yaml", *sys.stdlib_module_names}
MODEL = {"torch", "transformers", "peft", "safetensors"}


class Allowed(NamedTuple):
    """Imports that a room may make: outside packages in addition to PLAIN, and other rooms."""

    outside: set[str]
    rooms: set[str]


BASE = {"types", "config"}
ALLOWED = {
    "types": Allowed(set(), set()),
    "config": Allowed(set(), set()),
    "processes": Allowed(set(), set()),
    "records": Allowed({"filelock", "pandas", "polars", "torch", "transformers"}, BASE),
    "report": Allowed({"vl_convert"}, BASE | {"records"}),
    "prompts": Allowed({"jinja2"}, BASE),
    "models": Allowed(
        MODEL | {"tokenizers", "huggingface_hub", "torchao", "bitsandbytes", "gguf", "jinja2"},
        BASE | {"records"},
    ),
    "league": Allowed({"trueskill"}, BASE),
    "rewards": Allowed({"filelock", "httpx", "torch", "transformers"}, BASE),
    "buffers": Allowed(set(), {"types"}),
    "games": Allowed({"textarena", "nltk", "scipy", "pyspiel"}, BASE | {"prompts"}),
    "contrib": Allowed(
        {"pettingzoo", "gymnasium", "gem", "pyspiel", "torch", "mlflow", "trackio", "websockets"},
        {
            *("types", "config", "records", "collectors", "engines", "games", "learners"),
            *("processes", "prompts", "serving", "solving", "tracking"),
        },
    ),
    "planning": Allowed({"packaging", "psutil", "pynvml"}, {"config", "models"}),
    "engines": Allowed(MODEL | {"vllm", "packaging", "filelock"}, BASE | {"models", "planning"}),
    "serving": Allowed({"starlette", "uvicorn", "llguidance"}, BASE | {"prompts", "engines"}),
    "drivers": Allowed({"httpx"}, set()),
    "collectors": Allowed(
        {"openai", "filelock"},
        BASE | {"processes", "prompts", "games", "engines", "serving", "drivers"},
    ),
    "solving": Allowed(set(), BASE | {"games"}),
    "learners": Allowed(MODEL, BASE | {"models"}),
    "datasets": Allowed(set(), BASE | {"prompts", "games", "records"}),
    "tracking": Allowed({"rich", "wandb", "tensorboard", "psutil"}, BASE | {"records"}),
    "loop": Allowed(set(), BASE | {"records", "league", "buffers", "datasets", "tracking"}),
    "runtime": Allowed(
        {"ray", "torch", "psutil"},
        {
            *("types", "config", "processes", "records", "models", "engines", "collectors"),
            *("solving", "rewards", "learners", "planning", "loop"),
        },
    ),
    "commands": Allowed(
        {"torch", "transformers", "psutil", "rich", "packaging", "vl_convert"},
        {
            *("types", "config", "records", "prompts", "models", "games", "engines", "collectors"),
            *("league", "rewards", "datasets", "planning", "tracking"),
            *("report", "loop", "runtime", "solving", "serving"),
        },
    ),
    "studies": Allowed(
        {"rich", "starlette"},
        {
            *("prompts", "serving"),
            *("types", "config", "records", "report", "models", "league", "games", "planning"),
            *("engines", "collectors", "tracking", "loop", "processes", "commands", "solving"),
        },
    ),
    "cli": Allowed({"typer"}, {"config", "commands", "studies"}),
    "__init__": Allowed(
        set(),
        {
            *("config", "records", "commands", "tracking", "buffers", "collectors", "games"),
            *("league", "learners", "loop"),
        },
    ),
}
RAY = {"actors", "cluster", "crew", "heartbeat", "inside", "learner_ranks", "node_actor"}
RAY |= {"nodes", "placement"}
VLLM = {"core", "engine", "lora_metadata", "loras", "whole"}
LIGHT: dict[str, list[str]] = {
    "unstable": [],
    "unstable.cli": [],
    "unstable.loop.train": [],
    "unstable.commands.train": ["textarena"],  # games are checked before processes start
    "unstable.runtime.processes": ["ray", "textarena"],  # no torch in a run's own process
}
"""Heavy packages loaded after importing each module, in this order."""
IMPORT_EACH = f"""
import importlib, json, sys
loaded = {{}}
for module in {list(LIGHT)}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "unstable"]:
        del sys.modules[name]
    importlib.import_module(module)
    loaded[module] = sorted({{*sys.modules}} & {HEAVY})
print(json.dumps(loaded))
"""
"""Imports each module without the package's others, and prints the loaded heavy packages."""


def test_files_import_only_what_their_room_allows() -> None:
    offences = {}
    for path in FILES:
        allowed = ALLOWED[room_of(path)]
        outside = {name.partition(".")[0] for name in source(path).imports} - {"unstable"}
        refused = rooms_imported(path) - {room_of(path)} - allowed.rooms
        refused |= outside - allowed.outside - PLAIN
        if refused:
            offences[str(path.relative_to(PACKAGE))] = refused
    assert offences == {}


def test_table_matches_imports_and_core_imports_no_wing() -> None:
    used = arrows()
    del used["bench"]
    assert used == {room: allowed.rooms for room, allowed in ALLOWED.items()}
    core = {room: used for room, used in arrows().items() if room not in WINGS | {"cli"}}
    assert {room: used & WINGS for room, used in core.items() if used & WINGS} == {}


def test_imports_between_rooms_are_acyclic() -> None:
    TopologicalSorter({room: allowed.rooms for room, allowed in ALLOWED.items()}).prepare()


def test_imports_between_files_are_acyclic() -> None:
    TopologicalSorter(files_imported()).prepare()


def test_folder_docstrings_have_two_to_four_lines() -> None:
    inits = [PACKAGE / room / "__init__.py" for room in ROOMS if (PACKAGE / room).is_dir()]
    whys = {path.parent.name: source(path).docstring or "" for path in inits}
    sizes = {name: len([line for line in why.splitlines() if line]) for name, why in whys.items()}
    assert {name: size for name, size in sizes.items() if not 2 <= size <= 4} == {}


def test_algorithm_files_are_small() -> None:
    for path in (PACKAGE / "learners/algorithms").glob("[a-z]*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 60, path.name


def test_http_ray_and_vllm_are_imported_only_in_known_files() -> None:
    for package, files in (
        ("openai", {"collectors/players/openai.py"}),
        ("httpx", {"drivers.py", "rewards/oracles/service.py"}),
        ("ray", {f"runtime/{name}.py" for name in RAY}),
        ("vllm", {f"engines/vllm/{name}.py" for name in VLLM}),
    ):
        holders = {
            str(path.relative_to(PACKAGE))
            for path in FILES
            if any(name.partition(".")[0] == package for name in source(path).imports)
        }
        assert holders == files


def test_importing_loads_no_heavy_packages() -> None:
    command = [sys.executable, "-c", IMPORT_EACH]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == LIGHT


def test_tracking_uses_only_escaped_text() -> None:
    """`Text` of tracking/text.py escapes control characters; Rich's own does not."""
    files = [path for path in FILES if room_of(path) == "tracking"]
    imported = [(path.name, name) for path in files for name in source(path).imports]
    assert {file for file, name in imported if "rich.text" in name} == {"text.py"}


def test_no_file_uses_the_global_random_state() -> None:
    allowed = {"Random", "getstate", "setstate", "default_rng", "Generator", "Philox"}
    allowed |= {"get_state", "set_state", "SeedSequence"}
    for path in FILES:
        for call in source(path).calls:
            owner, _, function = call.function.rpartition(".")
            if owner in ("random", "np.random", "numpy.random"):
                assert function in allowed, f"{path}:{call.line}"
