#!/usr/bin/env bash
# Gathers in carry/ (ignored by git) what a GPU machine without network lacks, in about 18 MB: the pinned transformers and
# what training and serving need, packed small; the fonts of the scenes; fonts and photographs of the wide world.
#
#   studies/gpu/build_carry.sh [PHOTOS SPLIT]
#
# PHOTOS is a folder of photographs for grounds, SPLIT the JSON file that names those of training; without: no photographs.
# Whatever else is in carry/ (weights and head to go on from) is kept. PYTHON names an interpreter, .venv's unless set.
set -euo pipefail
cd "$(dirname "$0")/../.."
photos=${1:-} split=${2:-} python=${PYTHON:-.venv/bin/python}

wheels=$(mktemp -d)
rm -rf carry/fonts carry/wide carry/site.tar.xz
mkdir -p carry/fonts "$wheels/site"
"$python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --dest "$wheels" \
    transformers==5.22.2 accelerate==1.15.0 peft==0.21.2 psutil typer rich shellingham markdown-it-py mdurl pygments \
    fastapi starlette uvicorn h11 click python-multipart annotated-doc anyio httpx httpcore certifi idna
"$python" -m pip download --quiet --only-binary :all: --python-version 3.12 --dest "$wheels" pydantic
for wheel in "$wheels"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$wheels/site"
done
XZ_OPT=-9e tar -C "$wheels/site" -cJf carry/site.tar.xz .
rm -rf "$wheels"
"$python" - <<'PY'
import shutil
from pathlib import Path

import matplotlib

from arr_coc_scenes.masks import FILES
from studies.mini.styles import PRACTICE_FILES

source = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
for name in (*FILES.values(), *PRACTICE_FILES.values(), "LICENSE_DEJAVU", "LICENSE_STIX"):
    shutil.copyfile(source / name, Path("carry/fonts") / name)
PY
"$python" -m studies.wide.collect --out carry/wide ${photos:+--photos "$photos" --split "$split"}
du -sh carry
