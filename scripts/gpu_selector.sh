#!/usr/bin/env bash
# Trains a selector on a GPU machine without network and leaves OUT/NAME.tar: the adapter, its metrics and pictures.
# Needs carry/ from scripts/build_carry.sh.
#
#   scripts/gpu_selector.sh OUT NAME [options of arr_coc.training.selector]
set -uo pipefail
out=$1 name=$2
shift 2
cd "$(dirname "$0")/.."
source scripts/gpu_env.sh
mkdir -p "$out"

python3 -m arr_coc.training.selector --out "$work/$name" "$@"
status=$?
tar -cf "$out/$name.tar" -C "$work" --exclude=checkpoints "$name"
exit $status
