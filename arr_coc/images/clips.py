"""Reading clips that users hand in: a video file, a moving GIF or WebP, a folder or list of frames, an array.

T frames, h w their size in px. Files are decoded in a process of their own (`clip_worker`), within limits of time and
memory that the system holds; frames come one by one and are brought to the model's size at once, so that a long clip
never lies in memory at full size.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Union

import numpy as np
import PIL

from arr_coc.images.headers import VIDEOS, read_header
from arr_coc.images.reader import ADDRESS, ImageLike, byte_tensor, read_image, shown

if TYPE_CHECKING:
    from torch import Tensor

WORKER = Path(__file__).with_name("clip_worker.py")
MOVING = (".gif", ".webp")  # they may hold several frames
STILLS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
FPS = 2.0  # frames of a second that are looked at, Qwen's own default
LEAST_FRAMES, MOST_FRAMES = 4, 768  # that are looked at, Qwen's own limits; what has fewer gives all
MOST_BYTES = 2**30
DEADLINE = 90.0  # seconds of the wall clock for one clip
FRAME_FORM = "a list of frames, an array [frames, height, width, 3], or a tensor [frames, 3, height, width]"

Fit = Callable[[int, int, int], tuple[int, int]]  # frames, height, width -> height and width that the model sees


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames as the model will see them, and when each of them is."""

    frames_T3hw: "Tensor"  # uint8
    seconds: tuple[float, ...]  # of each frame, from the start

    def pairs(self, size: int = 2) -> list[float]:
        """The time of each pair of frames, as Qwen3-VL tells it: the mean of the first and the last of them."""
        times = [*self.seconds, *[self.seconds[-1]] * (-len(self.seconds) % size)]
        return [(times[start] + times[start + size - 1]) / 2 for start in range(0, len(times), size)]


ClipLike = Union[Clip, str, os.PathLike[str], bytes, bytearray, IO[bytes], Sequence[ImageLike], np.ndarray, "Tensor"]


def is_clip(source: Any) -> bool:
    """Whether it is a clip by its kind or its name: a `Clip`, a file with the ending of a video, a folder."""
    if not isinstance(source, (str, os.PathLike)):
        return isinstance(source, Clip)
    return Path(source).suffix.lower() in VIDEOS or os.path.isdir(source)


def is_played(source: str | os.PathLike[str]) -> bool:
    """Whether a file that was typed or uploaded is a clip: `is_clip`, or a GIF or WebP of several frames."""
    path = Path(source)
    if path.suffix.lower() not in MOVING or not path.is_file():
        return is_clip(path)
    try:
        with path.open("rb") as file:
            return read_header(file).moves
    except (OSError, ValueError):
        return False


def read_clip(
    source: ClipLike, fit: Fit, fps: float | None = None, frames: int | None = None, most: int = MOST_FRAMES
) -> Clip:
    """A clip from what a user gave: `fps` frames of a second are looked at, `most` at most, or so many `frames` in all.

    Frames that are given one by one are taken as they are, `fps` of them a second. `fit` says how large the model sees
    them.
    """
    check_sampling(fps, frames)
    if isinstance(source, Clip):
        return source
    if isinstance(source, (str, os.PathLike)):
        path, name = Path(source), shown(Path(source).name or str(source))
        if path.is_dir():
            stills = sorted(one for one in path.iterdir() if one.suffix.lower() in STILLS)
            return _from_frames(stills, fit, fps, frames or most, f"the folder {name}")
        return _from_file(path, name, fit, fps, frames, most)
    if hasattr(source, "read"):
        source = source.read(MOST_BYTES + 1)
    if isinstance(source, (bytes, bytearray)):
        with tempfile.NamedTemporaryFile(suffix=".clip") as file:
            file.write(source)
            file.flush()
            return _from_file(Path(file.name), "the clip", fit, fps, frames, most)
    if isinstance(source, (list, tuple)) or getattr(source, "ndim", 0) == 4:
        return _from_frames(source, fit, fps, frames or most, "the clip")  # type: ignore[arg-type]
    raise ValueError(f"cannot read a {type(source).__name__} as a clip: give a path, {FRAME_FORM}")


