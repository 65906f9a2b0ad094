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
            _refuse(event, f"unsupported alias *{event.anchor}; write out its value")
        if getattr(event, "tag", None) is not None:
            _refuse(event, f"unsupported tag {event.tag}; leave it out")
        if self._depth == MOST_DEPTH:
            _refuse(event, f"nested deeper than {MOST_DEPTH} levels; remove the excess levels")
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
                    _refuse(key_node, f"duplicate key {shown(key)}; keep one of them")
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        if len(node.value) > MOST_DIGITS:
            _refuse(node, f"number longer than {MOST_DIGITS} digits; give a smaller one")
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
        raise ConfigError(f"{field}: invalid YAML: {line}{error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{field}: invalid YAML: {reason}") from None


def read_text(path: Path, field: str) -> str:
    """Return the text of a small file; raises `ConfigError` that begins with `field`."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{field}: not a regular file; give a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{field}: cannot be read ({error.strerror}); give a readable file"
        ) from None
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{field}: larger than {MOST_BYTES >> 10} KiB; give a smaller file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{field}: line {line} is not UTF-8; save the file as UTF-8") from None
