"""How long commands take to start: CPU seconds of whole processes, and how often those of importing torch alone.

python -m studies.speed.startup --repeats 5 --out results/startup.json

CPU seconds, since a person's machine does other things as well; a ratio, since machines differ. Importing this loads no
torch.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arr_coc.files import write_json

FORMAT = "arr-coc startup 1"
TORCH = "import torch"
OURS = ("-m", "arr_coc")
COMMANDS: dict[str, tuple[Sequence[str], int, float | None]] = {
    TORCH: (("-c", "import torch"), 0, None),
    "arr-coc ask": ((*OURS, "ask"), 0, 3.5),
    "arr-coc --help": ((*OURS, "--help"), 0, 0.4),
    "arr-coc ask --help": ((*OURS, "ask", "--help"), 0, 0.4),
    "no such option": ((*OURS, "ask", "--kep", "0.5"), 2, 0.7),
    "no such image": ((*OURS, "ask", "no-such.png", "What is it?"), 3, 0.7),
    "no such dial": ((*OURS, "ask", "What is it?", "--keep", "7.5"), 3, 0.7),
    "no such selector": ((*OURS, "ask", "What is it?", "--selector", "best"), 3, 0.7),
    "no such model": ((*OURS, "ask", "What is it?", "--model", "no-such-model"), 4, 0.7),
    "no such data": ((*OURS, "eval", "--data", "jsonl:no-such.jsonl"), 3, 0.7),
}
"""What is run, the exit code that it ends with, and the CPU seconds that it may take."""


def measure_startup(out: Path, repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """The document, also written to `out`. Of several runs of each the quickest counts: others were disturbed."""
    best: dict[str, tuple[float, float]] = {}
    for number in range(repeats):
        for name, (command, code, _) in COMMANDS.items():
            found = run_once(command, code)
            best[name] = min(best.get(name, found), found)
        say(f"{number + 1}/{repeats}: {', '.join(f'{name} {cpu:.2f} s' for name, (cpu, _) in best.items())}")
    rows = [
        {
            "command": name,
            "cpu_s": round(cpu, 3),
            "wall_s": round(wall, 3),
            "times_torch": round(cpu / best[TORCH][0], 3),
            "most_cpu_s": COMMANDS[name][2],
        }
        for name, (cpu, wall) in best.items()
    ]
    about: dict[str, Any] = {"cores": os.cpu_count(), "python": platform.python_version(), "repeats": repeats}
    about["load"] = round(os.getloadavg()[1], 1)  # processes that wanted a core: above the cores, CPU seconds swell
    document = {"format": FORMAT, **about, "rows": rows}
    write_json(out, document)
    return document


def run_once(command: Sequence[str], code: int) -> tuple[float, float]:
    """(CPU seconds of user and system, seconds of the clock) of one process, its children included."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *command], cwd=folder, stdout=subprocess.DEVNULL, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        took = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise ValueError(f"{' '.join(command)} ended with {process.returncode}: {last}; mend that first")
    return used.ru_utime + used.ru_stime, took


def startup_table(document: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'':20s}{'CPU s':>8s}{'times torch':>13s}{'at most':>9s}"]
    for row in document["rows"]:
        most = "" if row["most_cpu_s"] is None else f"{row['most_cpu_s']:.1f}"
        lines.append(f"{row['command']:20s}{row['cpu_s']:8.2f}{row['times_torch']:13.2f}{most:>9s}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    print(startup_table(measure_startup(given.out, given.repeats, print)))


if __name__ == "__main__":
    main()
