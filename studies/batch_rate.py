"""Rows a second of `arr-coc batch`, in turns: one row after the other, in batches, and by workers of Ray.

    python -m studies.batch_rate      # mini, 576 rows of 512 px, into results/batch.json; needs the extra ray

Each way runs as a command of its own. What it takes to get its first rows is its start, told apart; the rate is that of
the rows after them. A loop without Ray has all cores for its one model, a worker of Ray has one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.files import write_json
from arr_coc_scenes import draw_scene, make_scene

RESULTS = Path(__file__).parents[1] / "results" / "batch.json"
QUESTIONS = ("What colour is the hand?", "Describe the scene.", "Which word is blue?")
DIALS = ("auto", 0.25, 0.1, 64)


def write_rows(folder: Path, rows: int, side: int) -> Path:
    """A file of questions, each about an image of its own."""
    lines = []
    for number in range(rows):
        Image.fromarray(draw_scene(make_scene(number, "seen", (side, side)))).save(folder / f"{number}.png")
        asked = {"image": f"{number}.png", "question": QUESTIONS[number % 3], "keep": DIALS[number % 4]}
        lines.append(json.dumps(asked) + "\n")
    (folder / "in.jsonl").write_text("".join(lines))
    return folder / "in.jsonl"


def measure(source: Path, out: Path, first: int, rows: int, *words: str) -> dict[str, Any]:
    """Seconds to the first rows, and rows a second after them."""
    began, times = time.perf_counter(), {0: 0.0}
    command = [sys.executable, "-m", "arr_coc", "batch", str(source), str(out), "--quiet", *words]
    process = subprocess.Popen(command)
    while process.poll() is None:
        done = out.read_bytes().count(b"\n") if out.exists() else 0
        times.setdefault(done, time.perf_counter() - began)
        time.sleep(0.02)
    assert process.returncode == 0
    written = out.read_bytes().count(b"\n")
    assert written == rows, f"{written} of {rows} rows"
    times.setdefault(rows, time.perf_counter() - began)
    start = min(done for done in times if done >= first)
    seconds = times[rows] - times[start]
    return {"start_s": round(times[start], 1), "start_rows": start, "rows_a_second": round((rows - start) / seconds, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=576)
    parser.add_argument("--side", type=int, default=512, help="pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    ways: dict[str, tuple[str, ...]] = {
        "one": ("--batch", "1"),
        "plain": (),
        "ray": ("--ray", "--workers", str(given.workers)),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as place:
        source = write_rows(Path(place), given.rows, given.side)
        for turn in range(given.turns):
            for name, words in ways.items():
                found[name].append(measure(source, Path(place) / f"{name}-{turn}.jsonl", 32, given.rows, *words))
                print(name, found[name][-1], file=sys.stderr)
    rates = {name: max(run["rows_a_second"] for run in runs) for name, runs in found.items()}
    starts = {f"{name}_start_s": statistics.median(run["start_s"] for run in runs) for name, runs in found.items()}
    how = {name: value for name, value in vars(given).items() if name != "out"}
    about = {
        **how,
        "cores": os.cpu_count(),
        "ratio": round(rates["ray"] / rates["plain"], 2),
        "ratio_of_one": round(rates["ray"] / rates["one"], 2),
    }
    write_json(
        given.out, {**about, **{f"{name}_rows_a_second": rate for name, rate in rates.items()}, **starts, "runs": found}
    )
    told = f"x{about['ratio_of_one']} of row after row and x{about['ratio']} of batches"
    print(f"{told} by {given.workers} workers of Ray, once started")


if __name__ == "__main__":
    main()
