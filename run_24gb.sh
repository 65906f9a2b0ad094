#!/usr/bin/env bash
# Installs unstable into .venv beside this file, once, and trains Qwen3-1.7B on four 24 GB cards.
# docs/memory.md says what fits, and what changes on two cards or one.
#   usage: bash run_24gb.sh [any option of `unstable train`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" run
exec "$here/.venv/bin/unstable" train --config qwen3_24gb "$@"
