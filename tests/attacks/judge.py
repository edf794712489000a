"""Reads image files one by one, each decoded in a process of its own, and says what became of it and what it took.

`python tests/attacks/judge.py FILE...` prints one JSON object per file: its pixels or the message, what the memory of
the process that decodes grew by at the most and that of this one, and CPU seconds of both. The system counts; a process
that is still there afterwards is asked, one that was ended has its CPU time told by the system.
"""

import io
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.images import box
from arr_coc.images.reader import read_image

TICKS = os.sysconf("SC_CLK_TCK")


def kilobytes(pid: int | str, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def forget_peak(pid: int | str) -> int:
    """Memory of a process now; its peak counts from here."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return kilobytes(pid, "VmRSS")


def cpu_seconds(pid: int) -> float:
    """Of a process that is there, to the hundredth."""
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / TICKS


def of_ended() -> float:
    """CPU seconds of all processes of ours that were ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged(path: str) -> dict[str, Any]:
    """What reading one file gives, and takes."""
    worker = warm_worker()
    held, own, spent, ended = forget_peak(worker), forget_peak("self"), cpu_seconds(worker), of_ended()
    started = time.process_time()
    try:
        image = read_image(path, boxed=True)
        found: dict[str, Any] = {"pixels": image.width * image.height}
    except ValueError as error:
        found = {"message": str(error)}
    found["seconds"] = time.process_time() - started
    found["own_bytes"] = 1024 * (kilobytes("self", "VmHWM") - own)
    is_there = any(one.pid == worker and one.poll() is None for one in box.BOX._idle)
    found["bytes"] = 1024 * (kilobytes(worker, "VmHWM") - held) if is_there else None
    found["seconds"] += cpu_seconds(worker) - spent if is_there else of_ended() - ended - spent
    return {"file": os.path.basename(path), **found}


def warm_worker() -> int:
    """The process that will decode the next image; decoders are loaded already, so that no image pays for that."""
    for kind in ("webp", "png", "jpeg"):
        small = io.BytesIO()
        Image.new("RGB", (8, 8)).save(small, kind)
        read_image(small.getvalue(), boxed=True)
    return box.BOX._idle[-1].pid


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(judged(name)), flush=True)
