#!/usr/bin/env bash
# The whole field on a GPU machine without network: every method over the test questions by several processes, then each
# method again alone over a few questions, for its times. Leaves OUT/field.tar.xz with PARTS and ALONE for
#   scripts/field_parallel.py sum PARTS --times ALONE/field.json
# Needs carry/ from scripts/build_carry.sh, and the rival's weights in runs/rival (scripts/gpu_study.sh OUT 100 rival).
#
#   scripts/gpu_field.sh OUT SECONDS     at most SECONDS for the answers; unfinished methods are left out
set -uo pipefail
out=$1 seconds=$2
cd "$(dirname "$0")/.."
source scripts/gpu_env.sh
export OMP_NUM_THREADS=1
mkdir -p "$out" "$work/parts" "$work/alone"
rivals="rival:path=runs/rival rival:path=runs/rival,diversity=0.5"
rest="arr_coc oracle plain training_free divprune cdpruner mmtok visionzip pooling downsampling even_grid"
rest="$rest random:seed=0 random:seed=1 random:seed=2"

answer() { # SIDE QUESTIONS WORKERS FIRST SELECTOR...
    timeout -k 3 "$seconds" python3 scripts/field_parallel.py run "$work/parts" --side "$1" --questions "$2" \
        --workers "$3" --cells 131072 --first "$4" --selectors "${@:5}" >> "$work/log" 2>&1
}
answer 512 4000 5 0 $rivals $rest &
answer 1024 1000 5 0 $rivals $rest &
(answer 512 4000 2 40 fastv; answer 1024 1000 2 40 fastv) &
wait
grep " s  " "$work/log"
for side in 512 1024; do # in one process, nothing else on the machine
    timeout 60 python3 - "$side" "$work/alone/field.json" $rivals $rest fastv << 'PY'
import sys
from pathlib import Path

from arr_coc.evaluation.field import FieldOptions, evaluate_field

side, out, selectors = int(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:])
evaluate_field(FieldOptions(selectors=selectors, sides=(side,), questions=96 * 512 // side, out=out), print)
PY
done
tar -C "$work" -cf - parts alone log | xz -T8 -1 > "$out/field.tar.xz"
