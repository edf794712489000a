"""What an image file is and how large it says it is, from its first bytes: nothing is decoded, little is read.

A file is walked piece by piece, and what is no part of the picture (texts, profiles, previews, later frames) is left
out of what is handed on: a decoder cannot stumble over what it never sees.
"""

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

MOST_PIXELS = 50_000_000
MOST_ASPECT = 200  # Qwen's resizing refuses more
MOST_PIECES = 20_000  # chunks or segments of one file; each costs microseconds, millions would cost seconds
MOST_SCANS = 64  # passes over a progressive JPEG: encoders write about ten, and each costs as much as a whole image
MOST_CHUNK = 2**25  # bytes; files are smaller, whatever a chunk claims, and reading would make room for the claim
MOST_EXIF = 65_536  # bytes; a JPEG cannot hold more, and the orientation stands in the first few hundred

PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"eXIf", b"IDAT", b"IEND")
JPEG_SIZE = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of a frame, whose header holds the size
JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})  # those of them whose picture comes in several passes
JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
JPEG_JFIF, JPEG_EXIF, JPEG_ADOBE, JPEG_COMMENT, JPEG_SCAN, JPEG_END = 0xE0, 0xE1, 0xEE, 0xFE, 0xDA, 0xD9


class NotAnImage(ValueError):
    """None of the formats that are read."""


class Damaged(ValueError):
    """One of the formats, but it contradicts itself; the message says how."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself, and the file without what is no part of the picture."""

    format: str
    width: int
    height: int
    picture: Callable[[], IO[bytes]]
    """Makes the file that a decoder is given; to be called once the size was found bearable."""
    held: float = 0.0
    """Bytes a pixel that a decoder must hold beside the image that it makes."""


def read_header(file: IO[bytes]) -> Header:
    """Format and size of an open file of at most a few megabytes."""
    start = file.read(30)
    file.seek(0)
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(file, start)
    if start.startswith(b"\xff\xd8\xff"):
        return _jpeg(file)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return Header("WEBP", *_webp_size(start), lambda: file)
    raise NotAnImage


def _png(file: IO[bytes], start: bytes) -> Header:
    if len(start) < 24 or start[12:16] != b"IHDR":
        raise Damaged("it does not begin with its size")
    width, height = struct.unpack(">II", start[16:24])
    return Header("PNG", width, height, lambda: _png_picture(file))


def _png_picture(file: IO[bytes]) -> IO[bytes]:
    """The chunks that make the picture."""
    kept = io.BytesIO()
    kept.write(file.read(8))
    for _ in range(MOST_PIECES):
        head = file.read(8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if len(head) < 8:
            break
        if kind in PNG_KEPT and (kind != b"eXIf" or length <= MOST_EXIF):
            kept.write(head)
            kept.write(file.read(min(length + 4, MOST_CHUNK)))
        else:
            file.seek(length + 4, io.SEEK_CUR)
        if kind == b"IEND":
            break
    else:
        raise Damaged("it is cut into too many chunks")
    kept.seek(0)
    return kept


def _jpeg(file: IO[bytes]) -> Header:
    """Walks the segments up to the first scan. What follows is handed on as it is."""
    kept, size, sampling, is_progressive = io.BytesIO(), None, b"", False
    kept.write(file.read(2))
    for _ in range(MOST_PIECES):
        marker = _next_marker(file)
        if marker in JPEG_BARE:
            continue
        if marker == JPEG_END:
            raise Damaged("it ends before its picture begins")
        length = file.read(2)
        data = file.read(max(0, int.from_bytes(length, "big") - 2))
        if len(length) < 2 or len(data) != int.from_bytes(length, "big") - 2:
            raise Damaged("it ends inside of its header")
        if marker in JPEG_SIZE and len(data) >= 5:
            size = (int.from_bytes(data[3:5], "big"), int.from_bytes(data[1:3], "big"))
            sampling, is_progressive = data[7::3], marker in JPEG_PROGRESSIVE
        if _is_picture(marker, data):
            kept.write(bytes((0xFF, marker)) + length + data)
        if marker == JPEG_SCAN:
            break
    else:
        raise Damaged("it is cut into too many segments")
    if size is None:
        raise Damaged("it does not say its size")
    is_one_scan = not is_progressive and data[:1] == bytes((len(sampling),))
    held = 0.0 if is_one_scan else _coefficients(sampling)
    return Header("JPEG", *size, lambda: _jpeg_picture(kept, file), held)


def _coefficients(sampling: bytes) -> float:
    """Bytes a pixel of a JPEG in several scans: all coefficients are kept until the last, 2 bytes each.

    `sampling` has a byte for each colour, how fine it is across and down: 3 where colours are halved, up to 8 for CMYK.
    """
    fineness = [(one >> 4, one & 15) for one in sampling]
    if not fineness or not all(across and down for across, down in fineness):
        raise Damaged("it does not say how its colours are stored")
    finest = max(across for across, _ in fineness) * max(down for _, down in fineness)
    return 2 * sum(across * down for across, down in fineness) / finest


def _jpeg_picture(kept: io.BytesIO, file: IO[bytes]) -> IO[bytes]:
    rest = file.read()
    if 1 + rest.count(b"\xff\xda") > MOST_SCANS:  # inside of a scan these two bytes cannot stand together
        raise Damaged("it is cut into too many scans")
    kept.write(rest)
    kept.seek(0)
    return kept


def _is_picture(marker: int, data: bytes) -> bool:
    """Whether a decoder needs the segment: tables and sizes, the colour's meaning, the orientation."""
    if marker == JPEG_EXIF:
        return data.startswith(b"Exif\0\0")
    if marker in (JPEG_JFIF, JPEG_ADOBE):
        return True
    return marker != JPEG_COMMENT and not 0xE0 <= marker <= 0xEF


def _next_marker(file: IO[bytes]) -> int:
    """The byte after the next 0xFF that is not filling."""
    if file.read(1) != b"\xff":
        raise Damaged("its header has a hole")
    for _ in range(MOST_PIECES):
        byte = file.read(1)
        if byte != b"\xff":
            break
    if not byte or byte == b"\0":
        raise Damaged("it ends inside of its header")
    return byte[0]


def _webp_size(start: bytes) -> tuple[int, int]:
    """The canvas, from whichever of the three kinds of first chunk there is."""
    kind, data = start[12:16], start[20:]
    if kind == b"VP8X" and len(data) >= 10:
        return 1 + int.from_bytes(data[4:7], "little"), 1 + int.from_bytes(data[7:10], "little")
    if kind == b"VP8L" and len(data) >= 5 and data[0] == 0x2F:
        bits = int.from_bytes(data[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and len(data) >= 10 and data[3:6] == b"\x9d\x01\x2a":
        return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF
    raise Damaged("it does not begin with its size")


class Refused(ValueError):
    """A limit was passed; the message is ready for the user."""


def check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise Refused(f"{name}: {width}x{height} has no pixels; export it again")
    if width * height > MOST_PIXELS:
        raise Refused(f"{name}: {width}x{height} is over {MOST_PIXELS // 10**6} megapixels; resize it first")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise Refused(f"{name}: {width}x{height} is longer than {MOST_ASPECT} to 1; crop it first")
