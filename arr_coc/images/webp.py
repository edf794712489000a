"""WebP within 8 bytes a pixel: Pillow goes through libwebp's decoder of animations, which takes 16 and more.

The file is walked here, and its first picture is given to the plain decoder of that libwebp to which Pillow is bound.
Where it cannot be reached (built into Pillow, as on Windows) `libwebp` gives None, and Pillow's own way has to do.
"""

import ctypes
import functools
import importlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from arr_coc.images.headers import MOST_EXIF, MOST_PIECES, Damaged

ANIMATED, CLEAR = 0x02, 0x10  # flags of the extended header
NO_MEMORY = 1  # status of the decoder
NOTES = {b"EXIF": ("exif", 0x08), b"XMP ": ("xmp", 0x04)}  # Pillow's name for each, and the flag that announces it

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_SIGNATURES = {  # result, arguments; nothing is guessed, for a wrong width would end the process
    "WebPGetInfo": (_INT, [_POINTER, _SIZE, ctypes.POINTER(_INT), ctypes.POINTER(_INT)]),
    "WebPDecodeRGBInto": (_POINTER, [_POINTER, _SIZE, _POINTER, _SIZE, _INT]),
    "WebPDecodeRGBAInto": (_POINTER, [_POINTER, _SIZE, _POINTER, _SIZE, _INT]),
    "WebPINewYUVA": (_POINTER, [_POINTER, _SIZE, _INT] * 4),
    "WebPIUpdate": (_INT, [_POINTER, _POINTER, _SIZE]),
    "WebPIDelete": (None, [_POINTER]),
}


@functools.cache
def libwebp() -> ctypes.CDLL | None:
    """What Pillow's module and the libraries under it hold; no file is searched for and no second copy loaded."""
    try:
        library = ctypes.CDLL(importlib.import_module("PIL._webp").__file__)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    return library


@dataclass(frozen=True, slots=True)
class _Picture:
    """The first picture of a file: where in the file its parts are, and where it lies on the canvas (x, y), (w, h)."""

    corner: tuple[int, int]
    size: tuple[int, int]
    colours: slice
    clear: slice | None
    """From the transparency that a lossy picture keeps apart to the end of its colours; None where it has none."""
    has_alpha: bool
    notes: dict[str, bytes]


def read_webp(data: bytes, canvas: tuple[int, int]) -> Image.Image:
    """The first picture on its canvas (width, height): RGB or RGBA, equal to Pillow's, with EXIF and XMP in `info`."""
    found = _walk(data, canvas)
    image = Image.fromarray(_values(np.frombuffer(data, np.uint8), found))
    if found.size != canvas:
        frame, image = image, Image.new(image.mode, canvas)
        image.paste(frame, found.corner)
    image.info.update(found.notes)
    return image


def _values(data: np.ndarray, found: _Picture) -> np.ndarray:
    """uint8 `[h, w, 3 or 4]` of the picture alone."""
    if found.clear is None:
        return _decoded(data[found.colours], found.size, 4 if found.has_alpha else 3)
    alpha = _transparency(data[found.clear], found.size)  # before the colours: it needs the most room
    values = _decoded(data[found.colours], found.size, 4)
    values[..., 3] = alpha
    return values


def _decoded(stored: np.ndarray, size: tuple[int, int], channels: int) -> np.ndarray:
    """uint8 `[h, w, channels]` of one chunk; lossless, libwebp holds 4 bytes a pixel beside it, lossy a few rows."""
    library, (width, height) = _library(), size
    w, h = _INT(), _INT()
    if not library.WebPGetInfo(stored.ctypes.data, stored.size, w, h) or (w.value, h.value) != size:
        raise Damaged("its sizes contradict each other")
    values = np.zeros((height, width, channels), np.uint8)
    decode = library.WebPDecodeRGBInto if channels == 3 else library.WebPDecodeRGBAInto
    if not decode(stored.ctypes.data, stored.size, values.ctypes.data, values.nbytes, width * channels):
        raise Damaged("its picture cannot be decoded")
    return values


