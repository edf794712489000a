#!/usr/bin/env bash
# What a selector's training is worth, measured on a GPU machine without network. Lanes run side by side, since one run
# alone does not fill a large GPU. Leaves OUT/study.tar, renewed every 30 s: a folder per lane with adapters, metrics,
# reports and log. Lanes stay in runs/lanes: the same command on the same machine goes on where it was stopped. Needs
# carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/study.sh OUT PERCENT LANE...     PERCENT of the usual number of steps: 1 tries the script out
#
#   whole     stages 1, 3 and 3 again as shipped, 255, 225 and 235 s of training
#   unread, narrow
#             the same without more tables and charts, and with a glance of 32 channels
#   seed-N    stage 1 with that seed, 800 steps, and what it finds in every world
#   few       the same with 13 texture channels and seed 1
#   rivals    the scorer on the ViT's output: three seeds, as many steps on the same scenes
#   sights    look, glance, stem and textures for equal steps
#   plain     stage 1 alone, short: what the strategies start from
#   score, straight_through, gumbel, reinforce
#             a gradient strategy of stage 2, for equal steps from the adapter in runs/plain
#   distil    from the model's own attention, without boxes
#   shape     20 steps of stages 1, with both targets, and 2 on random weights at the shape of Qwen3-VL-2B
#   evaluate  the shipped adapter, against the one in runs/stage1 and others in runs/
set -uo pipefail
out=$1 percent=$2
shift 2
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out" runs/lanes
workers=$(($(nproc) / ($# < 4 ? $# : 4)))
export OMP_NUM_THREADS=1

learn() { # MODULE NAME CONFIG STEPS [options]
    local steps=$(($4 * percent / 100))
    python3 -m "$1" --out "$folder/$2" --config "configs/$3.json" --steps $((steps > 2 ? steps : 2)) \
        --workers "$workers" "${@:5}"
}
worlds() { # NAME    no world is begun after 100 s
    python3 -m studies.selector.worlds --adapter "$folder/$1" --questions $((3 * percent)) --seconds 100 \
        --out "$folder/$1.json"
}
ship() { # [KEY=VALUE]    stages 1 and 3 with one setting changed
    local start=() seconds=(255 225 235) stages=(1 3 3)
    for turn in 0 1 2; do
        stage=${stages[turn]}
        python3 - "configs/selector-mini-$stage.json" "$@" > "$folder/config-$stage.json" << 'PY'
import json, sys
changed = {key: json.loads(value) for key, value in (pair.split("=") for pair in sys.argv[2:])}
print(json.dumps(json.load(open(sys.argv[1])) | changed, indent=2))
PY
        python3 -m studies.selector.train --out "$folder/$turn" --config "$folder/config-$stage.json" \
            --seconds $((seconds[turn] * percent / 100)) --workers "$workers" --seed $((stage + turn / 2)) "${start[@]}"
        start=(--init-from "$folder/$turn")
    done
}
trial() { # STAGE [options]
    python3 -m studies.selector.trial --config "configs/selector-2b-$1.json" --model shape:qwen3-vl-2b --steps 20 \
        --out "$folder/trial.json" "${@:2}"
}
run_lane() {
    case $lane in
        whole) ship ;;
        unread) ship reading_share=0.0 ;;
        narrow) ship glance_channels=32 ;;
        seed-*)
            learn studies.selector.train run selector-mini-1 800 --wide 0.65 --seed "${lane#seed-}"
            worlds run ;;
        few)
            learn studies.selector.train run selector-mini-1 800 --wide 0.65 --seed 1 --channels 13
            worlds run ;;
        rivals)
            for seed in 1 2 3; do
                learn studies.rival.train "$seed" selector-mini-1 800 --wide 0.65 --seed "$seed"
            done ;;
        plain) learn studies.selector.train plain selector-mini-plain 300 --seed 1 ;;
        sights)
            for sight in look glance stem textures; do
                learn studies.selector.train $sight selector-mini-1 300 --seed 1 --sight $sight
            done ;;
        score | straight_through | gumbel | reinforce)
            learn studies.selector.train "$lane" selector-mini-strategy 150 --strategy "$lane" --init-from runs/plain --seed 1 ;;
        distil) learn studies.selector.train distil selector-mini-distil 140 --seed 1 ;;
        shape)
            trial 1 --target boxes
            trial 1 --target attention
            trial 2 ;;
        evaluate)
            others=()
            for other in runs/*/; do others+=(--other "$(basename "$other")=$other"); done
            python3 -m studies.selector.main --questions $((40 * percent)) --out "$folder/selector.json" \
                --against runs/stage1 "${others[@]}" ;;
        *) echo "unknown lane $lane"; exit 2 ;;
    esac
}
gather() {
    tar -cf "$work/study.tar" -C runs/lanes --exclude=checkpoints --exclude='checkpoint.*' --exclude=pictures .
    mv "$work/study.tar" "$out/study.tar"
}
running=()
for lane in "$@"; do
    folder="runs/lanes/$lane"
    mkdir -p "$folder"
    run_lane >> "$folder/log" 2>&1 &
    running+=($!)
done
(while sleep 30; do gather; done) &
wait "${running[@]}"
kill $!
gather
tail -n 3 runs/lanes/*/log
