#!/usr/bin/env bash
# Installs unstable into .venv beside this file, once, and trains.
#   usage: bash run.sh [any option of `unstable train`]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/scripts/install.sh"
install_unstable "$here" run

if [ -f "$here/lora_ckpt.zip" ] && [ ! -d "$here/lora_ckpt" ]; then
  step "unpack lora_ckpt.zip" "delete lora_ckpt.zip to start from a fresh adapter" \
    "$here/.venv/bin/python" -m zipfile -e "$here/lora_ckpt.zip" "$here/lora_ckpt"
fi
exec "$here/.venv/bin/unstable" train "$@"
