"""Self-contained HTML file: the data as JSON, and the scripts that show it.

Texts of models and games are only data. The page's policy allows its own two scripts by their
hashes, and nothing else; they insert text as text.
"""

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from unstable.config import escape_control
from unstable.records.files import write_whole

_HERE = Path(__file__).parent
_SCRIPTS = ("viewer.js", "page.js")
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
_ESCAPED = re.compile(r"\\[ubfr]")
"""Escapes that JSON uses for control characters, except line feeds and tabs."""


def write_page(path: Path, report: Mapping[str, Any], chunks: Sequence[bytes], library: str) -> int:
    """Write the page; returns its size in bytes.

    `report` is shown at once; `chunks` are gzipped, and unpacked when they are needed.
    """
    own = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    data = {
        **report,
        "library_bytes": len(library.encode()),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    parts = {
        "POLICY": _policy(library, own),
        "TITLE": html.escape(escape_control(str(report["title"])), quote=False),
        "STYLE": (_HERE / "page.css").read_text(encoding="utf-8"),
        "DATA": as_data(data),
        "CHUNKS": "\n".join(_chunk(index, chunk) for index, chunk in enumerate(chunks)),
        "LIBRARY": library,
        "SCRIPT": own,
    }
    assert "</script" not in (library + own).lower(), "it would end the page's script"
    template = (_HERE / "page.html").read_text(encoding="utf-8")
    head, *rest = template.split("{{")
    page = head + "".join(parts[name] + text for name, text in (p.split("}}", 1) for p in rest))
    content = page.encode()
    write_whole(path, content)
    return len(content)


def as_data(value: object) -> str:
    """Return JSON that no script element can end early, since it holds no "<"."""
    return as_json(value).replace("<", "\\u003c")


def _chunk(index: int, content: bytes) -> str:
    packed = base64.b64encode(content).decode()
    return f'<script type="application/gzip" id="chunk-{index}">{packed}</script>'


def _policy(*scripts: str) -> str:
    """Return a content security policy: no network, frames or forms, and only the given scripts."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_json(value: object) -> str:
    r"""Return strict JSON with control characters in texts spelled out, so that readers see them.

    >>> as_json({"said": "\x1b[2J"})
    '{"said":"\\\\u001b[2J"}'
    """
    text = _dumped(value)
    if _ESCAPED.search(text) is None and escape_control(text) == text:
        return text  # the usual case; spelling out takes ten times as long
    return _dumped(_spelled(value))


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, dict):
        return {escape_control(name): _spelled(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value


def plot_library(cache: Path) -> str:
    """Return the plotting library's JavaScript, some 900 kB with Vega and its interpreter.

    Bundling takes seconds, so the result is kept in the folder `cache`. BSD-3-Clause.
    """
    kept = cache / f"vega-{version('vl-convert-python')}.js"
    if not kept.is_file():
        import vl_convert  # 80 MB; only the first report on a machine needs it

        write_whole(kept, vl_convert.javascript_bundle(_SNIPPET).encode())
    return kept.read_text(encoding="utf-8")
