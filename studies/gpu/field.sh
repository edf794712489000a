#!/usr/bin/env bash
# Answers of the field on a GPU machine without network, by several processes. Leaves OUT/field.tar.xz with PARTS for
#   studies/gpu/field_parallel.py sum PARTS --times ALONE/field.json
# Times come from a run of one process by itself, studies.rival.evaluate, on whatever machine is to be spoken of.
# Needs carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/field.sh OUT SECONDS WORKERS FIRST SELECTOR...
#
# At most SECONDS for the answers: unfinished methods are left out. FIRST numbers the parts, to add to those of another run.
set -uo pipefail
out=$1 seconds=$2 workers=$3 first=$4
shift 4
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
export OMP_NUM_THREADS=1
mkdir -p "$out" "$work/parts"

answer() { # SIDE QUESTIONS
    timeout -k 3 "$seconds" python3 -m studies.gpu.field_parallel run "$work/parts" --side "$1" --questions "$2" \
        --workers "$workers" --cells 131072 --first "$first" --selectors "${@:3}" >> "$work/log" 2>&1
}
answer 512 4000 "$@" &
answer 1024 1000 "$@" &
wait
grep " s  " "$work/log"
tar -C "$work" -cf - parts log | xz -T8 -1 > "$out/field.tar.xz"
