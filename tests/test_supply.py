"""What the project is built from: locks with hashes, the bill of materials, licences, and an honest audit."""

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from studies.supply import audit, lock, sbom

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINE = re.compile(r"([a-z0-9][a-z0-9.-]*)==(\S+) --hash=sha256:[0-9a-f]{64}")


def locked(name: str) -> dict[str, str]:
    """Name -> version, of a lock in which every line has its hash."""
    lines = (ROOT / "locks" / f"{name}.txt").read_text().splitlines()[1:]
    return dict(LINE.fullmatch(line).groups() for line in lines)


# ---------------------------------------------------------------- locks


def test_locks_hold_all_that_their_commands_need():
    ask, demo, test = locked("ask"), locked("demo"), locked("test")
    assert ask.items() < demo.items() < test.items()
    for text in PROJECT["dependencies"]:
        wanted = lock.Requirement(text)
        assert ask[wanted.name] in wanted.specifier or ask[wanted.name].split("+")[0] in wanted.specifier
    assert "gradio" in demo
    assert "gradio" not in ask
    assert {"pytest", "peft", "ruff", "openai"} <= test.keys()
    pinned = (ROOT / "constraints.txt").read_text().splitlines()[-1]
    assert f"torch=={ask['torch'].split('+')[0]}" == pinned


def test_no_lock_says_where_a_file_comes_from():
    for file in [*(ROOT / "locks").iterdir(), ROOT / "results" / "sbom.json"]:
        assert not re.search(r"https?://|file:", file.read_text())


def test_floors_of_what_had_weaknesses():
    """Older ones of these have holes that this project would be open to."""
    floors = {"torch": (2, 10), "pillow": (12, 3), "gradio": (6, 7), "starlette": (0, 49)}
    for name, floor in floors.items():
        version = tuple(int(part) for part in locked("demo")[name].split("+")[0].split(".")[:2])
        assert version >= floor, name


def item(name: str, version: str, *requires: str) -> dict:
    return {
        "metadata": {"name": name, "version": version, "requires_dist": list(requires)},
        "download_info": {"url": "secret", "archive_info": {"hashes": {"sha256": "ab" * 32}}},
    }


def test_a_lock_follows_requirements_extras_and_markers():
    report = {
        "install": [
            item("One", "1", "two[fast]>=1", "never; python_version < '3'", "dear; extra == 'dear'"),
            item("two", "2", "three; extra == 'fast'"),
            item("three", "3"),
            item("dear", "4"),
            {"metadata": {"name": "arr-coc", "version": "0"}, "download_info": {"dir_info": {}}},
        ]
    }
    known = lock.packages(report)
    assert known.keys() == {"one", "two", "three", "dear"}
    assert lock.closure(["one"], known) == ["one", "three", "two"]
    assert lock.closure(["one[dear]"], known) == ["dear", "one", "three", "two"]
    text = lock.lock_text(["one"], known)
    assert text.splitlines()[1] == f"one==1 --hash=sha256:{'ab' * 32}"
    assert text.startswith(f"# {lock.machine()};")
    with pytest.raises(ValueError, match="four is not in the report"):
        lock.closure(["four"], known)


