"""Layout of the tests: one folder per room, separate helpers, no imports between test modules."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent.parent
PACKAGE = TESTS.parent / "unstable"
OTHERS = {"chaos", "data", "helpers", "repository"}
"""Folders that belong to no room."""


def test_no_test_module_is_imported() -> None:
    """Tests share code only through tests/helpers/, and fixtures through tests/conftest.py."""
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                inside = parts[0] == "tests" and any(part.startswith("test_") for part in parts)
                assert not inside, f"{path}: {name}"


def test_test_folders_match_rooms() -> None:
    folders = {path.name for path in TESTS.iterdir() if any(path.glob("*.py"))}
    assert folders <= {path.stem for path in PACKAGE.iterdir()} | OTHERS
    assert not list(TESTS.glob("test_*.py"))
