#!/usr/bin/env bash
# Lists outdated pins: compares constraints.txt and constraints_gpu.txt with what pip would install
# today without them. Installs nothing.
#   usage: bash scripts/outdated.sh         CPU install, ignoring the bounds of pyproject.toml
#          bash scripts/outdated.sh gpu     GPU install, within these bounds
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec "${PYTHON:-$root/.venv/bin/python}" "$root/scripts/outdated.py" "$@"