@pytest.mark.parametrize(
    ("head", "pip", "code", "says"),
    [
        ("here", "exit 0", 0, ""),
        ("elsewhere", "exit 0", 0, "without hashes: locks/ask.txt is for elsewhere"),
        (
            "here",
            'case "$*" in *require-hashes*) echo "No matching distribution found" >&2; exit 1;; esac',
            0,
            "not all",
        ),
        ("here", 'case "$*" in *require-hashes*) echo "DO NOT MATCH THE HASHES" >&2; exit 1;; esac', 1, "DO NOT MATCH"),
    ],
    ids=["locked", "elsewhere", "not offered", "forged"],
)
def test_the_installer(tmp_path, head, pip, code, says):
    """With a Python that only says what it is asked: by the lock where that is for here, never past a wrong hash."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "locks").mkdir()
    (tmp_path / "scripts" / "install.sh").write_text((ROOT / "scripts" / "install.sh").read_text())
    (tmp_path / "locks" / "ask.txt").write_text(f"# {head}; written\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && {{ echo here; exit; }}\necho "$*" >> asked\n{pip}\n')
    python.chmod(0o755)
    done = subprocess.run(["bash", tmp_path / "scripts" / "install.sh", python, "ask"], capture_output=True, text=True)
    assert done.returncode == code
    assert says in done.stderr
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ("--require-hashes" in asked[0]) == (head == "here")
    if code == 0 and not says:
        assert asked[1:] == ["-m pip install --quiet --no-deps --no-build-isolation -e ."]


# ---------------------------------------------------------------- the bill of materials


def test_the_bill_lists_what_is_installed():
    made = sbom.bill()
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.5")
    assert made["metadata"]["component"]["name"] == "arr-coc"
    found = {one["name"]: one for one in made["components"]}
    assert {"torch", "transformers", "numpy", "pillow", "safetensors"} <= found.keys()
    assert "gradio" not in found
    assert "arr-coc" not in found
    for one in found.values():
        assert one["licenses"][0]["license"]["name"]
        assert one["purl"].startswith(f"pkg:pypi/{one['name']}@")
    assert made == sbom.bill()
    assert len(sbom.bill(["demo"])["components"]) > len(made["components"])


def test_the_committed_bill_is_that_of_the_lock():
    made = json.loads((ROOT / "results" / "sbom.json").read_text())
    listed = {one["name"]: one["version"] for one in made["components"]}
    demo = locked("demo")
    assert listed == {name: version for name, version in demo.items() if name in listed}
    assert demo.keys() - listed.keys() <= set(lock.TO_BUILD)
    assert all("hashes" in one for one in made["components"])


# ---------------------------------------------------------------- licences


PACKAGES = ("arr_coc", "arr_coc_scenes")


def test_every_file_of_the_packages_has_a_licence():
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "LICENCES.md").read_text(), re.M)
    patterns = [pattern.replace("**/", "*") for row in rows for pattern in re.findall("`([^`]+)`", row)]
    tracked = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True)
    files = tracked.stdout.split() or [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    missing = [file for file in files if not any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
    assert missing == []
    assert all(any(fnmatch.fnmatch(file, one) for file in files) for one in patterns if one.startswith("arr_coc"))


# ---------------------------------------------------------------- the audit


def test_the_audit_says_what_it_saw():
    asked = []
    good, weak = {"name": "a", "version": "1", "vulns": []}, {"name": "b", "version": "2", "vulns": [{"id": "X-1"}]}
    unknown = {"name": "c", "skip_reason": "not found"}

    def answering(*packages):
        return lambda arguments: asked.append(arguments) or json.dumps({"dependencies": packages})

    assert audit.audit(answering(good)) == (0, "1 of 1 packages audited, 0 known weaknesses")
    assert audit.audit(answering(good, unknown)) == (0, "1 of 2 packages audited, 0 known weaknesses\nnot known: c")
    assert audit.audit(answering(good, weak)) == (1, "b 2: X-1\n2 of 2 packages audited, 1 known weaknesses")
    assert audit.audit(answering(unknown, unknown)) == (None, audit.NOT_REACHED)  # what nobody knows is not safe
    for said in ("", "[]", "ConnectionError"):
        assert audit.audit(lambda arguments, said=said: said) == (None, audit.NOT_REACHED)
    assert all("--require-hashes" in arguments for arguments in asked)


def test_an_audit_with_nobody_to_ask_is_no_pass_in_silence(tmp_path):
    for strict, code in ([], 0), (["--strict"], 2):
        command = [sys.executable, "-m", "studies.supply.audit", "/bin/false", *strict]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, "not audited" in done.stdout) == (code, True)
