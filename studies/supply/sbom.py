"""What is installed, as a bill of materials: CycloneDX 1.5, from the metadata of the packages themselves.

python -m studies.supply.sbom --extra demo --out results/sbom.json
"""

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from studies.supply.lock import LOCKS

PROJECT = "arr-coc"
UNKNOWN = "not said"
MOST_WORDS = 60  # characters of a licence's name; some packages give its whole text


def installed(name: str, extras: Sequence[str]) -> dict[str, Distribution]:
    """Everything that a package and those extras of it need and that is here; what is absent was optional."""
    found: dict[str, Distribution] = {}
    waiting, seen = [(name, one) for one in ("", *extras)], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        try:
            about = distribution(one[0])
        except PackageNotFoundError:
            continue
        found[canonicalize_name(one[0])] = about
        for requirement in map(Requirement, about.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": one[1]}):
                waiting += [(canonicalize_name(requirement.name), extra) for extra in ("", *requirement.extras)]
    return found


def licence(about: Distribution) -> str:
    """As the package says it: an expression, else its classifiers, else its first words about it."""
    said = about.metadata
    if said["License-Expression"]:
        return str(said["License-Expression"])
    classes = [text.split(" :: ")[-1] for text in said.get_all("Classifier") or () if text.startswith("License ::")]
    words = str(said["License"] or "").strip().partition("\n")[0][:MOST_WORDS]
    return "; ".join(classes) or words or UNKNOWN


def hashes() -> dict[str, str]:
    """sha256 by `name==version`, as the lock of everything has them."""
    lines = (LOCKS / "test.txt").read_text().splitlines()
    return dict(line.split(" --hash=sha256:", 1) for line in lines if not line.startswith("#"))


def component(name: str, about: Distribution, known: dict[str, str]) -> dict[str, Any]:
    """One package of the bill; its hash where it is the version that is locked."""
    digest = known.get(f"{name}=={about.version}")
    return {
        "type": "library",
        "bom-ref": f"{name}=={about.version}",
        "name": name,
        "version": about.version,
        "purl": f"pkg:pypi/{name}@{about.version.replace('+', '%2B')}",
        "licenses": [{"license": {"name": licence(about)}}],
        **({"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {}),
    }


def bill(extras: Sequence[str] = ()) -> dict[str, Any]:
    """The bill of materials of this environment; the same environment gives the same bill."""
    found, known = installed(PROJECT, extras), hashes()
    own = found.pop(PROJECT)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "library", "name": PROJECT, "version": own.version}},
        "components": [component(name, found[name], known) for name in sorted(found)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the bill of materials.")
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.write_text(json.dumps(bill(chosen.extra), indent=1) + "\n")


if __name__ == "__main__":
    main()
