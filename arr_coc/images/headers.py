"""What an image file is and how large it says it is: nothing is decoded.

A file is walked piece by piece, and what is no part of the picture (texts, profiles, EXIF, previews, later frames) is
left out of what is handed on: a decoder cannot stumble over what it never sees. The orientation alone is read, by hand.
"""

import contextlib
import io
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

VIDEOS = (
    *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts"),
    *(".flv", ".wmv", ".3gp", ".ogv", ".y4m", ".mjpeg"),
)
"""How names of videos end."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MOST_COST = 8  # bytes of memory a pixel, the finished image among them
MOST_BESIDE = 12_000_000  # bytes that a WebP may take beside 8 a pixel; the box allows every image as many
MOST_PIXELS = 50_000_000
MOST_ASPECT = 200  # Qwen's resizing refuses more
MOST_PIECES = 20_000  # chunks or segments of one file; each costs microseconds, millions would cost seconds
MOST_SCANS = 64  # passes over a progressive JPEG: encoders write about ten
MOST_PASSED = 600_000_000  # pixels of all passes together: each costs as much as a whole image, even if it is empty
MOST_CHUNK = 2**25  # bytes; files are smaller, whatever a chunk claims, and reading would make room for the claim
MOST_EXIF = 65_536  # bytes; a JPEG cannot hold more, and the orientation stands in the first few hundred
COMPRESSED = 100  # times; what is packed tighter than this may be meant to burst

PNG_KEPT = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
JPEG_READ, JPEG_PROGRESSIVE = (0xC0, 0xC1, 0xC2), 0xC2  # start of a frame, whose header holds the size
JPEG_UNREAD = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}  # the same, of kinds that take another decoder
JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
JPEG_JFIF, JPEG_EXIF, JPEG_ADOBE, JPEG_COMMENT, JPEG_SCAN, JPEG_END = 0xE0, 0xE1, 0xEE, 0xFE, 0xDA, 0xD9
WEBP_KEPT = (b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"VP8 ", b"VP8L")
WEBP_HELD, WEBP_HELD_CLEAR = 8.0, 13.0  # two canvases; a lossy one's transparency is unpacked beside them
WEBP_ALPHA, WEBP_ANIMATED, WEBP_EXIF, WEBP_XMP = 0x10, 0x02, 0x08, 0x04  # flags of VP8X
XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')
ORIENTATION = 0x0112  # the tag of EXIF
TIFF_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
TIFF_NUMBERS = {1: "B", 3: "H", 4: "I"}  # types of a tag that hold a whole number
TIFF_WIDTH, TIFF_HEIGHT = 256, 257  # tags
MOST_TAGS = 512  # of a TIFF's first image; writers set about twenty
GIF_EXTENSION, GIF_CONTROL, GIF_IMAGE, GIF_END = 0x21, 0xF9, 0x2C, 0x3B  # what blocks begin with
BMP_PACKED = (1, 2)  # compression by runs of equal pixels


class NotAnImage(ValueError):
    """None of the formats that are read."""


class Damaged(ValueError):
    """One of the formats, but it contradicts itself; the message says how."""


class Refused(ValueError):
    """A limit was passed; the message is ready for the user."""


@contextlib.contextmanager
def one_line(name: str) -> Iterator[None]:
    """Whatever a decoder says of hostile bytes, the user is told in one line, without addresses and paths."""
    try:
        yield
    except (Refused, MemoryError):
        raise
    except NotAnImage as error:
        why = f" ({error})" if str(error) else ""
        raise ValueError(f"{name}: not a readable {', '.join(FORMATS)} image{why}; convert it first") from None
    except Damaged as error:
        raise ValueError(f"{name}: the image is damaged ({error}); export it again") from None
    except Exception as error:  # decoders fail in every way that there is
        raise ValueError(f"{name}: the image is damaged ({type(error).__name__}); export it again") from None


@dataclass(frozen=True, slots=True)
class PictureFile:
    """What a decoder is given: the file without what is no part of the picture, and what is known of it."""

    file: io.BytesIO
    format: str
    width: int
    height: int
    orientation: int  # as EXIF numbers them, 1 to 8; anything else: upright
    held: float = 0.0  # bytes a pixel that a decoder must hold beside the image that it makes
    is_unsure: bool = False  # it may need tables or strips of any size: how large, no header says
    moves: bool = False  # whether other frames follow, which are left out

    @property
    def is_risky(self) -> bool:
        """Whether its size does not say what decoding it takes."""
        is_packed = 3 * self.width * self.height > COMPRESSED * self.file.getbuffer().nbytes
        return self.is_unsure or is_packed


def read_header(file: IO[bytes]) -> PictureFile:
    """What an open file of at most a few megabytes says of itself."""
    start = file.read(30)
    file.seek(0)
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(file, start)
    if start.startswith(b"\xff\xd8\xff"):
        return _jpeg(file)
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return _webp(file, *_webp_size(start))
    if start[:6] in (b"GIF87a", b"GIF89a"):
        return _gif(file)
    if start[:2] == b"BM":
        return _bmp(file, start)
    if start[:4] in TIFF_ORDERS:
        return _tiff(file)
    raise NotAnImage


def orientation_of(exif: bytes) -> int:
    """The orientation in the first directory of an EXIF block; 0 where it is not said or cannot be read."""
    return tags_of(exif.removeprefix(b"Exif\0\0")).get(ORIENTATION, 0)


def tags_of(tiff: bytes) -> dict[int, int]:
    """Whole numbers of the first directory of a TIFF, by their tags, as far as it can be read."""
    found: dict[int, int] = {}
    order = TIFF_ORDERS.get(tiff[:4])
    if order is None:
        return found
    try:
        (place,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, place)
        for entry in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
            if kind in TIFF_NUMBERS and tag not in found:
                found[tag] = int(struct.unpack_from(order + TIFF_NUMBERS[kind], tiff, entry + 8)[0])
    except struct.error:
        pass  # damaged EXIF does not spoil a good picture
    return found


# ---------------------------------------------------------------- PNG


def _png(file: IO[bytes], start: bytes) -> PictureFile:
    """The chunks that make the picture."""
    if len(start) < 24 or start[12:16] != b"IHDR":
        raise Damaged("it does not begin with its size")
    width, height = struct.unpack(">II", start[16:24])
    kept, orientation = io.BytesIO(), 0
    kept.write(file.read(8))
    for _ in range(MOST_PIECES):
        head = file.read(8)
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if len(head) < 8:
            break
        if kind in PNG_KEPT:
            kept.write(head)
            kept.write(file.read(min(length + 4, MOST_CHUNK)))
        elif kind == b"eXIf" and length <= MOST_EXIF:
            orientation = orientation_of(file.read(length + 4))
        else:
            file.seek(length + 4, io.SEEK_CUR)
        if kind == b"IEND":
            break
    else:
        raise Damaged("it is cut into too many chunks")
    kept.seek(0)
    return PictureFile(kept, "PNG", width, height, orientation)


# ---------------------------------------------------------------- JPEG


def _jpeg(file: IO[bytes]) -> PictureFile:
    """The segments that make the picture."""
    kept, size, sampling, is_progressive, orientation = io.BytesIO(), None, b"", False, 0
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
        if marker in JPEG_UNREAD or (marker in JPEG_READ and size is not None):
            raise NotAnImage("its JPEG is arithmetic-coded, lossless or hierarchical")
        if marker in JPEG_READ and len(data) >= 5:
            size = (int.from_bytes(data[3:5], "big"), int.from_bytes(data[1:3], "big"))
            sampling, is_progressive = data[7::3], marker == JPEG_PROGRESSIVE
        if marker == JPEG_EXIF and data.startswith(b"Exif\0\0"):
            orientation = orientation or orientation_of(data)
        if _is_picture(marker):
            kept.write(bytes((0xFF, marker)) + length + data)
        if marker == JPEG_SCAN:
            break
    else:
        raise Damaged("it is cut into too many segments")
    if size is None:
        raise Damaged("it does not say its size")
    is_one_scan = not is_progressive and data[:1] == bytes((len(sampling),))
    _copy_scans(kept, file, size[0] * size[1])
    return PictureFile(kept, "JPEG", *size, orientation, 0.0 if is_one_scan else _coefficients(sampling))


def _coefficients(sampling: bytes) -> float:
    """Bytes a pixel of a JPEG in several scans: all coefficients are kept until the last, 2 bytes each.

    `sampling` has a byte for each colour, how fine it is across and down: 3 where colours are halved, up to 8 for CMYK.
    """
    fineness = [(one >> 4, one & 15) for one in sampling]
    if not fineness or not all(across and down for across, down in fineness):
        raise Damaged("it does not say how its colours are stored")
    finest = max(across for across, _ in fineness) * max(down for _, down in fineness)
    return 2 * sum(across * down for across, down in fineness) / finest


def _copy_scans(kept: io.BytesIO, file: IO[bytes], pixels: int) -> None:
    """All up to the end of the first picture; others may follow it."""
    rest = file.read()
    end = rest.find(b"\xff\xd9") + 2  # inside of a scan two such bytes cannot stand together
    end = end if end >= 2 else len(rest)
    scans = 1 + rest.count(b"\xff\xda", 0, end)
    if scans > MOST_SCANS or scans * pixels > MOST_PASSED:
        raise Damaged("it is cut into too many scans")
    kept.write(memoryview(rest)[:end])
    kept.seek(0)


def _is_picture(marker: int) -> bool:
    """Whether a decoder needs the segment: tables and sizes, and the colour's meaning."""
    return marker in (JPEG_JFIF, JPEG_ADOBE) or (marker != JPEG_COMMENT and not 0xE0 <= marker <= 0xEF)


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


