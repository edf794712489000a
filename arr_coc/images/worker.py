"""A process that decodes images and does nothing else: `python -I -S worker.py FOLDER...`.

The folders are where Pillow and this package lie; nothing but these two is imported. For each image it reads a line of
JSON and the picture from stdin, and answers on stdout with a line of JSON and RGB pixels, or with a refusal in one
line. Before each, the system is told what more this process may take: address space for so many bytes a pixel, and
seconds of CPU time. What takes more fails or dies here, where nothing is lost.
"""

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path += sys.argv[1:]

from PIL import Image, TiffImagePlugin  # noqa: F401  (loaded now: later, memory is counted)

from arr_coc.images.decoding import decode, strips
from arr_coc.images.headers import MOST_COST, MOST_PIXELS, PictureFile, one_line

try:
    import resource
except ImportError:  # no such limits on this system: the deadline must do
    resource = None  # type: ignore[assignment]

CPU_SECONDS = 1.2  # to decode; to hand 50 megapixels over takes both sides 0.8 more
SPARE = 12 * 2**20  # bytes that any image may take, however small it is
STATM = Path("/proc/self/statm")


def limit(cost: int) -> None:
    """Bytes of address space from here on, and CPU time. Soft limits: the next image has its own."""
    if resource is None:
        return
    if STATM.is_file():
        held = int(STATM.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (held + cost if hard < 0 else min(held + cost, hard), hard))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + CPU_SECONDS) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # to the millisecond, where the limit is in whole seconds


def answer(about: dict[str, Any], data: bytes) -> tuple[dict[str, Any], Any]:
    """What to say of a picture, and the image if there is one."""
    name, picture = about.pop("name"), PictureFile(io.BytesIO(data), **about)
    try:
        limit(min(picture.width * picture.height, MOST_PIXELS) * MOST_COST + SPARE)
        with one_line(name):
            image = decode(picture, name)
    except ValueError as error:
        return {"refused": str(error)}, None
    except MemoryError:
        much = f"decoding takes more memory than {picture.width}x{picture.height} pixels should"
        return {"refused": f"{name}: {much}; save it as a plain PNG or JPEG"}, None
    return {"size": image.size}, image


def main() -> None:
    Image.preinit()  # the other formats, likewise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    while line := asked.readline():
        about = json.loads(line)
        limit(2 * about["bytes"] + SPARE)  # what the image before it was allowed may be less than this file
        said, image = answer(about, asked.read(about.pop("bytes")))
        limit(SPARE)  # what was decoded is delivered
        told.write(json.dumps(said).encode() + b"\n")
        for y, rows in strips(*image.size) if image else ():
            told.write(image.crop((0, y, image.width, y + rows)).tobytes())
        told.flush()
        image = None


if __name__ == "__main__":
    main()
