"""Known weaknesses of what is locked, where a database of them can be reached; `make audit` calls it.

    python -m studies.supply.audit AUDITOR

AUDITOR is a Python that has pip-audit. Ends with 0 if nothing is known, with 1 if something is, and with 0 and a line
that says so where there was nobody to ask; with `--strict` that is 2.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

from studies.supply.lock import LOCKS

NOT_REACHED = "not audited: no database of weaknesses can be reached from here; run `make audit` where there is one"


def audit(run: Callable[[list[str]], str]) -> tuple[int | None, str]:
    """(exit code, what to say) for all locked packages; None where nobody could be asked. `run`: arguments -> JSON.

    A package that the database does not know counts as not audited: an auditor that knows none has found nothing out.
    """
    lock = str(LOCKS / "test.txt")
    said = run(["--requirement", lock, "--require-hashes", "--disable-pip", "--format", "json", "--desc", "off"])
    try:
        packages = json.loads(said)["dependencies"]
    except (ValueError, KeyError, TypeError):
        packages = []
    known = [one for one in packages if "skip_reason" not in one]
    if not known:
        return None, NOT_REACHED
    found = [f"{one['name']} {one['version']}: {weak['id']}" for one in known for weak in one["vulns"]]
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    told = f"{len(known)} of {len(packages)} packages audited, {len(found)} known weaknesses"
    return int(bool(found)), "\n".join([*found, told, *([f"not known: {', '.join(unknown)}"] if unknown else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description="Audit what is locked.")
    parser.add_argument("auditor")
    parser.add_argument("--strict", action="store_true")
    chosen = parser.parse_args()

    def run(arguments: list[str]) -> str:
        return subprocess.run([chosen.auditor, "-m", "pip_audit", *arguments], capture_output=True, text=True).stdout

    code, said = audit(run)
    print(said)
    sys.exit(code if code is not None else 2 * chosen.strict)


if __name__ == "__main__":
    main()
