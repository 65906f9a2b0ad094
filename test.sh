#!/usr/bin/env bash
# Installs unstable and what its tests need into .venv beside this file, once, and runs the tests.
#   usage: bash test.sh [any option of pytest]      the quick ones
#          bash test.sh -m slow                     the slow ones alone
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" test
cd "$here"
exec .venv/bin/python -m pytest "$@"
