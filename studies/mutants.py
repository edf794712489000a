"""Limits, locks and checks, each taken away in turn: does the test that names it notice?

    python -m studies.mutants                      # all of them, into results/mutants.json
    python -m studies.mutants --only "host,lock"   # those whose names hold one of these words
    python -m studies.mutants --whole              # five of five rooms, with all tests that `make test` runs

The tree is copied, pages are linked; in the copy one line is changed, its test is run there, and the line is put back.
A mutant is killed if the test fails, and survives if it passes. Libraries are imported once, and every test runs in a
fork of that process. With the whole suite a mutant is killed if tests fail, alone too, that pass once the line is back.

studies/mutants.json has a row for each: its name, the file of the package, the line and what it becomes, the test that
must fail (a file, and words for `-k` that begin with the test's name), and, where it would hang, after how many
seconds.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arr_coc.files import read_json_object, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "mutants.json"
COPIED = ("arr_coc", "arr_coc_scenes", "tests", "studies", "scripts", "space", "results", "pyproject.toml")
LEFT = (".pytest_cache", ".hypothesis", "__pycache__", "out")
LIBRARIES = ("torch", "transformers", "gradio", "hypothesis")
MOST_SECONDS = 240
PASSED, FAILED = 0, 1  # pytest's exit codes; any other says that nothing was tested
ROOMS = (
    *("pixels of an image", "lock of a run's folder", "size of a body", "a model is finite"),
    "tokens of a prompt",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of a file, and what it becomes; the test that must fail then, at the latest after so many seconds."""

    name: str
    file: str
    old: str
    new: str
    test: str
    seconds: int = MOST_SECONDS


MUTANTS = [Mutant(*row) for row in json.loads(Path(__file__).with_suffix(".json").read_text())]


def copy_tree(target: Path) -> None:
    """What is changed and run as copies, everything else as links."""
    leave = shutil.ignore_patterns("__pycache__", ".venv")
    for path in ROOT.iterdir():
        if path.name in LEFT:
            continue
        if path.name not in COPIED:
            (target / path.name).symlink_to(path)
        elif path.is_dir():
            shutil.copytree(path, target / path.name, ignore=leave)
        else:
            shutil.copy(path, target / path.name)


def run_test(tree: Path, test: str, seconds: int) -> int:
    """Exit code of the test in the tree, from a fork of this process; negative where nothing but a kill ended it."""
    file, _, words = test.partition("::")
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
        for loaded in [one for one in sys.modules if one.split(".")[0] in ("arr_coc", "studies")]:
            del sys.modules[loaded]
        import pytest

        options = ["-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", f"--timeout={seconds}"]
        code = pytest.main([*options, f"tests/{file}", "-k", words])
        os._exit(int(code))
    late = threading.Timer(2 * MOST_SECONDS, os.kill, (child, signal.SIGKILL))
    late.start()
    _, status = os.waitpid(child, 0)
    late.cancel()
    return os.waitstatus_to_exitcode(status)


def judge(tree: Path, mutant: Mutant) -> str:
    """Whether the mutant is killed or survives; what else it may be: stale, or without a test."""
    file = tree / "arr_coc" / mutant.file
    whole = file.read_text()
    if whole.count(mutant.old) != 1:
        return "stale"
    try:
        file.write_text(whole.replace(mutant.old, mutant.new))
        code = run_test(tree, mutant.test, mutant.seconds)
    finally:
        file.write_text(whole)
    return {PASSED: "survived", FAILED: "killed"}.get(code, f"not tested, pytest ended with {code}")


def suite() -> list[str]:
    """What `make test` gives to pytest, up to the first failure; without the test that finds every changed line."""
    call = re.search(r"python -m pytest (-n .*) \\$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert call is not None, "the Makefile has no tests in several processes"
    return [*shlex.split(call[1]), "-x", "--ignore=tests/test_mutants.py"]


def run_suite(tree: Path, options: Sequence[str]) -> list[str]:
    """The tests that fail in the tree, of those that the options name."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+?::\w+)", done.stdout, re.MULTILINE)
    if bool(failed) == (done.returncode == PASSED):  # a file that cannot be read, say: then nothing was tested
        raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return failed


def judge_whole(tree: Path, mutant: Mutant) -> dict[str, Any]:
    """The mutant among all tests: it is killed by those that fail with it, alone too, and pass without it.

    A test that fails for other reasons, such as a busy machine, is left out and the rest goes on.
    """
    file, began = tree / "arr_coc" / mutant.file, time.monotonic()
    whole = file.read_text()
    assert whole.count(mutant.old) == 1, f"{mutant.name}: stale"
    killers: list[str] = []
    left_out: list[str] = []
    failed: list[str] = [mutant.name]
    while failed and not killers:
        try:
            file.write_text(whole.replace(mutant.old, mutant.new))
            failed = run_suite(tree, [*suite(), *(f"--deselect={test}" for test in left_out)])
            again = run_suite(tree, sorted(set(failed))) if failed else []
        finally:
            file.write_text(whole)
        anyway = run_suite(tree, sorted(set(again))) if again else []
        killers = sorted(set(again) - set(anyway))
        left_out += sorted(set(failed) - set(killers))
    verdict = "killed" if killers else "survived"
    seconds = round(time.monotonic() - began)
    return {"verdict": verdict, "failed": killers, "left_out": left_out, "seconds": seconds}


def write_found(found: dict[str, Any], whole: dict[str, Any]) -> None:
    """What is known of the mutants that are listed."""
    listed = {one.name: found[one.name] for one in MUTANTS if one.name in found}
    killed = sum(one["verdict"] == "killed" for one in listed.values())
    summary = {"command": "python -m studies.mutants", "listed": len(MUTANTS), "run": len(listed), "killed": killed}
    of_all = {"command": "python -m studies.mutants --whole", "mutants": whole}
    write_json(RESULTS, {**summary, "mutants": listed, "whole": of_all})


def main() -> None:
    parser = argparse.ArgumentParser(description="Take limits away, and see whether tests notice.")
    parser.add_argument("--only", default="", help="words of names, with commas between")
    parser.add_argument("--whole", action="store_true", help=f"with all tests; without --only: {', '.join(ROOMS)}")
    asked = parser.parse_args()
    words = [word for word in asked.only.split(",") if word]
    for library in LIBRARIES:
        __import__(library)
    before = read_json_object(RESULTS)
    found, whole = before.get("mutants", {}), before.get("whole", {}).get("mutants", {})
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        for mutant in MUTANTS:
            if words and not any(word in mutant.name for word in words):
                continue
            if asked.whole and not words and mutant.name not in ROOMS:
                continue
            began = time.monotonic()
            if asked.whole:
                one = whole[mutant.name] = judge_whole(Path(folder), mutant)
            else:
                one = {"verdict": judge(Path(folder), mutant), "file": mutant.file, "test": mutant.test}
                found[mutant.name] = one
            print(f"{one['verdict']:>10}  {mutant.name}  {time.monotonic() - began:.0f} s", flush=True)
            write_found(found, whole)


if __name__ == "__main__":
    main()
