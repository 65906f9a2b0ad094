"""Finds prose that the style guide refuses: docs, docstrings, comments, messages, test names.

    .venv/bin/python scripts/prose.py [PATH ...] [--most N]

Prints one line per finding: file, line, the phrase and its remedy. With `--most` the exit status is
1 if there are more findings than that. Rules are in `scripts/prose_rules.txt`; a docstring must
also start with an imperative verb or a noun (`STARTS`).
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
STARTS = re.compile(
    r"(What|Whether|How|Where|Of|That|Those|As|Who|Whose|Whom|The same|Its|Their|They|It)\b"
)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!-- metrics.*?<!-- end -->", re.M | re.S)
WORDS = 3  # fewer words of a string literal are a name, not prose
MODEL_INPUTS = ("unstable/games/catalog/", "unstable/rewards/oracles/llm.py")
"""Files whose string literals are prompts, which stay as models were trained on them."""
FOLDERS = ("unstable", "tests", "docs", ".agents", "bench", "examples", "scripts")


class Rule(NamedTuple):
    """A phrase to avoid, and its remedy."""

    pattern: re.Pattern[str]
    remedy: str


class Prose(NamedTuple):
    """A text and the line where it starts; `docstring` texts have a first word to check."""

    line: int
    text: str
    docstring: bool = False


def rules() -> list[Rule]:
    """Read the rules."""
    lines = (Path(__file__).with_name("prose_rules.txt")).read_text("utf-8").splitlines()
    split = (line.split(" | ") for line in lines if line and not line.startswith("#"))
    return [Rule(re.compile(rf"\b{pattern}\b", re.I), remedy) for pattern, remedy in split]


def prose_of(path: Path) -> Iterator[Prose]:
    """Yield the prose of a Markdown or Python file, with code blanked out."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield Prose(1, _without_code(text))
        return
    docstrings = set[ast.AST]()
    for node in ast.walk(tree := ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (name := getattr(node, "name", "")).startswith("test_"):
                yield Prose(node.body[0].lineno, name.replace("_", " "))
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                first = node.body[0]
                docstrings.update(ast.iter_child_nodes(first))
                yield Prose(first.lineno, _without_code(docstring), docstring=True)
    if not path.relative_to(ROOT).as_posix().startswith(MODEL_INPUTS):
        yield from _strings(tree, docstrings)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(token.start[0], _without_code(token.string))


def _strings(tree: ast.AST, docstrings: set[ast.AST]) -> Iterator[Prose]:
    """Yield string literals of `WORDS` words or more that are no docstrings."""
    for node in ast.walk(tree):
        if node in docstrings or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str) and node.value.count(" ") >= WORDS - 1:
            yield Prose(node.lineno, _without_code(node.value))


def _without_code(text: str) -> str:
    """Blank out code, links and generated tables; lines keep their numbers."""
    return CODE.sub(lambda found: re.sub(r"[^\n]", "-", found[0]), text)


def findings(path: Path, known: list[Rule]) -> Iterator[str]:
    """Yield a line for each finding in a file."""
    name = path.relative_to(ROOT)
    for prose in prose_of(path):
        if prose.docstring and (start := STARTS.match(prose.text)):
            yield f"{name}:{prose.line}: starts with {start[0]!r}: use an imperative verb or a noun"
        for rule in known:
            for found in rule.pattern.finditer(prose.text):
                line = prose.line + prose.text.count("\n", 0, found.start())
                yield f"{name}:{line}: {' '.join(found[0].split())!r}: {rule.remedy}"


def files(paths: list[Path]) -> list[Path]:
    """List the Python and Markdown files below the paths, by default those of the repository."""
    named = paths or [ROOT / name for name in FOLDERS]
    named += [] if paths else sorted(ROOT.glob("*.md"))
    found = [each for path in named for each in (path.rglob("*") if path.is_dir() else [path])]
    kept = [each for each in found if each.suffix in (".py", ".md")]
    return sorted(each for each in kept if "reference" not in each.relative_to(ROOT).parts[:2])


def main() -> int:
    """Print the findings; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--most", type=int)
    given = parser.parse_args()
    known = rules()
    paths = files([path.resolve() for path in given.paths])
    lines = [line for path in paths for line in findings(path, known)]
    print("\n".join([*lines, f"{len(lines)} findings"]))
    return int(given.most is not None and len(lines) > given.most)


if __name__ == "__main__":
    sys.exit(main())
