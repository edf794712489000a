#!/usr/bin/env bash
# Moved: what a GPU machine without network lacks is gathered by studies/gpu/build_carry.sh.
exec "$(dirname "$0")/../studies/gpu/build_carry.sh" "$@"
