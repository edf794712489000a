#!/usr/bin/env bash
# Measures looking twice on a GPU machine without network and leaves in OUT: equality of the recorded path with the eager
# one on mini's questions, and speed-look-twice.json with the bench of each model. Rows are written as they are measured.
# Needs carry/ from studies/gpu/build_carry.sh, or transformers on Python's path.
#
#   [MODELS="shape:qwen3-vl-2b ..."] [QUESTIONS=100] studies/gpu/look_twice_speed.sh OUT [options of studies.speed.bench]
set -uo pipefail
out=$1
shift
cd "$(dirname "$0")/../.."
models=${MODELS:-shape:qwen3-vl-2b shape:qwen3-vl-4b shape:qwen3-vl-8b}
if [ -f carry/site.tar.xz ]; then source studies/gpu/env.sh; fi
unset PYTORCH_CUDA_ALLOC_CONF # graphs have their own pool, and peaks should be what a plain set-up has
mkdir -p "$out"

# Equality takes no times: both at once.
for selector in arr_coc look_twice; do
    timeout 60 python3 -m studies.speed.equality --questions "${QUESTIONS:-100}" --selector "$selector" \
        --out "$out/equality-$selector.json" > /dev/null &
done
wait
rows="--looks --break-even" # the break-even of the first model, and the rows of all
for model in $models; do
    timeout 110 python3 -m studies.speed.bench --model "$model" $rows --append --out "$out/speed-look-twice.json" \
        "$@" > /dev/null || echo "$model: cut off, or failed"
    rows="--looks"
done
test -s "$out/speed-look-twice.json"