# ---------------------------------------------------------------- WebP


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


def _webp(file: IO[bytes], width: int, height: int) -> PictureFile:
    """The chunks of the first frame."""
    kept, flags, told, frames, is_lossless, is_clear = io.BytesIO(), 0, {}, 0, False, False
    kept.write(file.read(12))
    for _ in range(MOST_PIECES):
        head = file.read(8)
        if len(head) < 8:
            break
        kind, length = head[:4], int.from_bytes(head[4:], "little")
        data = file.read(min(length + length % 2, MOST_CHUNK))
        if len(data) < length + length % 2:
            raise Damaged("it ends inside of a chunk")
        frames += kind == b"ANMF"
        if kind == b"VP8X":
            flags, data = data[0], bytes((data[0] & (WEBP_ALPHA | WEBP_ANIMATED),)) + data[1:]
        if kind in WEBP_KEPT and frames <= 1:
            part = data[16:20] if kind == b"ANMF" else kind
            is_lossless, is_clear = is_lossless or part in (b"VP8L", b"ALPH"), is_clear or part == b"ALPH"
            kept.write(head + data)
        elif kind in (b"EXIF", b"XMP "):
            told[kind] = data[:MOST_EXIF]
    else:
        raise Damaged("it is cut into too many chunks")
    kept.seek(4)
    kept.write((kept.getbuffer().nbytes - 8).to_bytes(4, "little"))
    kept.seek(0)
    orientation = orientation_of(told.get(b"EXIF", b"")) if flags & WEBP_EXIF else 0
    if not orientation and flags & WEBP_XMP and (said := XMP_ORIENTATION.search(told.get(b"XMP ", b""))):
        orientation = int(said[1])
    held = WEBP_HELD_CLEAR if is_clear else WEBP_HELD
    return PictureFile(kept, "WEBP", width, height, orientation, held, is_lossless, frames > 1)


