"""The contract, row by row: what must hold, the tests that hold it, and how many cases they tried.

A test is one case, unless it records how many it tried (`record_property("tried", 30)`). Two rows also count what a
program found that takes longer than tests may: `studies.page_load` and `studies.mutants`.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Held:
    """What holds, by which tests (arguments of pytest), and a program whose counts are added: its results and keys."""

    what: str
    tests: tuple[str, ...]
    program: str = ""
    counts: tuple[str, str, str] = ("", "", "")  # file of results, key of what was tried, key of what held


GATE = "tests/test_serving_gate.py"
FOLDERS, GUARD, SERVER = "tests/test_hostile_folders.py", "tests/test_demo_guard.py", "tests/test_demo_server.py"
LIMITS, SURFACE, KILLS = "tests/test_limits.py", "tests/test_surface.py", "tests/test_training_kills.py"
ROWS = {
    "T1": Held("special tokens in a user's text are text", ("tests/test_prompts.py",)),
    "T2": Held(
        "hostile images are taken within their memory or refused in one line", ("tests/test_hostile_images.py",)
    ),
    "T3": Held(
        "messages have no addresses, no paths, one line; rows of files that somebody changed are read or refused so",
        ("tests/test_bad_input.py", "tests/test_cli_misuse.py", "tests/test_hostile_rows.py"),
    ),
    "T4": Held("what is remembered of an image is known by all of its pixels", ("tests/test_look_twice.py",)),
    "T5": Held("images, pixels, prompt and answer are bounded", (LIMITS,)),
    "T6": Held(
        "any scores and any dial give a sound choice, or an error",
        ("tests/test_attending.py", "tests/test_failures.py"),
    ),
    "T7": Held(
        "what is the page's own is refused to others: by name, past the queue and in it; no endpoint takes tensors or "
        "code",
        (f"{GUARD} -k 'page or public or nobody_else'", f"{SERVER} -k 'page or public or nobody_else'"),
    ),
    "T8": Held(
        "no address is fetched, however it is written; the server fetches from public hosts that were named, and from "
        "no other, however it is led there",
        (f"{SURFACE} -k address", f"{GATE} -k 'fetched or no_image or looked_up or public or leads or inside'"),
    ),
    "T9": Held(
        "bodies over their size, that lie about it, or come slowly; lines that are held",
        (f"{GUARD} -k 'body or line'",),
        "python -m studies.page_load",
        ("page-load", "slow_bodies", "slow_bodies_cut_off"),
    ),
    "T10": Held("counts: the ninth image, a million beams", (LIMITS, "tests/test_box.py")),
    "T11": Held("weights are whole or refused by file and key", (FOLDERS, "tests/test_storage.py")),
    "T12": Held(
        "modules that open no pickle, run no text and start no shell; one socket, on this machine alone",
        (f"{SURFACE} -k code", f"{SERVER} -k serves_until"),
    ),
    "T13": Held(
        "nothing that names code reaches a loader; hosts that others reach need a password; names that lead here are "
        "not this machine",
        (FOLDERS, f"{GUARD} -k 'machine or limit'", "tests/test_demo.py -k password"),
    ),
    "T14": Held(
        "files of the server by path, images by path or address, uploads over their size, by client and in all",
        (f"{SERVER} -k 'file or image or too_much'", f"{GUARD} -k uploads"),
    ),
    "T15": Held("different images, one after the other, leave no memory behind", ("tests/test_memory.py",)),
    "T16": Held("answers of threads are those of one", (LIMITS, "tests/test_qwen_use.py")),
    "T17": Held(
        "all kept is the stock model bit for bit, dropping is masking, positions stay, a batch is its rows, a cache is "
        "none; with patches of 14 px too",
        ("tests/test_qwen_equality.py", "tests/test_patch14.py"),
    ),
    "T18": Held(
        "a method that is silently off, other prompts or missing answers end a comparison; the same run gives the same "
        "table; all methods answer as generate does",
        ("tests/test_field_eval.py -k 'silently or prompts or too_much or unbroken or table or alike or generate'",),
    ),
    "T19": Held(
        "turns of clients, nothing begins that nobody waits for, pages that are gone are forgotten; ends at INT, TERM "
        "and HUP without files left",
        (f"{GUARD} -k 'turns or waits or fills or gone'", f"{SERVER} -k ended", "tests/test_space.py"),
    ),
    "T20": Held(
        "runs killed with -9 (60, 30 or more of them inside a save), asked to end by TERM, HUP or INT (30); forged and "
        "damaged checkpoints (33); every command that writes, on full and read-only disks",
        (
            f"{KILLS} -m soak -k 'maps or answers or thirty'",
            f"{KILLS} -k 'forged or damaged'",
            "tests/test_full_disk.py",
        ),
    ),
    "T21": Held(
        "mutants of limits, locks and checks, each killed by the test that names it",
        (),
        "python -m studies.mutants",
        ("mutants", "listed", "killed"),
    ),
}


def measure_row(name: str) -> dict[str, Any]:
    """A row by its name: how many cases were tried, and how many held."""
    row = ROWS[name]
    counts = [run_tests(one) for one in row.tests]
    if row.program:
        file, tried, held = row.counts
        found = json.loads((ROOT / "results" / f"{file}.json").read_text())
        counts.append((found[tried] * found.get("loads", 1), found[held]))  # the page is loaded more than once
    tried, held = (sum(several) for several in zip(*counts, strict=True))
    commands = [*([row.program] if row.program else []), *(f"pytest {one}" for one in row.tests)]
    return {name: {"what": row.what, "tried": tried, "held": held, "command": "; ".join(commands)}}


@cache
def run_tests(chosen: str) -> tuple[int, int]:
    """How many cases the tests tried, and how many held."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        usual = [] if "-m " in chosen else ["-m", "not soak"]
        options = ["-q", *usual, "-p", "no:cacheprovider", f"--junitxml={report}", *shlex.split(chosen)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    assert cases, f"no test is chosen by {chosen}"
    weights = [int(told.get("value", "")) if (told := case.find(".//property")) is not None else 1 for case in cases]
    failed = [case.find("failure") is not None or case.find("error") is not None for case in cases]
    return sum(weights), sum(weight for weight, bad in zip(weights, failed, strict=True) if not bad)
