"""Takes limits and checks away, one at a time, in a copy of the package: the tests that name each must fail.

`python tests/attacks/mutants.py [--out results/reliability.json]` prints each mutant with how many tests noticed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
# file of the package, what is there, what takes its place, and the tests that must notice
MUTANTS: list[tuple[str, str, str, str]] = [
    ("images/headers.py", "marker in JPEG_UNREAD or ", "", "test_box.py -k arithmetic"),
    (
        "images/headers.py",
        "scans > MOST_SCANS or scans * pixels > MOST_PASSED",
        "scans > MOST_SCANS",
        "test_hostile_images.py -k scans",
    ),
    ("images/headers.py", "scans > MOST_SCANS or ", "", "test_hostile_images.py -k pieces"),
    ("images/headers.py", "min(length + 4, MOST_CHUNK)", "length + 4", "test_box.py -k claims"),
    ("images/headers.py", " and length <= MOST_EXIF", "", "test_box.py -k claims"),
    ("images/headers.py", "min(length + length % 2, MOST_CHUNK)", "length + length % 2", "test_box.py -k claims"),
    ("images/headers.py", "self.is_lossless_webp or is_packed", "is_packed", "test_box.py -k what_is_boxed"),
    (
        "images/headers.py",
        "self.is_lossless_webp or is_packed",
        "self.is_lossless_webp",
        "test_box.py -k what_is_boxed",
    ),
    ("images/headers.py", "width * height > MOST_PIXELS", "False", "test_bad_input.py -k cannot_be_used"),
    ("images/decoding.py", " or pixels > MOST_TWICE", "", "test_bad_input.py -k makes_cheap"),
    ("images/reader.py", "if size > MOST_BYTES:", "if False:", "test_hostile_images.py -k texts"),
    ("images/reader.py", "* WEBP_COST > MOST_PIXELS * MOST_COST", "< 0", "test_webp.py -k larger_one"),
    ("images/reader.py", "> MOST_PIXELS_IN_ALL", "< 0", "test_box.py -k together"),
    ("images/reader.py", "1 <= len(several) <= MOST_IMAGES", "several", "test_bad_input.py -k cannot_be_used"),
    (
        "images/worker.py",
        "resource.setrlimit(resource.RLIMIT_AS",
        "print(resource.RLIMIT_AS",
        "test_box.py -k memory_ends",
    ),
    ("images/worker.py", "signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)", "pass", "test_box.py -k cpu_time"),
    ("images/box.py", "threading.Timer(DEADLINE", "threading.Timer(100", "test_box.py -k never_answers"),
    ("images/box.py", "timeout=PATIENCE", "timeout=20", "test_box.py -k no_more_than --timeout=15"),
    ("images/box.py", "after_in_child=BOX.__init__", "after_in_child=BOX._idle.copy", "test_box.py -k child"),
    ("records.py", "            with lock:\n", "            if True:\n", "test_limits.py -k tables"),
    ("records.py", "        return found\n", "        return kept[key]\n", "test_limits.py -k tables"),
    ("qwen/looking.py", "self.strict or self.raises", "self.strict", "test_limits.py -k fallback"),
    ("qwen/looking.py", "        fallbacks[reason] += 1\n", "        pass\n", "test_limits.py -k fallback"),
    ("qwen/request.py", "is_number and least <= value <= most", "is_number", "test_limits.py -k nobody_means"),
    (
        "qwen/processor.py",
        "min(MOST_WORDS, processor.tokenizer.model_max_length)",
        "10**9",
        "test_limits.py -k too_many_tokens",
    ),
    (
        "qwen/processor.py",
        "        if time.monotonic() > end:\n",
        "        if False:\n",
        "test_hostile_folders.py -k answers_as_before --timeout=60",
    ),
    ("qwen/processor.py", "if not is_whole or", "if", "test_hostile_folders.py -k template"),
    ("qwen/storage.py", "if length > MOST_HEADER:", "if False:", "test_hostile_folders.py -k header"),
    ("qwen/storage.py", "if len(made) < len(pairs):", "if False:", "test_hostile_folders.py -k twice"),
    ("qwen/storage.py", "if dtype not in FLOATS:", "if False:", "test_hostile_folders.py -k numbers"),
    ("qwen/storage.py", "    check_finite(path.name, found)\n", "", "test_storage.py -k damaged_adapter"),
    (
        "qwen/loading.py",
        "    check_finite(_shown(base), dict(model.named_parameters()))\n",
        "",
        "test_hostile_folders.py -k NaN",
    ),
    (
        "qwen/loading.py",
        "        if shapes:\n            _check_sizes(config, shapes)\n",
        "",
        "test_hostile_folders.py -k before_anything",
    ),
    ("qwen/loading.py", "if name not in CODE and", "if", "test_hostile_folders.py -k names_code"),
    ("qwen/loading.py", "if Path(name).name != name:", "if False:", "test_hostile_folders.py -k index"),
    (
        "qwen/adapting.py",
        "if rank > max(ranks, default=0):",
        "if False:",
        "test_hostile_folders.py -k rank --timeout=60",
    ),
]


def noticed(mutant: tuple[str, str, str, str], home: Path) -> int:
    """How many tests fail once the text is changed."""
    name, old, new, tests = mutant
    path = home / "arr_coc" / name
    before = path.read_text()
    assert before.count(old) == 1, f"{name}: {old!r} is there {before.count(old)} times"
    path.write_text(before.replace(old, new))
    try:
        file, *options = tests.split()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not soak",
            "-p",
            "no:cacheprovider",
            f"tests/{file}",
            *options,
        ]
        environment = os.environ | {"PYTHONPATH": str(home), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode == 1 and (failed := re.findall(r"(\d+) (?:failed|error)", done.stdout[-500:])):
            return sum(map(int, failed))
        return int(done.returncode not in (0, 4, 5) or "Timeout" in done.stdout + done.stderr)
    finally:
        path.write_text(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reliability.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        for name in ("arr_coc", "tests", "studies", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, home / name)
        counts = []
        for mutant in MUTANTS:
            counts.append(noticed(mutant, home))
            print(f"{counts[-1]:3} {mutant[0]}: {mutant[1].strip()[:60]} -> {mutant[2].strip()[:20]!r}", flush=True)
    results = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    results["mutants"] = {"tried": len(counts), "held": sum(count > 0 for count in counts)}
    asked.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