def _transparency(stored: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint8 `[h, w]`. Decoded apart, for libwebp may hold 5 bytes a pixel meanwhile; with RGBA that would make 9."""
    library, (width, height) = _library(), size
    half = ((height + 1) // 2, (width + 1) // 2)
    planes = [np.zeros(shape, np.uint8) for shape in ((height, width), half, half, (height, width))]  # Y, U, V, A
    decoder = library.WebPINewYUVA(*(part for one in planes for part in (one.ctypes.data, one.size, one.shape[1])))
    if not decoder:
        raise MemoryError
    try:
        status = library.WebPIUpdate(decoder, stored.ctypes.data, stored.size)
    finally:
        library.WebPIDelete(decoder)
    if status == NO_MEMORY:
        raise MemoryError
    if status != 0:
        raise Damaged("its transparency cannot be decoded")
    return planes[3]


def _library() -> ctypes.CDLL:
    library = libwebp()
    assert library is not None, "ask libwebp() first"
    return library


def _walk(data: bytes, canvas: tuple[int, int]) -> _Picture:
    """The file's structure, checked as far as it is used; later frames are passed over."""
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        raise Damaged("it ends too early")
    chunks = _first_chunks(data, 12, end)
    flags = data[20] if data[12:16] == b"VP8X" else 0
    notes = {
        name: data[chunks[kind]]
        for kind, (name, flag) in NOTES.items()
        if flags & flag and kind in chunks and chunks[kind].stop - chunks[kind].start <= MOST_EXIF
    }
    corner, size = (0, 0), canvas
    if flags & ANIMATED:
        frame = chunks.get(b"ANMF", slice(end, end))
        x, y, w, h = (int.from_bytes(data[at : at + 3], "little") for at in range(frame.start, frame.start + 12, 3))
        corner, size = (2 * x, 2 * y), (1 + w, 1 + h)
        chunks = _first_chunks(data, frame.start + 16, frame.stop)
    if corner[0] + size[0] > canvas[0] or corner[1] + size[1] > canvas[1]:
        raise Damaged("its sizes contradict each other")
    colours, clear = _parts(chunks)
    at, has_alpha = colours.start, bool(flags & CLEAR)
    if data[at : at + 4] == b"VP8L" and not flags & ANIMATED:
        has_alpha = bool(int.from_bytes(data[at + 12 : at + 13]) & 0x10)  # behind head, signature, 28 bits of size
    return _Picture(corner, size, colours, clear if has_alpha else None, has_alpha, notes)


def _parts(chunks: dict[bytes, slice]) -> tuple[slice, slice | None]:
    """The colours' chunk with its head and the byte that makes it even, and the same from the transparency on."""
    pictures = [chunks[kind] for kind in (b"VP8 ", b"VP8L") if kind in chunks]
    if not pictures:
        raise Damaged("it has no picture")
    first = min(pictures, key=lambda one: one.start)
    colours = slice(first.start - 8, first.stop + first.stop % 2)
    alpha = chunks.get(b"ALPH")
    if alpha is None or first != chunks.get(b"VP8 ") or alpha.start > first.start:
        return colours, None
    return colours, slice(alpha.start - 8, colours.stop)


def _first_chunks(data: bytes, begin: int, end: int) -> dict[bytes, slice]:
    """Where the contents of the first chunk of each kind are."""
    found: dict[bytes, slice] = {}
    for _ in range(MOST_PIECES):
        if begin + 8 > end:
            return found
        first = begin + 8
        last = first + int.from_bytes(data[begin + 4 : first], "little")
        if last > end:
            raise Damaged("it ends inside of its picture")
        found.setdefault(data[begin : begin + 4], slice(first, last))
        begin = last + last % 2
    raise Damaged("it is cut into too many chunks")
