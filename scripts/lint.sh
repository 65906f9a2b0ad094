#!/usr/bin/env bash
# Style, prose and types, in one command: bash scripts/lint.sh [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = --fix ]; then
  .venv/bin/ruff check --fix .
  .venv/bin/ruff format .
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python scripts/prose.py --most 0 | tail -n 1
