# Sourced by install.sh: detects a GPU and checks its requirements before the installation. Prints
# one line per problem.

GPU_GB=14 CPU_GB=4        # disk space of the packages
CUDA_NEEDED=13 DRIVER=580 # CUDA version of the pinned torch and vLLM, and its oldest driver
SHARED_MB=1024            # of /dev/shm; Docker's default is 64
ON_PROCESSOR="or set CUDA_VISIBLE_DEVICES= to use the CPU"

# flavour: prints gpu, or cpu without a GPU or if CUDA_VISIBLE_DEVICES hides all. Exits with an error
# if a GPU exists that does not respond.
flavour() {
  case ${CUDA_VISIBLE_DEVICES-all} in "" | -1 | -1,*)
    echo cpu
    return
    ;;
  esac
  local listed=
  # Read all output: under pipefail, closing the pipe early would fail the writer.
  if command -v nvidia-smi >/dev/null 2>&1; then listed=$(nvidia-smi -L 2>&1 || true); fi
  if [[ $listed == *"GPU "*": "* ]]; then
    echo gpu
    return
  fi
  local node
  for node in "${NVIDIA_NODES:-/dev}"/nvidia[0-9]*; do
    [ -e "$node" ] || continue
    local why=${listed:-"nvidia-smi is not found; in a container set NVIDIA_DRIVER_CAPABILITIES=all"}
    echo "error: $node exists, but no GPU is usable (${why%%$'\n'*}); repair the driver," \
      "$ON_PROCESSOR" >&2
    exit 2
  done
  [ -z "$listed" ] || echo "note: no GPU is used; nvidia-smi says: ${listed%%$'\n'*}" >&2
  echo cpu
}

# check_machine ROOT FLAVOUR PYTHON: prints all problems, and exits if one prevents the installation.
check_machine() {
  local root=$1 wrong=0 gigabytes=$CPU_GB
  if [ "$2" = gpu ]; then
    gigabytes=$GPU_GB
    _check_driver || wrong=1
    _check_compiler "$3" || wrong=1
    _check_mode || wrong=1
    _check_shared
  fi
  _check_disk "$root" "$gigabytes" || wrong=1
  [ "$wrong" = 0 ] || exit 2
}

_check_driver() {
  local shown driver cuda
  shown=$(nvidia-smi 2>/dev/null || true)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null || true)
  driver=${driver%%$'\n'*}
  cuda=$(sed -n 's/.*CUDA[A-Z ]* Version: *\([0-9]*\).*/\1/p' <<<"$shown")
  cuda=${cuda%%$'\n'*}
  if [ -n "$cuda" ]; then # may be newer than the driver's own CUDA
    [ "$cuda" -lt "$CUDA_NEEDED" ] || return 0
  elif [[ ${driver%%.*} =~ ^[0-9]+$ ]]; then
    [ "${driver%%.*}" -lt "$DRIVER" ] || return 0
  else
    echo "note: the driver's version is unknown; torch needs $DRIVER or newer" >&2
    return 0
  fi
  echo "error: driver ${driver:-unknown} supports CUDA ${cuda:-12} at most, but torch needs" \
    "$CUDA_NEEDED; install driver $DRIVER or newer, $ON_PROCESSOR" >&2
  return 1
}

# vLLM compiles kernels at startup.
_check_compiler() {
  local found=0 version
  if [ -z "${CC:-}" ] && ! command -v gcc >/dev/null 2>&1 && ! command -v clang >/dev/null 2>&1; then
    echo "error: no C compiler, which vLLM needs at startup; install gcc (Debian: apt install gcc)," \
      "$ON_PROCESSOR" >&2
    found=1
  fi
  if ! "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
    echo "error: no Python.h, which vLLM needs at startup; install Python's headers (Debian: apt" \
      "install python${version:-3}-dev), $ON_PROCESSOR" >&2
    found=1
  fi
  return $found
}

_check_mode() {
  local modes
  modes=$(nvidia-smi --query-gpu=compute_mode --format=csv,noheader 2>/dev/null || true)
  case $modes in
    *Prohibited*)
      echo "error: a GPU's compute mode is Prohibited; run: nvidia-smi -c DEFAULT, $ON_PROCESSOR" >&2
      return 1
      ;;
    *Exclusive*)
      echo "note: a GPU's compute mode is exclusive, so that actor and learner cannot share it;" \
        "run: nvidia-smi -c DEFAULT" >&2
      ;;
  esac
}

_check_shared() {
  local megabytes
  megabytes=$(df -Pm "${SHARED_MEMORY:-/dev/shm}" 2>/dev/null | awk 'NR == 2 { print $2 }')
  if [ "${megabytes:-0}" -lt "$SHARED_MB" ]; then
    echo "note: /dev/shm has ${megabytes:-0} MB: Ray is slow, and models on several GPUs fail; give" \
      "it 8 GB (Docker: --shm-size=8g)" >&2
  fi
}

# Only before the first installation.
_check_disk() {
  [ ! -x "$1/.venv/bin/python" ] || return 0
  local free
  free=$(df -Pm "$1" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000) }')
  if [ "${free:-$2}" -lt "$2" ]; then
    echo "error: $1 has $free GB of disk free, but the packages need $2 GB; free some space" >&2
    return 1
  fi
}
