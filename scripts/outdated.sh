#!/usr/bin/env bash
# Says which pinned packages are old: what an install without pins would bring today, beside what
# constraints.txt and constraints_gpu.txt pin. Nothing is installed.
#   usage: bash scripts/outdated.sh         our own packages, beyond the bounds of pyproject.toml too
#          bash scripts/outdated.sh gpu     with those of the GPU install, within the bounds
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "${PYTHON:-$root/.venv/bin/python}" "$root/scripts/outdated.py" "$@"
