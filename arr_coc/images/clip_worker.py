"""A process that decodes one clip and ends: `python -I -S clip_worker.py WANTED FOLDER...`.

WANTED is JSON: path, fps, frames, least, most. The folders are where numpy, Pillow and PyAV lie. On stdout: a line of
JSON that says how many frames will come, then for each a line with its size and time, and its RGB bytes. Or a refusal
in one line. The system is told first what this process may take: what takes more dies here, where nothing is lost.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path += sys.argv[2:]

import numpy as np
from PIL import Image, ImageSequence

try:
    import resource
except ImportError:  # no such limits on this system: the deadline must do
    resource = None  # type: ignore[assignment]

CPU_SECONDS, MOST_MEMORY = 60, 3 * 2**30  # address space; a stream of 8K holds a dozen frames of 50 MB
MOST_PACKETS = 500_000  # of a file: four hours at 30 frames a second
MOST_SIDE, MOST_PIXELS = 16_384, 50_000_000  # of a frame as it is stored
MOST_SENT = 4_000_000  # pixels; larger frames are made smaller here, before anybody else sees them
MOST_BAD = 200  # frames in a row that cannot be decoded
MOVING = (b"GIF8", b"RIFF")  # how files begin that Pillow reads
Sent = tuple[float, np.ndarray]  # time in seconds, RGB [h, w, 3]


class Unreadable(Exception):
    """What is said to the user."""


def sample(total: int, rate: float, wanted: dict[str, Any]) -> list[int]:
    """Numbers of the frames that are looked at, as the stock processor takes them."""
    number = wanted["frames"]
    if number is None:
        number = max(int(total / rate * wanted["fps"]), wanted["least"])
    number = min(number, wanted["most"], total)
    return [round(one) for one in np.linspace(0, total - 1, number).tolist()]


def limit() -> None:
    if resource is not None:
        for what, most in ((resource.RLIMIT_AS, MOST_MEMORY), (resource.RLIMIT_CPU, CPU_SECONDS)):
            resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def check_size(width: int, height: int) -> None:
    if not (0 < width <= MOST_SIDE and 0 < height <= MOST_SIDE and width * height <= MOST_PIXELS):
        raise Unreadable(f"frames of {width}x{height}, at most {MOST_PIXELS // 10**6} megapixels; save it smaller")


# ---------------------------------------------------------------- moving images


def moving_image(wanted: dict[str, Any]) -> tuple[int, Iterator[Sent]]:
    """Frames of a GIF or WebP; each has a duration of its own."""
    Image.MAX_IMAGE_PIXELS = None  # `check_size` says it in our words
    image = Image.open(wanted["path"], formats=("GIF", "WEBP"))
    check_size(*image.size)
    starts: list[float] = []
    total = 0.0
    try:
        for frame in ImageSequence.Iterator(image):
            if len(starts) == MOST_PACKETS:
                raise Unreadable(f"over {MOST_PACKETS:,} frames; cut it shorter")
            frame.load()  # a WebP knows its duration only then
            starts.append(total)
            total += max(frame.info.get("duration", 100), 10) / 1000
    except (OSError, SyntaxError):  # it is cut short
        if not starts:
            raise
    chosen = sample(len(starts), len(starts) / total, wanted)

    def frames() -> Iterator[Sent]:
        for number in chosen:
            image.seek(number)
            clear = image.convert("RGBA")
            whole = Image.alpha_composite(Image.new("RGBA", image.size, "white"), clear).convert("RGB")
            whole.thumbnail(within(*whole.size))
            yield starts[number], np.asarray(whole)

    return len(chosen), frames()


def within(width: int, height: int) -> tuple[int, int]:
    """(width, height) of a frame that may be sent."""
    ratio = min(1.0, math.sqrt(MOST_SENT / (width * height)))
    return max(1, int(width * ratio)), max(1, int(height * ratio))


# ---------------------------------------------------------------- videos


def video(wanted: dict[str, Any]) -> tuple[int, Iterator[Sent]]:
    """Frames of whatever ffmpeg reads. Times are those of the packets: no header is believed."""
    try:
        import av
    except ImportError:
        raise Unreadable("reading videos needs PyAV: pip install 'arr-coc[video]', or give a GIF or frames") from None
    av.logging.set_level(av.logging.PANIC)
    # As an open file, with no way to open others: a list of streams would name files of this machine.
    file = open(wanted["path"], "rb")  # noqa: SIM115  (as long as this process)
    container: Any = av.open(file, metadata_errors="ignore", options={"protocol_whitelist": "pipe"})
    if not container.streams.video:
        raise Unreadable("there is no video in it")
    stream = container.streams.video[0]
    stream.thread_type, stream.codec_context.thread_count = "NONE", 1  # each thread would hold frames of its own
    if stream.codec_context.width:
        check_size(stream.codec_context.width, stream.codec_context.height)
    keys, times = [], []
    for packet in container.demux(stream):
        stamp = packet.pts if packet.pts is not None else packet.dts
        if packet.size and stamp is not None:
            times.append(stamp)
            keys += [stamp] if packet.is_keyframe else []
        if len(times) == MOST_PACKETS:
            raise Unreadable(f"over {MOST_PACKETS:,} frames; cut it shorter")
    times = sorted(set(times))
    if not times:
        raise Unreadable("there are no frames in it")
    base = float(stream.time_base or 1 / 25)
    length = max((times[-1] - times[0]) * base * len(times) / max(1, len(times) - 1), 1e-3)
    chosen = [times[number] for number in sample(len(times), len(times) / length, wanted)]
    return len(chosen), _decoded(container, stream, chosen, sorted(keys), times[0], base)


def _decoded(
    container: Any, stream: Any, chosen: list[int], keys: list[int], first: int, base: float
) -> Iterator[Sent]:
    """The frames at these times, or the next after them. Where a later key frame leads there, all before it is left."""
    import av

    at, bad = -math.inf, 0
    container.seek(first, stream=stream)
    frames = container.decode(stream)
    for stamp in chosen:
        if stamp <= at:
            continue
        key = max((one for one in keys if one <= stamp), default=first)
        if key > at and key > first:
            container.seek(key, stream=stream)
            frames = container.decode(stream)
        while True:
            try:
                frame = next(frames)
            except StopIteration:
                return
            except av.error.FFmpegError:
                bad += 1
                if bad > MOST_BAD:
                    return
                frames = container.decode(stream)
                continue
            at = frame.pts if frame.pts is not None else stamp
            if at >= stamp:
                break
        bad = 0
        check_size(frame.width, frame.height)
        width, height = within(frame.width, frame.height)
        pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
        turns = round((frame.rotation or 0) / 90) % 4
        yield (at - first) * base, np.ascontiguousarray(np.rot90(pixels, turns))


def main() -> None:
    wanted, told = json.loads(sys.argv[1]), sys.stdout.buffer

    def say(**what: Any) -> None:
        told.write(json.dumps(what).encode() + b"\n")

    try:
        limit()
        with Path(wanted["path"]).open("rb") as file:
            start = file.read(12)
        moves = start[:4] in MOVING and (start[:4] == b"GIF8" or start[8:] == b"WEBP")
        count, frames = moving_image(wanted) if moves else video(wanted)
        for number, (seconds, pixels) in enumerate(frames):
            if not number:
                say(frames=count)
            say(size=pixels.shape[:2], seconds=seconds)
            told.write(pixels.tobytes())
        if count and "number" not in locals():
            say(refused="no frame of it can be decoded; save it again, as MP4")
        say(end=True)
    except Unreadable as error:
        say(refused=str(error))
    except MemoryError:
        say(refused="decoding it takes too much memory; save it smaller")
    except Exception as error:  # whatever a decoder says of hostile bytes
        say(refused=f"not a video that can be read ({type(error).__name__}); save it again, as MP4")
    told.flush()


if __name__ == "__main__":
    main()
