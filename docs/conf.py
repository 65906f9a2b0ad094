"""Configuration of the documentation site: `bash scripts/site.sh` builds it into `site/`."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts import docs_reference  # noqa: E402

project = "unstable"
author = "The unstable authors"
copyright = "2026, the unstable authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
default_role = "code"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["myst.strikethrough"]

autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = "unstable"
html_copy_source = False
html_show_sphinx = False


OUTSIDE = re.compile(r"\]\((?=(?:\.\./)+(?:bench|examples|scripts|tests|unstable)/)")
CONTRIBUTING = re.compile(r"\]\((?:\.\./)+CONTRIBUTING\.md")


def link_outside(app: Sphinx, name: str, source: list[str]) -> None:
    """Link CONTRIBUTING.md to its page, and other files outside of docs/ as downloads."""
    text = CONTRIBUTING.sub("](reference/contributing.md", source[0])
    source[0] = OUTSIDE.sub("](path:", text)


def setup(app: Sphinx) -> None:
    """Generate the reference, and rewrite links as pages are read."""
    docs_reference.write(ROOT / "docs" / "reference")
    app.connect("source-read", link_outside)
