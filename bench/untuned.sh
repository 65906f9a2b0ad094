#!/usr/bin/env bash
# Trains small worlds of OpenSpiel games without tuned settings, one run per seed, with bench/untuned.yaml.
#   usage: bash bench/untuned.sh FOLDER SEED [SEED ...] [-- any option of unstable train]
# Finished steps are skipped. FOLDER/GAME.world.txt has the world's results, FOLDER/GAME-SEED.txt the seconds of a run and
# its exact exploitability. Environment: WORLDS, a selection; STEPS of the worlds; UNSTABLE, the command.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
unstable=${UNSTABLE:-$here/.venv/bin/unstable}
folder=$1
shift
seeds=()
while (($#)) && [[ $1 != -- ]]; do seeds+=("$1"); shift; done
(($#)) && shift

declare -A env=(
    [kuhn3]='kuhn_poker(players=3)'
    [goofspiel4]='goofspiel(num_cards=4,imp_info=True,points_order=descending)'
    [goofspiel5]='goofspiel(num_cards=5,imp_info=True,points_order=descending)'
    [liars_dice6]='liars_dice(numdice=1,dice_sides=6)'
    [dark_hex2]='dark_hex(num_rows=2,num_cols=2)'
    [liars_dice4]='liars_dice(numdice=1,dice_sides=4)'
    [connect_four]='connect_four(rows=4,columns=4,x_in_row=3)'
)
declare -A seats=([kuhn3]=3)
mkdir -p "$folder"
for game in ${WORLDS:-kuhn3 goofspiel4 goofspiel5 liars_dice6 dark_hex2 connect_four}; do
    options=(--games.0.env "open_spiel:${env[$game]}" --games.0.seats "${seats[$game]:-2}")
    options+=(--games.0.prompt compact)
    if [[ ! -f $folder/$game.world.txt ]]; then
        rm -rf "${folder:?}/$game"
        began=$SECONDS
        "$unstable" world "${options[@]}" --world.steps "${STEPS:-1500}" --world.out "$folder/$game" \
            >"$folder/$game.log" 2>&1
        {
            echo "$game: $((SECONDS - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
            grep -E "^legal answers|against random" "$folder/$game.log"
        } >"$folder/$game.world.txt"
        cat "$folder/$game.world.txt"
    fi
    for seed in "${seeds[@]}"; do
        run=$folder/$game-$seed
        [[ -f $run.txt ]] && { cat "$run.txt"; continue; }
        rm -rf "$run"
        began=$SECONDS
        "$unstable" train --config "$here/bench/untuned.yaml" --model.name "$folder/$game" \
            "${options[@]}" --seed "$seed" --run_dir "$run" "$@" >"$run.log" 2>&1
        {
            echo "$game, seed $seed: $((SECONDS - began)) s, load $(cut -d' ' -f1-3 /proc/loadavg)"
            grep "^exploitability of" "$run.log"
        } >"$run.part"
        mv "$run.part" "$run.txt"
        cat "$run.txt"
    done
done
