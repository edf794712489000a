"""Reads image files one by one, each in a child process of its own, and says what became of it and what it cost.

`python tests/hostile_judge.py FILE...` prints one JSON object per file. A child's high-water mark of resident memory
begins at what it inherits, so the difference is what reading took: Pillow's buffers and the decoder's too.
"""

import json
import os
import resource
import sys
import tempfile
import time
from typing import Any

from PIL import Image

from arr_coc.images.reader import read_image


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read(path: str) -> dict[str, Any]:
    """What reading one file gives: its pixels or a message, more memory at the most, seconds."""
    before, started = peak_bytes(), time.perf_counter()
    try:
        image = read_image(path)
        found: dict[str, Any] = {"pixels": image.width * image.height}
    except ValueError as error:
        found = {"message": str(error)}
    return {**found, "bytes": peak_bytes() - before, "seconds": time.perf_counter() - started}


def judged(path: str) -> dict[str, Any]:
    """The same from a child, whose death would be told too."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(read(path)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as told:
        said = told.read()
    _, status = os.waitpid(child, 0)
    return {"file": os.path.basename(path), "status": status, **(json.loads(said) if said else {})}


def warm_up() -> None:
    """Decoders are loaded before the first child, not by each: what a process holds once is not what an image costs."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, mode in (("png", "RGBA"), ("jpeg", "CMYK"), ("webp", "RGBA"), ("webp", "RGB")):
            Image.linear_gradient("L").convert(mode).save(f"{folder}/small.{kind}")
            read_image(f"{folder}/small.{kind}")


if __name__ == "__main__":
    warm_up()
    for name in sys.argv[1:]:
        print(json.dumps(judged(name)), flush=True)
