#!/usr/bin/env bash
# Installs Debian's chromium for the report's browser tests, which are skipped without it.
#   usage: bash scripts/browser.sh
set -euo pipefail
if command -v chromium >/dev/null 2>&1; then
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "apt-get not found; install chromium so that \`chromium\` starts it" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
${as_root[@]+"${as_root[@]}"} apt-get update -qq
${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends chromium
