#!/usr/bin/env bash
# The plain server with and without batches at the shape of Qwen3-VL-2B, measured on a GPU machine without network; leaves
# OUT/serving-gpu.json. Needs carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/serving.sh OUT [options of studies.serving_load]
set -uo pipefail
out=$1
shift
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out"
export TMPDIR=/dev/shm # the model's 4 GB are written there once and read by every server
python3 -m studies.serving_load --shape qwen3-vl-2b --clients 32 --batch 16 --out "$out/serving-gpu.json" "$@"
