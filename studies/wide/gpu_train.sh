#!/usr/bin/env bash
# Trains mini on the wide world on a GPU machine without network and leaves weights, head, metrics and results in OUT
# (at most 7 files, each under 16 MiB). Needs carry/ from studies/gpu/build_carry.sh.
#
#   [FROM=DIR] studies/wide/gpu_train.sh OUT SECONDS QUESTIONS EVALUATION_SECONDS [further options of the trainer]
#
# FROM holds the weights to start from (default: the shipped ones), and their dense head if there is one beside them;
# FROM=nothing: fresh weights and a fresh head, with the wide words. SECONDS, a whole number, is the time for training
# from its start, compilation included; starting takes about 30 s before it. Then QUESTIONS per split are asked, 0: none;
# no split is begun after EVALUATION_SECONDS. Weights are written to OUT when training ends; it is stopped where it takes a
# minute more. They also stay in runs/wide/last, for a next run on the same machine.
set -uo pipefail
out=$1 seconds=$2 questions=$3 evaluation=$4
shift 4
cd "$(dirname "$0")/../.."
from=${FROM:-arr_coc/models/mini}
head=$from/dense_head.safetensors
if [ ! -f "$head" ]; then head=carry/last/dense_head.safetensors; fi
if [ ! -f "$head" ]; then head=configs/mini-head.safetensors; fi
source studies/gpu/env.sh
mkdir -p "$out"
begin=(--init-from "$work/start" --head "$head")
if [ "$from" = nothing ]; then from=arr_coc/models/mini begin=(); fi # its tokenizer alone

python3 -m studies.wide.start --source "$from" --out "$work/start" || exit 1
timeout $((seconds + 60)) python3 -m studies.mini.train --out "$work/model" --checkpoints "$work/checkpoints" \
    --assets "$work/start" "${begin[@]}" --seconds "$seconds" "$@"
status=$?

# The model's folder holds tokenizer and settings too: OUT gets what training made.
cp "$work/model/metrics.jsonl" "$out/"
if ls "$work"/model/model-*.safetensors > /dev/null; then
    mkdir -p runs/wide/last
    cp "$work"/model/model* "$work/model/dense_head.safetensors" "$out/"
    cp "$work"/model/model* "$work/model/dense_head.safetensors" runs/wide/last/
    if [ "$questions" -gt 0 ]; then
        python3 -m studies.wide.evaluate --model "$work/model" --questions "$questions" --seconds "$evaluation" \
            --out "$out/results.json" || status=$?
    fi
fi
exit $status
