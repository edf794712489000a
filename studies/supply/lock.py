"""Locks with hashes, from pip's own report of what it would install here.

    python -m venv out/fresh
    out/fresh/bin/python -m pip install --dry-run --ignore-installed --report out/report.json \\
        -c constraints.txt ".[train,demo,dev]" setuptools pip
    python -m studies.supply.lock out/report.json

writes `locks/ask.txt`, `locks/demo.txt` and `locks/test.txt`: all that each command needs, for the machine that the
report was made on. `scripts/install.sh` installs from them where it can.
"""

import argparse
import json
import platform
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "locks"
EXTRAS: dict[str, tuple[str, ...]] = {"ask": (), "demo": ("demo",), "test": ("train", "demo", "dev")}
TO_BUILD = ("setuptools", "pip")  # the project itself is put in place with these


def machine() -> str:
    """What a lock is for: wheels differ by system, processor and Python."""
    version = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.system()} {platform.machine()} Python {version}"


def packages(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> version, sha256 and requirements of everything in pip's report but the project itself."""
    found: dict[str, dict[str, Any]] = {}
    for item in report["install"]:
        about, archive = item["metadata"], item["download_info"].get("archive_info")
        if archive is None:  # a folder: the project
            continue
        found[canonicalize_name(about["name"])] = {
            "version": about["version"],
            "sha256": archive["hashes"]["sha256"],
            "requires": about.get("requires_dist", []),
        }
    return found


def closure(wanted: Iterable[str], known: dict[str, dict[str, Any]]) -> list[str]:
    """Names of all packages that these requirements lead to on this machine, in order of the alphabet."""
    reached: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name not in known:
            raise ValueError(f"{name} is not in the report: make it with all extras, as {__name__} says")
        for one in ("", *requirement.extras):
            if (name, one) not in reached:
                reached.add((name, one))
                waiting += [(Requirement(text), one) for text in known[name]["requires"]]
    return sorted({name for name, _ in reached})


def lock_text(names: Iterable[str], known: dict[str, dict[str, Any]]) -> str:
    lines = [f"{name}=={known[name]['version']} --hash=sha256:{known[name]['sha256']}" for name in names]
    return "\n".join([f"# {machine()}; written by studies/supply/lock.py", *lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the locks.")
    parser.add_argument("report", type=Path)
    known = packages(json.loads(parser.parse_args().report.read_text()))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for command, extras in EXTRAS.items():
        wanted = [*project["dependencies"], *TO_BUILD]
        wanted += [text for extra in extras for text in project["optional-dependencies"][extra]]
        names = closure(wanted, known)
        (LOCKS / f"{command}.txt").write_text(lock_text(names, known))
        print(f"locks/{command}.txt: {len(names)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
