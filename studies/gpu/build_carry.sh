#!/usr/bin/env bash
# Gathers in carry/ (ignored by git) what a GPU machine without network lacks: the pinned transformers wheel
# and the fonts of the scenes. Usage: studies/gpu/build_carry.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-.venv/bin/python}

rm -rf carry
mkdir -p carry/fonts
"$python" -m pip download --quiet --no-deps --only-binary :all: --dest carry transformers==5.22.2 accelerate==1.15.0 peft==0.21.2 psutil
"$python" - <<'PY'
import shutil
from pathlib import Path

import matplotlib

from arr_coc_scenes.masks import FILES, PRACTICE_FILES

source = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
for name in (*FILES.values(), *PRACTICE_FILES.values(), "LICENSE_DEJAVU", "LICENSE_STIX"):
    shutil.copyfile(source / name, Path("carry/fonts") / name)
PY
du -sh carry
