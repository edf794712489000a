#!/usr/bin/env bash
# Measures the fast path on a GPU machine without network and leaves in OUT: equality with the plain path on mini's
# questions, the bench of the Qwen3-VL-2B shape, and 1,000 asks in a row. Rows are written as they are measured.
# Needs carry/ from studies/gpu/build_carry.sh. Further arguments go to the bench.
#
#   studies/gpu/bench.sh OUT [options of studies.speed.bench]
set -uo pipefail
out=$1
shift
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
unset PYTORCH_CUDA_ALLOC_CONF  # graphs have their own pool, and peaks should be what a plain set-up has
mkdir -p "$out"

status=0
timeout 60 python3 -m studies.speed.equality --questions 100 --out "$out/fast-equality.json" || status=$?
timeout 120 python3 -m studies.speed.bench --model shape:qwen3-vl-2b --promised --fit \
    --out "$out/speed-gpu.json" "$@" > "$out/speed-gpu.stdout" || status=$?
timeout 50 python3 -m studies.speed.ask --side 1024 --repeats 5 --soak 1000 --out "$out/speed-gpu-ask.json" \
    > "$out/speed-gpu-ask.stdout" || status=$?
exit $status
