# Sourced by install.sh: whether this machine has a card, and what it lacks to use one. A line each,
# before anything is installed.

GPU_GB=14 CPU_GB=4        # of disk that the packages take
CUDA_NEEDED=13 DRIVER=580 # what the pinned torch and vLLM are built for, and the first driver for it
SHARED_MB=1024            # of /dev/shm; Docker gives 64
ON_PROCESSOR="or set CUDA_VISIBLE_DEVICES= to use the processor"

# flavour: prints gpu, or cpu where there is no card or CUDA_VISIBLE_DEVICES hides all. Where a card
# is there that does not answer, it says so and ends.
flavour() {
  case ${CUDA_VISIBLE_DEVICES-all} in "" | -1 | -1,*)
    echo cpu
    return
    ;;
  esac
  local listed=
  # Read to its end: under pipefail a reader that leaves early would fail what still writes.
  if command -v nvidia-smi >/dev/null 2>&1; then listed=$(nvidia-smi -L 2>&1 || true); fi
  if [[ $listed == *"GPU "*": "* ]]; then
    echo gpu
    return
  fi
  local node
  for node in "${NVIDIA_NODES:-/dev}"/nvidia[0-9]*; do
    [ -e "$node" ] || continue
    local why=${listed:-"nvidia-smi is not found; a container needs NVIDIA_DRIVER_CAPABILITIES=all"}
    echo "error: $node is there, but no GPU can be used (${why%%$'\n'*}); mend the driver," \
      "$ON_PROCESSOR" >&2
    exit 2
  done
  [ -z "$listed" ] || echo "note: no GPU is used: nvidia-smi says ${listed%%$'\n'*}" >&2
  echo cpu
}

# check_machine ROOT FLAVOUR PYTHON: says all that is wrong, and ends where it cannot be installed.
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
  if [ -n "$cuda" ]; then # a newer one than the driver's own may be installed beside it
    [ "$cuda" -lt "$CUDA_NEEDED" ] || return 0
  elif [[ ${driver%%.*} =~ ^[0-9]+$ ]]; then
    [ "${driver%%.*}" -lt "$DRIVER" ] || return 0
  else
    echo "note: the driver's version cannot be read; torch needs $DRIVER or newer" >&2
    return 0
  fi
  echo "error: driver ${driver:-unknown} runs CUDA ${cuda:-12} at most, and torch needs" \
    "$CUDA_NEEDED; install driver $DRIVER or newer, $ON_PROCESSOR" >&2
  return 1
}

# vLLM's kernels are compiled as it starts.
_check_compiler() {
  local found=0 version
  if [ -z "${CC:-}" ] && ! command -v gcc >/dev/null 2>&1 && ! command -v clang >/dev/null 2>&1; then
    echo "error: no C compiler, which vLLM needs as it starts; install gcc (Debian: apt install gcc)," \
      "$ON_PROCESSOR" >&2
    found=1
  fi
  if ! "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
    echo "error: no Python.h, which vLLM needs as it starts; install Python's headers (Debian: apt" \
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
    echo "note: /dev/shm has ${megabytes:-0} MB: Ray is slow then, and several GPUs for one model" \
      "fail; give it 8 GB (Docker: --shm-size=8g)" >&2
  fi
}

# Where nothing is installed yet.
_check_disk() {
  [ ! -x "$1/.venv/bin/python" ] || return 0
  local free
  free=$(df -Pm "$1" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000) }')
  if [ "${free:-$2}" -lt "$2" ]; then
    echo "error: $1 has $free GB of disk free, and the packages take $2 GB; make room" >&2
    return 1
  fi
}
