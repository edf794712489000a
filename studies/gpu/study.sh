#!/usr/bin/env bash
# What a selector's training is worth, measured on a GPU machine without network. Lanes run side by side, since one run
# alone does not fill a large GPU. Leaves OUT/study.tar, renewed every 30 s: a folder per lane with adapters, metrics,
# reports and log. Needs carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/study.sh OUT PERCENT LANE...     PERCENT of the usual number of steps: 1 tries the script out
#
#   whole     stages 1, 3 and 3 again as shipped, 255, 225 and 235 s of training
#   unread, narrow
#             the same without more tables and charts, and with a glance of 32 channels
#   rival     the scorer on the ViT's output, for the steps of stages 1 and 3
#   sights    look, glance, stem and textures for equal steps
#   channels  13 and 40 texture channels for equal steps
#   plain     stage 1 alone, short: what the strategies start from
#   score, straight_through, gumbel, reinforce
#             a gradient strategy of stage 2, for equal steps from the adapter in runs/plain
#   distil    from the model's own attention, without boxes
#   shape     20 steps of stages 1 and 2 on random weights at the shape of Qwen3-VL-2B
#   evaluate  the shipped adapter, against the one in runs/stage1 and others in runs/
set -uo pipefail
out=$1 percent=$2
shift 2
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out" "$work/lanes"
workers=$(($(nproc) / ($# < 4 ? $# : 4)))
export OMP_NUM_THREADS=1

learn() { # MODULE NAME CONFIG STEPS [options]
    local steps=$(($4 * percent / 100))
    python3 -m "$1" --out "$folder/$2" --config "configs/$3.json" --steps $((steps > 2 ? steps : 2)) \
        --workers "$workers" "${@:5}"
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
run_lane() {
    case $lane in
        whole) ship ;;
        unread) ship reading_share=0.0 ;;
        narrow) ship glance_channels=32 ;;
        rival)
            learn studies.rival.train one selector-mini-1 916
            learn studies.rival.train three selector-mini-3 1100 --init-from "$folder/one" ;;
        plain) learn studies.selector.train plain selector-mini-plain 300 --seed 1 ;;
        sights)
            for sight in look glance stem textures; do
                learn studies.selector.train $sight selector-mini-1 300 --seed 1 --sight $sight
            done ;;
        channels)
            for count in 13 40; do
                learn studies.selector.train $count selector-mini-1 800 --seed 1 --wide 0.65 --channels $count
                python3 -m studies.selector.worlds --adapter "$folder/$count" --questions $((4 * percent)) \
                    --out "$folder/$count.json"
            done ;;
        score | straight_through | gumbel | reinforce)
            learn studies.selector.train "$lane" selector-mini-strategy 150 --strategy "$lane" --init-from runs/plain --seed 1 ;;
        distil) learn studies.selector.train distil selector-mini-distil 140 --seed 1 ;;
        shape)
            for stage in 1 2; do
                python3 -m studies.selector.trial --config "configs/selector-2b-$stage.json" \
                    --model shape:qwen3-vl-2b --steps 20 --out "$folder/trial.json"
            done ;;
        evaluate)
            others=()
            for other in runs/*/; do others+=(--other "$(basename "$other")=$other"); done
            python3 -m studies.selector.main --questions $((40 * percent)) --out "$folder/selector.json" \
                --against runs/stage1 "${others[@]}" ;;
        *) echo "unknown lane $lane"; exit 2 ;;
    esac
}
gather() {
    tar -cf "$out/study.tmp" -C "$work/lanes" --exclude=checkpoints --exclude='checkpoint.*' --exclude=pictures .
    mv "$out/study.tmp" "$out/study.tar"
}
running=()
for lane in "$@"; do
    folder="$work/lanes/$lane"
    mkdir -p "$folder"
    run_lane > "$folder/log" 2>&1 &
    running+=($!)
done
(while sleep 30; do gather; done) &
wait "${running[@]}"
kill $!
gather
tail -n 3 "$work"/lanes/*/log
