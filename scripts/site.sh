#!/usr/bin/env bash
# Builds the documentation site into site/, with warnings as errors: bash scripts/site.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
.venv/bin/python -c "import furo, myst_parser" 2>/dev/null ||
  .venv/bin/python -m pip install -qq --constraint constraints.txt --editable ".[docs]"
.venv/bin/python -m sphinx -W --keep-going -q -b html docs site
echo "site/index.html"