# ---------------------------------------------------------------- GIF, BMP, TIFF


def _gif(file: IO[bytes]) -> PictureFile:
    """The screen, and the blocks of the first image on it."""
    kept, head = io.BytesIO(), file.read(13)
    if len(head) < 13:
        raise Damaged("it does not begin with its size")
    kept.write(head + file.read(_colours(head[10])))
    width, height = struct.unpack("<HH", head[6:10])
    for _ in range(MOST_PIECES):
        kind = file.read(1)
        if kind == bytes((GIF_EXTENSION,)):
            label = file.read(1)
            data = _gif_blocks(file)
            if label == bytes((GIF_CONTROL,)):  # which colour is clear
                kept.write(kind + label + data)
        elif kind == bytes((GIF_IMAGE,)):
            place = file.read(9)
            if len(place) < 9:
                break
            x, y, wide, high = struct.unpack("<HHHH", place[:8])
            kept.write(kind + place + file.read(_colours(place[8])) + file.read(1) + _gif_blocks(file))
            kept.write(bytes((GIF_END,)))
            kept.seek(0)
            return PictureFile(kept, "GIF", max(width, x + wide), max(height, y + high), 0, moves=_gif_goes_on(file))
        else:
            break
    raise Damaged("it ends before its picture begins")


def _gif_goes_on(file: IO[bytes]) -> bool:
    """Whether another image follows."""
    for _ in range(MOST_PIECES):
        if (kind := file.read(1)) != bytes((GIF_EXTENSION,)):
            return kind == bytes((GIF_IMAGE,))
        file.read(1)
        _gif_blocks(file)
    return False