def check_sampling(fps: float | None, frames: int | None) -> None:
    if fps is not None and frames is not None:
        raise ValueError("fps and frames both say how many frames are looked at: give one of them")
    if fps is not None and not 0 < fps <= 240:
        raise ValueError(f"fps={fps}: give the frames of a second that are looked at, above 0 and at most 240")
    if frames is not None and (not isinstance(frames, int) or not 1 <= frames <= MOST_FRAMES):
        raise ValueError(f"frames={frames}: give the number of frames that are looked at, 1 to {MOST_FRAMES}")


def _from_frames(given: Sequence[Any], fit: Fit, fps: float | None, most: int, name: str) -> Clip:
    total = len(given)
    if not total:
        raise ValueError(f"{name} has no frames: give images, or {FRAME_FORM}")
    taken = [round(n * (total - 1) / max(1, most - 1)) for n in range(most)] if total > most else list(range(total))
    pictures = (byte_tensor(read_image(given[n])) for n in taken)
    return _gathered(pictures, [n / (fps or FPS) for n in taken], fit, name)


def _gathered(pictures: Iterable["Tensor"], seconds: Sequence[float], fit: Fit, name: str) -> Clip:
    """Frames, each brought to the size that the first of them is seen at; one alone is shown twice."""
    import torch
    import torch.nn.functional as F

    made: list[Tensor] = []
    size: tuple[int, int] = (0, 0)
    for picture in pictures:
        if not made:
            try:
                size = fit(max(2, len(seconds)), *picture.shape[-2:])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        is_right = tuple(picture.shape[-2:]) == size
        # As torchvision resizes bytes, so that frames are those of the stock processor.
        resized = picture[None] if is_right else F.interpolate(picture[None], size, mode="bicubic", antialias=True)
        made.append(resized[0])
    if not made:
        raise ValueError(f"{name}: no frame of it can be decoded; save it again, as MP4")
    seconds = list(seconds[: len(made)])
    if len(made) == 1:
        made, seconds = made * 2, seconds * 2
    return Clip(torch.stack(made), tuple(seconds))


# ---------------------------------------------------------------- files


def _from_file(path: Path, name: str, fit: Fit, fps: float | None, frames: int | None, most: int) -> Clip:
    if ADDRESS.match(str(path)):
        raise ValueError(f"{name}: an address is not fetched; download the clip and give the file")
    if not path.is_file():
        raise ValueError(f"{name}: no such file; check the path")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{name}: {size / 2**20:.0f} MB, at most {MOST_BYTES // 2**20} MB; cut it shorter")
    wanted = {"fps": fps or FPS, "frames": frames, "least": LEAST_FRAMES, "most": most, "path": str(path)}
    folders = {str(Path(PIL.__file__).parents[1]), str(Path(np.__file__).parents[1])}
    if (found := find_spec("av")) is not None and found.origin:
        folders.add(str(Path(found.origin).parents[1]))
    command = [sys.executable, "-I", "-S", str(WORKER), json.dumps(wanted), *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        deadline = threading.Timer(DEADLINE, worker.kill)
        deadline.start()
        try:
            return _told(worker.stdout, name, fit)  # type: ignore[arg-type]
        finally:
            deadline.cancel()
            worker.kill()


def _told(pipe: IO[bytes], name: str, fit: Fit) -> Clip:
    said = _line(pipe, name)
    seconds: list[float] = [0.0] * int(said["frames"])

    def pictures() -> Iterator["Tensor"]:
        import torch

        for number in range(len(seconds)):
            about = _line(pipe, name)
            if "end" in about:
                del seconds[number:]
                return
            height, width = about["size"]
            data = pipe.read(3 * height * width)
            if len(data) < 3 * height * width:
                raise ValueError(f"{name}: decoding it takes too long, or too much memory; cut it shorter")
            seconds[number] = about["seconds"]
            yield torch.frombuffer(bytearray(data), dtype=torch.uint8).view(height, width, 3).permute(2, 0, 1)

    return _gathered(pictures(), seconds, fit, name)


def _line(pipe: IO[bytes], name: str) -> dict[str, Any]:
    line = pipe.readline(10_000)
    if not line.endswith(b"\n"):
        raise ValueError(f"{name}: decoding it takes too long, or too much memory; cut it shorter, or save it as MP4")
    said: dict[str, Any] = json.loads(line)
    if "refused" in said:
        raise ValueError(f"{name}: {said['refused']}")
    return said
