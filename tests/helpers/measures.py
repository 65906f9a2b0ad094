"""Measures of the repository: sizes, imports, classes, error borders, and depths of calls."""

import ast
import asyncio
import functools
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "unstable"
FILES = sorted(PACKAGE.rglob("*.py"))
TARGET = r"unstable(\.\w+)+(:\w+)?"
"""A string that names a module, or a member of one."""
ANY = {"Exception", "BaseException"}


class Call(NamedTuple):
    """A call, with the dotted names of its function and its positional arguments."""

    line: int
    function: str
    arguments: tuple[str, ...]


class Source(NamedTuple):
    """Facts about a file of code, read from its syntax tree."""

    docstring: str | None
    imports: frozenset[str]
    """Dotted names; imports for types, local imports and `module:name` strings included."""
    first_imports: frozenset[str]
    """Names in `imports` without local imports and strings."""
    classes: tuple[str, ...]
    broad_handlers: tuple[ast.ExceptHandler, ...]
    calls: tuple[Call, ...]


@functools.cache
def source(path: Path) -> Source:
    """Parse a file, once in a process."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    return Source(
        docstring=ast.get_docstring(tree),
        imports=frozenset(name for node in nodes for name in _imported(node, path)),
        first_imports=frozenset(
            name
            for node in _outside_functions(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in _imported(node, path)
        ),
        classes=tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
        broad_handlers=tuple(
            node for node in nodes if isinstance(node, ast.ExceptHandler) and _is_broad(node)
        ),
        calls=tuple(
            Call(node.lineno, dotted(node.func), tuple(map(dotted, node.args)))
            for node in nodes
            if isinstance(node, ast.Call)
        ),
    )


def dotted(node: ast.AST) -> str:
    """Return the source of a dotted name such as `a.b.c`; `?` replaces any other expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node that lie in no function."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _outside_functions(child)


def _imported(node: ast.AST, path: Path) -> Iterable[str]:
    if isinstance(node, ast.Constant) and re.fullmatch(TARGET, str(node.value)):
        return [str(node.value).replace(":", ".")]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module is not None, f"{path}: relative import"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _is_broad(handler: ast.ExceptHandler) -> bool:
    """Tell whether a handler catches any error; a bare one does."""
    if handler.type is None:
        return True
    parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return bool({dotted(part) for part in parts} & ANY)


def room_of(path: Path) -> str:
    """Return the folder of the package that holds a file, or the name of a file beside them."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


ROOMS = {room_of(path) for path in FILES}


def rooms_imported(path: Path) -> set[str]:
    """Rooms that a file imports; the package itself is the room `__init__`."""
    names = {name for name in source(path).imports if name.partition(".")[0] == "unstable"}
    parts = {(name.split(".") + ["__init__"])[1] for name in names}
    return {part if part in ROOMS else "__init__" for part in parts}


def files_imported() -> dict[str, set[str]]:
    """Return the package's files that each imports, for types too, as dotted names of modules."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in names.items()}
    imported: dict[str, set[str]] = {}
    for module, path in modules.items():
        found = source(path).first_imports
        whole = {name if name in modules else name.rpartition(".")[0] for name in found}
        imported[module] = whole & modules.keys() - {module}
    return imported


def arrows() -> dict[str, set[str]]:
    """Return the other rooms that each room imports, by its name, and those of `bench/*.py`."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in FILES:
        found[room_of(path)] |= rooms_imported(path) - {room_of(path)}
    found["bench"] = set().union(*map(rooms_imported, (ROOT / "bench").glob("*.py")))
    return found


WINGS = {"bench", "studies", "contrib"}
"""Rooms above the core, or beside it, which no room of the core imports."""
NAMES = "__init__"
"""The file that lists the public names, each by the room that defines it."""


def core_arrows() -> int:
    """Count the arrows between the rooms of the core."""
    return sum(len(each - WINGS) for room, each in arrows().items() if room not in WINGS | {NAMES})


def core_lines() -> int:
    """Count the physical lines of the package's Python files outside its wings."""
    return lines(PACKAGE) - sum(lines(PACKAGE / wing) for wing in WINGS)


def lines(folder: Path) -> int:
    """Count the physical lines of a folder's Python files."""
    return sum(len(path.read_bytes().splitlines()) for path in folder.rglob("*.py"))


def documentation_words() -> int:
    """Count the words, split at white space, of `docs/`, README, CONTRIBUTING and AGENTS.

    Left out are `docs/reference/` and the tables of metrics, which scripts/docs_reference.py makes,
    and the tables of TextArena's games, which tests/helpers/sweep.py makes.
    """
    pages = [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    for name in ("metrics.md", "textarena.md"):
        texts[name] = re.sub(r"^\|.*$", "", texts[name], flags=re.MULTILINE)
    return sum(len(text.split()) for text in texts.values())


def shared_class_names() -> list[str]:
    """List the names that more than one `class` statement of the package defines.

    A leading underscore makes no difference.
    """
    names = Counter(name.lstrip("_") for path in FILES for name in source(path).classes)
    return sorted(name for name, number in names.items() if number > 1)


def fault_borders() -> list[str]:
    """List the places of the package that call `faults_to` or its wrapper `refusing`."""
    return [
        f"{path.relative_to(PACKAGE)}:{call.line}"
        for path in FILES
        for call in source(path).calls
        if call.function.rpartition(".")[2] in ("faults_to", "refusing")
    ]


CREATORS: ContextVar[tuple[str, ...]] = ContextVar("creators", default=())
"""Path of calls that led to the creation of the current task or callback."""
COMPREHENSIONS = ("comp>", "<genexpr>")


def call_path() -> tuple[str, ...]:
    """Return the package's functions that led to this call, outermost first.

    The stack of a running coroutine holds the coroutines that await it, up to the task's own. The
    functions that led to the task's creation precede them. Comprehensions are left out.
    """
    names = []
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
        if name.startswith("unstable.") and not name.endswith(COMPREHENSIONS):
            names.append(name)
    return (*CREATORS.get(), *reversed(names))


def _remembering_creators(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> "asyncio.Task[Any]":
    context = (options.pop("context", None) or copy_context()).copy()
    context.run(CREATORS.set, call_path())
    return asyncio.Task(work, loop=loop, context=context, **options)


@contextmanager
def tracing(*targets: tuple[type, str]) -> Iterator[dict[str, set[tuple[str, ...]]]]:
    """Collect the paths of all calls of methods, by method name, made on the running loop.

    A path ends with the method itself where the package defines it.
    """
    paths: dict[str, set[tuple[str, ...]]] = {name: set() for _, name in targets}
    loop = asyncio.get_running_loop()
    loop.set_task_factory(_remembering_creators)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in targets:
            patch.setattr(owner, name, _recorded(getattr(owner, name), paths[name]))
        yield paths
    loop.set_task_factory(None)


def _recorded(method: Callable[..., Any], paths: set[tuple[str, ...]]) -> Callable[..., Any]:
    own = f"{method.__module__}.{method.__qualname__}"
    end = (own,) if own.startswith("unstable.") else ()

    @functools.wraps(method)
    def recorded(*given: Any, **named: Any) -> Any:
        paths.add((*call_path(), *end))
        return method(*given, **named)

    return recorded
