#!/usr/bin/env bash
# Installs unstable into .venv on the first call, then trains.
#   usage: bash run.sh [any option of `unstable train`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" run
exec "$here/.venv/bin/unstable" train "$@"
