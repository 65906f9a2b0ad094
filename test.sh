#!/usr/bin/env bash
# Installs unstable with its test dependencies into .venv on the first call, then runs the tests.
#   usage: bash test.sh [any option of pytest]      quick tests
#          bash test.sh -m slow                     slow tests, with this commit's share of the rotating ones
#          bash test.sh -m tables                   all rotating tests: rows of long tables, long lifecycles
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" test
cd "$here"
side_by_side=(-n 2 --dist worksteal)
if [[ "$*" == "-m slow" ]]; then
  failed=0
  .venv/bin/python -m pytest "${side_by_side[@]}" -m "slow and one_core" || failed=1
  .venv/bin/python -m pytest -m "slow and not one_core" || failed=1
  exit "$failed"
fi
if [[ "$*" == "-m tables" ]]; then
  .venv/bin/python -m pytest "${side_by_side[@]}" "$@"
  exec .venv/bin/python -m tests.helpers.tables --record
fi
[[ " $* " == *" slow"* ]] && side_by_side=()
exec .venv/bin/python -m pytest ${side_by_side[@]+"${side_by_side[@]}"} "$@"
