#!/usr/bin/env bash
# Installs unstable into .venv on the first call, then trains Qwen3-1.7B on four 24 GB GPUs.
# docs/memory.md has the memory budget and the settings for fewer GPUs.
#   usage: bash run_24gb.sh [any option of `unstable train`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" run
exec "$here/.venv/bin/unstable" train --config qwen3_24gb "$@"
