#!/usr/bin/env bash
# Trains mini on a GPU machine without network and leaves weights, metrics and results in OUT (at most 7 files,
# each under 16 MiB). Needs carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/train.sh OUT SECONDS QUESTIONS [further options of studies.mini.train]
#
# SECONDS is the time for training from its start, compilation included. QUESTIONS per split are asked at the end,
# 0: none. Start-up takes about 20 s, the evaluation of 4,000 questions about 60 s: leave room for both. Weights are
# written to OUT every two minutes, so a run that is cut short loses little.
set -uo pipefail
out=$1 seconds=$2 questions=$3
shift 3
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out" "$work/model"

python3 -m studies.mini.train --out "$out" --checkpoints "$work/checkpoints" --seconds "$seconds" "$@"
status=$?

if [ "$questions" -gt 0 ] && ls "$out"/model-*.safetensors > /dev/null; then
    cp arr_coc/models/mini/*.json arr_coc/models/mini/*.jinja "$work/model/"
    cp "$out"/model* "$work/model/"
    python3 -m studies.mini.evaluation --model "$work/model" --questions "$questions" --out "$out/results.json" \
        --quiet || status=$?
fi
exit $status
