#!/usr/bin/env bash
# install.sh PYTHON LOCK EXTRAS: the project into PYTHON's environment, with what it needs from locks/LOCK.txt, whose
# hashes are checked. Elsewhere than where the lock was made, constraints.txt has the say, and that is told.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 lock=locks/$2.txt extras=${3:+[$3]}
here=$("$python" -c 'import platform as p; print(p.system(), p.machine(), "Python", ".".join(p.python_version_tuple()[:2]))')
locked=$(sed -n '1s/^# \(.*\);.*/\1/p' "$lock")
said=$(mktemp)
trap 'rm -f "$said"' EXIT
if [ "${LOCK:-yes}" = yes ] && [ "$here" = "$locked" ]; then
    # Python compiles what is imported when it is imported, which is a small part of all this.
    if "$python" -m pip install --quiet --no-compile --require-hashes --no-deps -r "$lock" 2> "$said"; then
        PYTHONWARNINGS=ignore exec "$python" -m pip install --quiet --no-deps --no-build-isolation -e ".$extras"
    fi
    cat "$said" >&2
    # A file that is another than the lock says ends here. One that is not offered (the CPU build of torch, say) does not.
    grep -q "No matching distribution found" "$said" || exit 1
    why="not all of $lock is offered here"
else
    why="$lock is for $locked, this is $here"
fi
echo "installing by constraints.txt, without hashes: $why" >&2
"$python" -m pip install --quiet --upgrade pip
exec "$python" -m pip install --quiet --no-compile -c constraints.txt -e ".$extras"
