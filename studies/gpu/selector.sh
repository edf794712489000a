#!/usr/bin/env bash
# Trains a selector on a GPU machine without network and leaves OUT/NAME.tar: the adapter, its metrics and, while it runs,
# the newest checkpoint, renewed every minute; and OUT/NAME.json, how much of the evidence it finds in each world. Needs
# carry/ from studies/gpu/build_carry.sh.
#
#   [QUESTIONS=400] [EVALUATION=90] studies/gpu/selector.sh OUT NAME [options of studies.selector.train]
#
# QUESTIONS of each world are asked when training has ended, 0: none; no world is begun after EVALUATION seconds. The run
# stays in runs/NAME: the same command on the same machine goes on from its newest checkpoint.
set -uo pipefail
out=$1 name=$2
shift 2
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out" runs

gather() { # a file that is being renewed is never half there
    tar -cf "$work/$name.tar" -C runs --exclude=pictures "$@" "$name" && mv "$work/$name.tar" "$out/$name.tar"
}
(while sleep 60; do gather; done) &
gathering=$!
python3 -m studies.selector.train --out "runs/$name" "$@"
status=$?
kill $gathering
gather --exclude=checkpoints
if [ "${QUESTIONS:-400}" -gt 0 ] && [ -f "runs/$name/arr_coc.safetensors" ]; then
    python3 -m studies.selector.worlds --adapter "runs/$name" --questions "${QUESTIONS:-400}" \
        --seconds "${EVALUATION:-90}" --out "$out/$name.json" || status=$?
fi
exit $status
