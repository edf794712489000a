"""Images decoded in processes of their own, within limits that the system holds (see `worker`).

A few such processes are started when they are first needed, and kept. What an image does to one of them, nobody else
notices: it dies, the image is refused in one line, and the next image gets a new one.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

from arr_coc.images.decoding import strips
from arr_coc.images.headers import PictureFile, Refused, check_size

WORKER = Path(__file__).with_name("worker.py")
FOLDERS = {str(Path(__file__).parents[2]), str(Path(PIL.__file__).parents[1])}
LARGE = 8_000_000  # pixels; larger images take turns among themselves, so that none waits for them
MOST_WORKERS = 2  # of large images, and as many of others
DEADLINE = 10.0  # seconds for one image, on a machine that is busy with other things
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144"}  # large pieces, once unused
PATIENCE = 30.0  # seconds until a worker is free


class DecodingBox:
    """A few processes; threads share them."""

    def __init__(self) -> None:
        self._idle: list[subprocess.Popen[bytes]] = []
        self._rooms = [threading.BoundedSemaphore(MOST_WORKERS) for _ in range(2)]  # of large images, of others

    def decode(self, picture: PictureFile, name: str) -> Image.Image:
        """As `arr_coc.images.decoding.decode`, or a refusal in one line."""
        room = self._rooms[picture.width * picture.height <= LARGE]
        if not room.acquire(timeout=PATIENCE):
            raise Refused(f"{name}: too many images are being decoded; ask again in a moment")
        try:
            worker = self._take()
            deadline = threading.Timer(DEADLINE, worker.kill)
            deadline.start()
            try:
                said = _exchange(worker, picture, name)
            except BaseException:
                _end(worker)
                raise
            finally:
                deadline.cancel()
            self._idle.append(worker)
        except (OSError, EOFError):
            says = "decoding it takes too long, or too much memory"
            raise Refused(f"{name}: {says}; save it as a plain PNG or JPEG") from None
        finally:
            room.release()
        if isinstance(said, str):
            raise Refused(said)
        return said

    def _take(self) -> subprocess.Popen[bytes]:
        """A process that waits, or a new one."""
        with contextlib.suppress(IndexError):  # none waits
            while (worker := self._idle.pop()).poll() is not None:
                _end(worker)
            return worker
        command = [sys.executable, "-I", "-S", str(WORKER), *FOLDERS]
        pipe, environment = subprocess.PIPE, {**os.environ, **GIVE_BACK}
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)

    def close(self) -> None:
        """Ends the processes that wait."""
        while self._idle:
            _end(self._idle.pop())


def _exchange(worker: subprocess.Popen[bytes], picture: PictureFile, name: str) -> Image.Image | str:
    """The image, or why there is none. EOFError or OSError where the process died."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    about: dict[str, Any] = {one.name: getattr(picture, one.name) for one in fields(picture) if one.name != "file"}
    data = picture.file.getbuffer()
    worker.stdin.write(json.dumps({"name": name, "bytes": data.nbytes, **about}).encode() + b"\n")
    worker.stdin.write(data)
    worker.stdin.flush()
    line = worker.stdout.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    said = json.loads(line)
    if "refused" in said:
        return str(said["refused"])
    width, height = said["size"]
    check_size(width, height, name)
    image = Image.new("RGB", (width, height))
    for y, rows in strips(*image.size):
        pixels = worker.stdout.read(3 * image.width * rows)
        if len(pixels) < 3 * image.width * rows:
            raise EOFError
        image.paste(Image.frombytes("RGB", (image.width, rows), pixels), (0, y))
    return image


def _end(worker: subprocess.Popen[bytes]) -> None:
    worker.kill()
    for pipe in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):  # what was not read any more
            pipe.close()  # type: ignore[union-attr]
    worker.wait()


BOX = DecodingBox()
if hasattr(os, "register_at_fork"):  # a child must not talk to its parent's processes
    os.register_at_fork(after_in_child=BOX.__init__)  # type: ignore[misc]
