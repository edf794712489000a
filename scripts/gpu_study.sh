#!/usr/bin/env bash
# What a selector's training is worth, measured on a GPU machine without network: leaves OUT/study.tar with every
# adapter and its metrics, and OUT/trial.json. Needs carry/ from scripts/build_carry.sh.
#
#   scripts/gpu_study.sh OUT SECONDS PART...
#
# PARTs, in the order given: main (stage 1), hard (stage 3 from main), stem, textures, distil (SECONDS each), and
# shape (20 steps of stages 1 and 2 on random weights at the shape of Qwen3-VL-2B).
set -uo pipefail
out=$1 seconds=$2
shift 2
cd "$(dirname "$0")/.."
source scripts/gpu_env.sh
mkdir -p "$out" "$work/study"

train() { # NAME CONFIG [options]
    python3 -m arr_coc.training.selector --out "$work/study/$1" --config "configs/$2.json" --seconds "$seconds" "${@:3}"
}
for part in "$@"; do
    case $part in
        main) train main selector-mini-1 --seed 1 ;;
        hard) train hard selector-mini-3 --init-from "$work/study/main" --seed 3 ;;
        stem) train stem selector-mini-stem --seed 1 ;;
        textures) train textures selector-mini-textures --seed 1 ;;
        distil) train distil selector-mini-distil --seed 1 ;;
        shape)
            for stage in 1 2; do
                python3 -m arr_coc.training.trial --config "configs/selector-2b-$stage.json" --model shape:qwen3-vl-2b \
                    --steps 20 --out "$out/trial.json"
            done ;;
        *) echo "unknown part $part" ; exit 2 ;;
    esac
    tar -cf "$out/study.tar" -C "$work" --exclude=checkpoints study
done
