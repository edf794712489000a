"""GIF, BMP and TIFF: the first picture as Pillow reads it, what costs too much is refused, broken ones in one line."""

import io
import random
import struct

import numpy as np
import pytest
from PIL import Image

from arr_coc.images.headers import MOST_TAGS, read_header
from arr_coc.images.reader import read_image

KINDS = {
    **{f"BMP {mode}": ("BMP", mode, {}) for mode in ("RGB", "L", "P", "1")},
    **{f"GIF {mode}": ("GIF", mode, {}) for mode in ("L", "P")},
    **{f"TIFF {mode}": ("TIFF", mode, {}) for mode in ("RGB", "RGBA", "L", "P", "1", "CMYK")},
    "TIFF packed": ("TIFF", "RGB", {"compression": "tiff_lzw"}),
    "TIFF deflated": ("TIFF", "RGB", {"compression": "tiff_adobe_deflate"}),
}


def picture(seed: int = 0, size: tuple[int, int] = (50, 37)) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 4), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def written(kind: str, mode: str, options: dict[str, object], **more: object) -> bytes:
    file = io.BytesIO()
    picture().convert("RGBA" if mode == "RGBA" else "RGB").convert(mode).save(file, kind, **options, **more)
    return file.getvalue()


def pillows(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        clear = image.convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB"))


@pytest.mark.parametrize("name", KINDS)
def test_it_is_read_as_pillow_reads_it(name, tmp_path):
    data = written(*KINDS[name])
    file = tmp_path / f"a.{name[:3].lower()}"
    file.write_bytes(data)
    assert np.array_equal(np.asarray(read_image(file)), pillows(data))
    assert np.array_equal(np.asarray(read_image(data, boxed=True)), pillows(data))


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_the_first_of_several_pictures_counts(kind):
    first = written(kind, "L", {})
    later = [Image.new("L", (50, 37), 255 * (number % 2)) for number in range(3)]
    several = written(kind, "L", {}, save_all=True, append_images=later)
    assert np.array_equal(np.asarray(read_image(several)), pillows(first))
    if kind == "GIF":
        assert len(read_header(io.BytesIO(several)).file.getvalue()) < 1.1 * len(first), "later ones are left out"


def test_what_no_header_vouches_for_is_boxed():
    """A TIFF, and a BMP packed by runs; plain ones and small GIFs are not."""
    assert read_header(io.BytesIO(written("TIFF", "RGB", {}))).is_risky
    plain = bytearray(written("BMP", "L", {}))
    assert not read_header(io.BytesIO(plain)).is_risky
    plain[30] = 1
    assert read_header(io.BytesIO(plain)).is_risky
    assert not read_header(io.BytesIO(written("GIF", "P", {}))).is_risky


def test_a_turned_tiff_is_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(written("TIFF", "RGB", {}, exif=exif)).size == (37, 50)


def test_a_clear_gif_is_on_white():
    clear = Image.new("P", (8, 8), 0)
    file = io.BytesIO()
    clear.save(file, "GIF", transparency=0)
    assert np.asarray(read_image(file.getvalue())).min() == 255


def tags(order: str, *entries: tuple[int, int, int, int]) -> bytes:
    """A TIFF that is nothing but its directory: (tag, type, count, value) each."""
    body = b"".join(struct.pack(f"{order}HHII", *entry) for entry in entries)
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(f"{order}IH", 8, len(entries)) + body + bytes(4)


SIZE = ((256, 4, 1, 6000), (257, 4, 1, 6000))
GIF_SCREEN = b"GIF89a" + struct.pack("<HHBBB", 16, 16, 0x80, 0, 0) + bytes(6)
HOSTILE = {
    "a gif whose frame is larger than its screen": (
        GIF_SCREEN + b"," + struct.pack("<HHHHB", 60_000, 0, 60_000, 60_000, 0) + b"\x02\x02\x4c\x01\0;",
        "over 50 megapixels",
    ),
    "a gif of extensions alone": (GIF_SCREEN + b"!\xfe\x01a\0" * 30_000, "damaged"),
    "a gif that ends in its colours": (GIF_SCREEN[:15], "damaged"),
    "a gif of 45 megapixels in 60 bytes": (
        GIF_SCREEN[:6]
        + struct.pack("<HHBBB", 6700, 6700, 0x80, 0, 0)
        + bytes(6)
        + b","
        + struct.pack("<HHHHB", 0, 0, 6700, 6700, 0)
        + b"\x02\x02\x4c\x01\0;",
        "",
    ),
    "a bmp that is too large": (b"BM" + bytes(12) + struct.pack("<Iii", 40, 30_000, -30_000) + bytes(28), "megapixels"),
    "a bmp without pixels": (b"BM" + bytes(12) + struct.pack("<Iii", 40, 0, 10) + bytes(28), "no pixels"),
    "a bmp of a negative width": (b"BM" + bytes(12) + struct.pack("<Iii", 40, -10, 10) + bytes(28), "no pixels"),
    "a bmp that is cut": (written("BMP", "RGB", {})[:60], "damaged"),
    "a bmp packed by runs that never end": (
        b"BM" + bytes(8) + struct.pack("<IIiiHHIIIIII", 54, 40, 6000, 6000, 1, 8, 1, 0, 0, 0, 2, 0) + b"\xff\0" * 900,
        "",
    ),
    "a tiff of itself": (b"II*\0" + struct.pack("<I", 4), "damaged"),
    "a tiff of too many tags": (tags("<", *[(256 + n, 3, 1, 5) for n in range(MOST_TAGS + 1)]), "list of tags"),
    "a tiff without a size": (tags(">", (256, 4, 1, 10)), "damaged"),
    "a tiff that is too large": (tags("<", (256, 4, 1, 2**31), (257, 4, 1, 2**31)), "megapixels"),
    "a tiff whose strips lie nowhere": (tags("<", *SIZE, (273, 4, 1, 2**31), (279, 4, 1, 2**31)), ""),
    "a tiff of one vast tile": (
        tags("<", *SIZE, (258, 3, 1, 8), (259, 3, 1, 5), (322, 4, 1, 2**30), (323, 4, 1, 2**30), (324, 4, 1, 8)),
        "",
    ),
    "a tiff of 60,000 samples": (tags("<", *SIZE, (277, 3, 1, 60_000), (273, 4, 1, 8)), ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_is_refused_in_one_line_or_within_its_memory(name):
    """Where nothing is awaited, either may be: the picture within the box's limits, or a refusal."""
    data, says = HOSTILE[name]
    said = read_or_told(data)
    assert said or not says
    assert says in said


def read_or_told(data: bytes) -> str:
    """Nothing where it could be read, else one line."""
    try:
        image = read_image(data, name="odd.file")
    except ValueError as error:
        said = str(error)
    else:
        assert image.mode == "RGB"
        return ""
    assert said.startswith("odd.file: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", ["BMP P", "GIF P", "TIFF RGB", "TIFF packed"])
def test_whatever_is_broken_is_told_in_one_line(name):
    good, chance = written(*KINDS[name]), random.Random(0)
    for _ in range(40):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(min(len(data), 200))] = chance.randrange(256)
        data = data[: chance.randint(1, len(data))] if chance.random() < 0.5 else data
        read_or_told(bytes(data))
