"""README and the code that pages show."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
