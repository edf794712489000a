#!/usr/bin/env bash
# Trains a selector on a GPU machine without network and leaves OUT/NAME.tar: the adapter, its metrics and pictures.
# Needs carry/ from studies/gpu/build_carry.sh.
#
#   studies/gpu/selector.sh OUT NAME [options of studies.selector.train]
set -uo pipefail
out=$1 name=$2
shift 2
cd "$(dirname "$0")/../.."
source studies/gpu/env.sh
mkdir -p "$out"

python3 -m studies.selector.train --out "$work/$name" "$@"
status=$?
tar -cf "$out/$name.tar" -C "$work" --exclude=checkpoints "$name"
exit $status
