#!/usr/bin/env bash
# Trains a small world with its config, one run per seed, and evaluates each run's last version.
#   usage: bash bench/small_worlds.sh CONFIG FOLDER SEED [SEED ...] [-- any option of unstable train]
# Finished runs are skipped. FOLDER/CONFIG-SEED.txt has the seconds of the whole command and the scores
# over GAMES (256) per opponent, sampled and greedy, with seeds that the run's evaluations did not use.
# Environment: UNSTABLE, the command (.venv/bin/unstable).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
unstable=${UNSTABLE:-$here/.venv/bin/unstable}
config=$1 folder=$2
shift 2
seeds=()
while (($#)) && [[ $1 != -- ]]; do seeds+=("$1"); shift; done
(($#)) && shift
mkdir -p "$folder"
for seed in "${seeds[@]}"; do
    run=$folder/$config-$seed
    [[ -f $run.txt ]] && { cat "$run.txt"; continue; }
    rm -rf "$run"
    began=$SECONDS
    "$unstable" train --config "$config" --seed "$seed" --run_dir "$run" "$@" \
        >"$run.log" 2>&1
    {
        echo "$config, seed $seed: $((SECONDS - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
        for version in 0 ""; do
            "$unstable" eval "$run" ${version:+--version $version} --games "${GAMES:-256}" \
                --seed $((seed + 1000)) 2>/dev/null
        done
    } >"$run.part"
    mv "$run.part" "$run.txt"
    cat "$run.txt"
done
