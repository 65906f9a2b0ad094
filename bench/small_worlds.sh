#!/usr/bin/env bash
# Trains a small world by its config, a run a seed, and evaluates the last version of each anew.
#   usage: bash bench/small_worlds.sh CONFIG FOLDER SEED [SEED ...] [-- any option of unstable train]
# What is done already is skipped. FOLDER/CONFIG-SEED.txt has the seconds of the whole command and
# GAMES (256) against each opponent, sampled and greedy, of seeds that the run never evaluated with.
# UNSTABLE is the command, .venv/bin/unstable by default.
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