def _colours(flags: int) -> int:
    """Bytes of the table of colours that follows."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_blocks(file: IO[bytes]) -> bytes:
    """Blocks of up to 255 bytes with their lengths, to the empty one."""
    blocks = []
    while length := file.read(1):
        blocks.append(length + file.read(length[0]))
        if not length[0]:
            break
    return b"".join(blocks)


def _bmp(file: IO[bytes], start: bytes) -> PictureFile:
    """A BMP holds nothing but its picture; its height may be negative, from the top down."""
    if len(start) < 26:
        raise Damaged("it does not begin with its size")
    length = int.from_bytes(start[14:18], "little")
    width, height = struct.unpack("<HH", start[18:22]) if length == 12 else struct.unpack("<ii", start[18:26])
    data = file.read()
    packing = int.from_bytes(data[30:34], "little") if length >= 40 else 0
    return PictureFile(io.BytesIO(data), "BMP", width, abs(height), 0, is_unsure=packing in BMP_PACKED)


def _tiff(file: IO[bytes]) -> PictureFile:
    """A TIFF's parts lie anywhere in it: it is handed on whole, and decoded where nothing is lost.

    Its decoder sets it upright by itself, so no orientation is told; and it reads the first of several images alone.
    """
    data = file.read()
    order = TIFF_ORDERS[data[:4]]
    place = struct.unpack_from(f"{order}I", data, 4)[0] if len(data) >= 8 else 0
    if not 8 <= place <= len(data) - 2 or struct.unpack_from(f"{order}H", data, place)[0] > MOST_TAGS:
        raise Damaged("its list of tags cannot be read")
    tags = tags_of(data)
    if TIFF_WIDTH not in tags or TIFF_HEIGHT not in tags:
        raise Damaged("it does not say its size")
    return PictureFile(io.BytesIO(data), "TIFF", tags[TIFF_WIDTH], tags[TIFF_HEIGHT], 0, is_unsure=True)


def check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise Refused(f"{name}: {width}x{height} has no pixels; export it again")
    if width * height > MOST_PIXELS:
        raise Refused(f"{name}: {width}x{height} is over {MOST_PIXELS // 10**6} megapixels; resize it first")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise Refused(f"{name}: {width}x{height} is longer than {MOST_ASPECT} to 1; crop it first")


def check_picture(picture: PictureFile, name: str) -> None:
    """By its header. A WebP may have 3 megapixels, 1.3 if it is lossy and transparent: they cost more memory."""
    check_size(picture.width, picture.height, name)
    most = int(MOST_BESIDE / (picture.held + 4 - MOST_COST)) if picture.format == "WEBP" else 0
    if most and picture.width * picture.height > most:
        says = f"{picture.width}x{picture.height} is too large for such a WebP, at most {most / 10**6:.1f} megapixels"
        raise Refused(f"{name}: {says}; save it as PNG or JPEG")
