#!/usr/bin/env bash
# Installs unstable and what its tests need into .venv beside this file, once, and runs the tests.
#   usage: bash test.sh [any option of pytest]      the quick ones
#          bash test.sh -m slow                     the slow ones alone
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" test
cd "$here"
side_by_side=(-n 2 --dist worksteal)
[[ " $* " == *" slow"* ]] && side_by_side=() # those take both cores, and the time, themselves
exec .venv/bin/python -m pytest ${side_by_side[@]+"${side_by_side[@]}"} "$@"
