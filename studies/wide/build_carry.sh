#!/usr/bin/env bash
# Gathers in carry/ (ignored by git) what a GPU machine without network lacks, in about 13 MB: transformers as it is
# pinned, packed small; the fonts of the scenes; fonts and photographs of the wide world.
#
#   studies/wide/build_carry.sh PHOTOS SPLIT [PYTHON]
#
# PHOTOS is a folder of photographs for grounds, SPLIT the JSON file that names those of training; "" "": none.
# A folder carry/last (weights and head to go on from) is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
photos=$1 split=$2 python=${3:-.venv/bin/python}

wheels=$(mktemp -d)
rm -rf carry/fonts carry/wide carry/site.tar.xz
mkdir -p carry/fonts "$wheels/site"
"$python" -m pip download --quiet --no-deps --only-binary :all: --python-version 3.12 --dest "$wheels" \
    transformers==5.22.2 psutil
for wheel in "$wheels"/*.whl; do
    "$python" -m zipfile -e "$wheel" "$wheels/site"
done
XZ_OPT=-9e tar -C "$wheels/site" -cJf carry/site.tar.xz .
rm -rf "$wheels"
"$python" - <<'PY'
import shutil
from pathlib import Path

import matplotlib

from arr_coc_scenes.masks import FILES, PRACTICE_FILES

source = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
for name in (*FILES.values(), *PRACTICE_FILES.values(), "LICENSE_DEJAVU", "LICENSE_STIX"):
    shutil.copyfile(source / name, Path("carry/fonts") / name)
PY
"$python" -m studies.wide.collect --out carry/wide ${photos:+--photos "$photos" --split "$split"}
du -sh carry
