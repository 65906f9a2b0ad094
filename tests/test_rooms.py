"""The house: which outside packages and which other rooms a file may import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "unstable"
HEAVY = {"torch", "transformers", "peft", "ray", "vllm", "textarena", "wandb", "openai"}
PLAIN = {"numpy", "pydantic", "yaml"}
LEAVES = {"types", "config", "seeds", "folder", "targets", "prompts", "models", "games"}
PLANNING = {"machine", "memory", "fitting", "choosing", "placement"}
ROOMS = {"collectors", "buffers", "learners", "evaluation", "sft", "tracking"}
EVERYTHING = (
    LEAVES | ROOMS | {"loop", "rooms", "schedule", "routing", "registry", "remote", "launch"}
)
EVERYTHING |= {"remote_learner", "processes", "doctor", "launch_sft"} | PLANNING

# file or room: (outside packages besides PLAIN, parts of unstable)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "__init__": (set(), {"config", "folder", "launch"}),
    "types": (set(), set()),
    "config": (set(), {"config"}),
    "seeds": (set(), set()),
    "folder": (set(), {"types"}),
    "targets": (set(), {"config"}),
    "prompts": (set(), {"types", "config", "targets"}),
    "models": ({"torch", "transformers", "peft", "safetensors"}, {"types", "config", "models"}),
    "games": ({"textarena", "nltk"}, {"types", "config", "seeds", "targets", "prompts", "games"}),
    "cli": ({"rich"}, EVERYTHING),
    "launch": (set(), EVERYTHING),
    "launch_sft": (set(), EVERYTHING),
    "machine": ({"packaging", "psutil", "pynvml"}, {"models"}),
    "memory": (set(), {"config", "models"}),
    "fitting": (set(), {"config", "memory"}),
    "choosing": (set(), {"config", "machine", "models"}),
    "placement": (set(), {"config", "models"} | PLANNING),
    "doctor": ({"packaging"}, {"config"} | PLANNING),
    "remote": ({"ray", "torch"}, EVERYTHING - {"launch", "launch_sft", "loop"}),
    "remote_learner": ({"ray", "torch"}, EVERYTHING - {"launch", "launch_sft", "loop"}),
    "processes": (set(), EVERYTHING - {"launch", "launch_sft", "loop"}),
    "loop": (set(), {"types", "evaluation", "rooms"}),
    "rooms": (set(), EVERYTHING - {"models", "games", "launch", "launch_sft", "remote", "loop"}),
    "schedule": (set(), {"types", "config", "seeds"}),
    "routing": (set(), {"config", "types", "schedule"}),
    "registry": ({"trueskill"}, {"types", "config"}),
    "collectors": (
        {"torch", "transformers", "safetensors", "openai", "vllm"},
        LEAVES | {"collectors"},
    ),
    "buffers": (set(), {"types", "config", "targets", "buffers"}),
    "learners": ({"torch", "transformers", "peft", "safetensors"}, LEAVES | {"learners"}),
    "evaluation": (set(), {"types", "config", "seeds", "evaluation"}),
    "sft": (set(), LEAVES - {"models", "folder"} | {"sft"}),
    "tracking": (
        {"rich", "wandb", "psutil", "pynvml"},
        LEAVES - {"models", "games"} | {"tracking"},
    ),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    """Dotted names of all that a file imports, type-checking and local imports included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(PACKAGE)) for p in FILES])
def test_a_file_imports_only_what_its_room_may(path: Path) -> None:
    outside, inside = ALLOWED[room_of(path)]
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "unstable":
            part = rest.partition(".")[0]
            assert not part or part in inside or part not in EVERYTHING | {"cli"}, name
        else:
            assert top in outside | PLAIN | set(sys.stdlib_module_names), name


def test_every_part_of_the_package_is_in_the_table() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)


def test_http_ray_and_vllm_stay_where_they_are() -> None:
    for package, files in (
        ("openai", {"collectors/endpoint.py"}),
        ("ray", {"remote.py", "remote_learner.py"}),
        ("vllm", {"collectors/vllm_engine.py"}),
    ):
        holders = {
            str(path.relative_to(PACKAGE))
            for path in FILES
            if any(name.partition(".")[0] == package for name in imports(path))
        }
        assert holders == files


@pytest.mark.parametrize("module", ["unstable", "unstable.cli", "unstable.loop"])
def test_importing_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & HEAVY == set()


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
