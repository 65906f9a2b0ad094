"""Entry point of `python -m unstable.cli`, which equals the command `unstable`."""

from unstable.cli import main

main()
