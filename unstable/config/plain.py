"""Reading of text files and YAML as plain values, which refuses endless and duplicate ones."""

from pathlib import Path
from typing import Any, NoReturn

import yaml

from unstable.config.base import ConfigError, shown

MOST_BYTES = 2**17
"""Most bytes of a config; more would take seconds to parse."""
MOST_DEPTH = 24
MOST_DIGITS = 400


class _PlainLoader(yaml.SafeLoader):
    """YAML loader that refuses aliases (they can make endless values), tags and duplicate keys.

    Dates stay text.
    """

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if not tag.endswith(":timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            _refuse(event, f"the alias *{event.anchor} is not read; write out what it stands for")
        if getattr(event, "tag", None) is not None:
            _refuse(event, f"the tag {event.tag} is not read; leave it out")
        if self._depth == MOST_DEPTH:
            _refuse(event, f"more than {MOST_DEPTH} values lie in each other; no field is so deep")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                key = self.construct_object(key_node)
                if key in seen:
                    _refuse(key_node, f"the key {shown(key)} is there twice; keep one of them")
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MOST_DIGITS:
            _refuse(node, "a number of so many digits is not read; give a smaller one")
        return super().construct_yaml_int(node)


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def _refuse(place: Any, problem: str) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def read_yaml(text: str, field: str) -> Any:
    """Return the values of a YAML text; raises `ConfigError` that begins with `field`."""
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise ConfigError(f"{field}: not a config in YAML: {line}{error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{field}: not a config in YAML: {reason}") from None


def read_text(path: Path, field: str) -> str:
    """Return the text of a small file; raises `ConfigError` that begins with `field`."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{field}: is a pipe or a device; give a file")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{field}: cannot be read ({error.strerror}); give a file that you may read"
        ) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(
            f"{field}: has more than {MOST_BYTES >> 10} KiB; give a config, which is smaller"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{field}: line {line} is not text in UTF-8; save it as such") from None
