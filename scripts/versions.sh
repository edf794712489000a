#!/usr/bin/env bash
# versions.sh PYTHON BESIDE VERSIONS...: the equality suite on several versions of transformers ("newest": whatever is).
# Each has an environment of its own that sees the one of the tests, BESIDE, and differs from it in transformers alone.
# SUITE names other files of tests. Ends with 3 where a version cannot be installed, and says so in a line.
set -uo pipefail
cd "$(dirname "$0")/.."
python=$1 beside=$2
shift 2
suite=${SUITE:-tests/test_qwen_equality.py tests/test_qwen35.py tests/test_look_twice.py tests/test_dropin.py}
worst=0
for version in "$@"; do
    folder=.venv-transformers-$version
    wanted=transformers$([ "$version" = newest ] || echo "==$version")
    if [ ! -e "$folder/.made" ] || [ "$version" = newest ]; then
        test -x "$folder/bin/python" || "$python" -m venv "$folder" || exit 1
        site=$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')
        "$beside/bin/python" -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
            > "$site/beside.pth"
        # Into this environment whatever the other one has: it stands first where both have it.
        if ! said=$("$folder/bin/python" -m pip install --quiet --ignore-installed --no-deps "$wanted" 2>&1); then
            echo "make versions: $wanted cannot be installed here and is not tested: ${said%%$'\n'*}" >&2
            worst=3
            continue
        fi
        touch "$folder/.made"
    fi
    found=$("$folder/bin/python" -c 'import transformers; print(transformers.__version__)')
    echo "transformers $found: about 2 minutes on two quiet cores"
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=1 "$folder/bin/python" -m pytest -q -m "not soak" $suite || exit 1
done
exit $worst
