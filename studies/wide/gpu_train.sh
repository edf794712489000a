#!/usr/bin/env bash
# Trains mini on the wide world on a GPU machine without network and leaves weights, head, metrics and results in OUT
# (at most 7 files, each under 16 MiB). Needs carry/ from studies/wide/build_carry.sh.
#
#   [FROM=DIR] studies/wide/gpu_train.sh OUT SECONDS QUESTIONS EVALUATION_SECONDS [further options of the trainer]
#
# FROM holds the weights to start from (default: the shipped ones), and their dense head if there is one beside them.
# SECONDS is the time for training from its start, compilation included; starting takes about 30 s before it. Then
# QUESTIONS per split are asked, 0: none; no split is begun after EVALUATION_SECONDS. Weights are written to OUT every
# two minutes. They also stay in runs/wide/last, for a next run on the same machine.
set -uo pipefail
out=$1 seconds=$2 questions=$3 evaluation=$4
shift 4
cd "$(dirname "$0")/../.."
from=${FROM:-arr_coc/models/mini}
head=$from/dense_head.safetensors
if [ ! -f "$head" ]; then head=carry/last/dense_head.safetensors; fi
if [ ! -f "$head" ]; then head=configs/mini-6-head.safetensors; fi
source studies/wide/gpu_env.sh
mkdir -p "$out"

python3 -m studies.wide.start --source "$from" --out "$work/start" || exit 1
python3 -m studies.mini.train --out "$out" --checkpoints "$work/checkpoints" --assets "$work/start" \
    --init-from "$work/start" --head "$head" --seconds "$seconds" "$@"
status=$?

if ls "$out"/model-*.safetensors > /dev/null; then
    mkdir -p runs/wide/last "$work/model"
    cp "$out"/model* "$out"/dense_head.safetensors runs/wide/last/
    cp "$work"/start/*.json "$work"/start/*.jinja "$work/model/"
    cp "$out"/model* "$work/model/"
    if [ "$questions" -gt 0 ]; then
        python3 -m studies.wide.evaluate --model "$work/model" --questions "$questions" --seconds "$evaluation" \
            --out "$out/results.json" || status=$?
    fi
fi
exit $status
