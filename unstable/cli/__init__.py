"""The command line: a person's words become a config or a call, and mistakes become one line each.

`main` carries a command out; its options are every field of the config.
"""

from unstable.cli.command import main, run
from unstable.cli.options import SHORT_FORMS, parse_options

__all__ = ["SHORT_FORMS", "main", "parse_options", "run"]
