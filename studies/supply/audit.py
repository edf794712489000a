"""Known weaknesses of what is locked, where a database of them can be reached; `make audit` calls it.

    python -m studies.supply.audit AUDITOR

AUDITOR is a Python that has pip-audit. Ends with 0 if nothing is known, with 1 if something is, and with 0 and a line
that says so where there was nobody to ask; with `--strict` that is 2.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable

from studies.supply.lock import LOCKS

NOT_REACHED = "not audited: no database of weaknesses can be reached from here; run `make audit` where there is one"


def audit(run: Callable[[list[str]], tuple[int, str]]) -> tuple[int | None, str]:
    """(exit code, what was said) for all locked packages; None where nobody could be asked. `run` takes arguments."""
    code, said = run(["--requirement", str(LOCKS / "test.txt"), "--require-hashes", "--disable-pip", "--desc", "off"])
    if code == 0 or "Found" in said:
        return code, said.strip()
    return None, NOT_REACHED


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit what is locked.")
    parser.add_argument("auditor")
    parser.add_argument("--strict", action="store_true")
    chosen = parser.parse_args()

    def run(arguments: list[str]) -> tuple[int, str]:
        done = subprocess.run([chosen.auditor, "-m", "pip_audit", *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    code, said = audit(run)
    print(said)
    sys.exit(code if code is not None else 2 * chosen.strict)


if __name__ == "__main__":
    main()
