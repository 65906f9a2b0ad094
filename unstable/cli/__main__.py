"""`python -m unstable.cli` is `unstable`."""

from unstable.cli import main

main()
