"""README and the code that pages show."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


SCRIPTS = {"run.sh": ["train"], "run_24gb.sh": ["train", "--config", "qwen3_24gb"]}
"""Prefixes of commands that run `unstable`."""


def commands(page: str) -> list[list[str]]:
    """Arguments of `unstable` in the page's lines of shell."""
    found = []
    for line in "\n".join(blocks("bash", page)).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["bash"] and words[1] in SCRIPTS:
            found.append(SCRIPTS[words[1]] + words[2:])
        elif words and Path(words[0]).name == "unstable":
            found.append(words[1:])
    return found
