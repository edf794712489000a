"""WebP through Pillow: what it must be able to read, how large a file may be, and what broken ones become."""

import io
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc.images import headers, reader
from arr_coc.images.reader import read_image

KINDS = ["lossy", "lossy alpha", "lossless", "lossless alpha", "animated", "animated alpha", "animated lossless alpha"]


def picture(seed: int, size: tuple[int, int], mode: str) -> Image.Image:
    """Soft blobs: their transparency makes libwebp use each of its ways to store it."""
    coarse = np.random.default_rng(seed).integers(0, 256, (1 + size[1] // 6, 1 + size[0] // 6, 4), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)


def made(kind: str, size: tuple[int, int] = (50, 37), seed: int = 0, **options: object) -> bytes:
    first, *more = (picture(seed + n, size, "RGBA" if "alpha" in kind else "RGB") for n in range(3))
    file = io.BytesIO()
    frames = {"save_all": True, "append_images": more} if "animated" in kind else {}
    first.save(file, "webp", lossless="lossless" in kind, **frames, **options)
    return file.getvalue()


def on_larger_canvas(data: bytes, size: tuple[int, int], corner: tuple[int, int]) -> bytes:
    """An animation whose first frame covers a part of the canvas only; corners are even."""
    changed, frame = bytearray(data), data.index(b"ANMF") + 8
    changed[24:30] = (size[0] - 1).to_bytes(3, "little") + (size[1] - 1).to_bytes(3, "little")
    changed[frame : frame + 6] = (corner[0] // 2).to_bytes(3, "little") + (corner[1] // 2).to_bytes(3, "little")
    return bytes(changed)


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("webp") / "a.webp"


def ours(data: bytes, file: Path) -> np.ndarray:
    file.write_bytes(data)
    return np.asarray(read_image(file))


def pillows(data: bytes) -> np.ndarray:
    """The first frame on white."""
    with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
        clear = image.convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB"))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(0, 2**20),
    st.sampled_from([0, 4, 6]),
    st.sampled_from([0, 60, 100]),
    st.booleans(),
)
def test_pixels_are_pillows(file, kind, size, seed, method, quality, exact):
    data = made(kind, size, seed, method=method, quality=quality, exact=exact)
    assert np.array_equal(ours(data, file), pillows(data))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "animated" in kind])
def test_a_first_frame_lies_where_it_belongs(file, kind):
    data = on_larger_canvas(made(kind), (70, 60), (6, 10))
    assert ours(data, file).shape == (60, 70, 3)
    assert np.array_equal(ours(data, file), pillows(data))
    with pytest.raises(ValueError, match="damaged"):
        ours(on_larger_canvas(made(kind), (52, 60), (6, 10)), file)


@pytest.mark.parametrize("kind", KINDS)
def test_orientation_and_what_is_no_picture(file, kind):
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        assert ours(made(kind, exif=exif, icc_profile=b"junk" * 9), file).shape[:2] == (
            (37, 50) if orientation < 5 else (50, 37)
        )
    told_otherwise = made(kind, xmp=b'<rdf:Description tiff:Orientation="6"/>')
    assert ours(told_otherwise, file).shape == (50, 37, 3)
    unannounced = bytearray(told_otherwise)
    unannounced[20] &= ~0x04
    assert ours(bytes(unannounced), file).shape == (37, 50, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_are_refused_in_one_line_or_read(file, kind):
    good, rng = made(kind), random.Random(kind)
    for end in (*range(12, 90), *range(90, len(good), 97), len(good) - 1):
        with pytest.raises(ValueError, match=r"^a\.webp: the image is damaged \([^/\n]*\); export it again$"):
            ours(good[:end], file)
    for _ in range(200):
        bits = bytearray(good)
        for _ in range(2 ** rng.randrange(5)):
            bits[rng.randrange(20, len(bits))] ^= 1 << rng.randrange(8)
        said = ""
        try:
            assert ours(bytes(bits), file).shape[2] == 3
        except ValueError as error:
            said = str(error)
        assert not said or said.startswith("a.webp: ")
        assert "\n" not in said


def test_threads_do_not_disturb_each_other(tmp_path):
    files = [tmp_path / f"{seed}.webp" for seed in range(3 * len(KINDS))]
    alone = [ours(made(kind, (300, 200), seed), files[seed]) for seed, kind in enumerate(KINDS * 3)]
    with ThreadPoolExecutor(8) as pool:
        for image, expected in zip(pool.map(read_image, files * 4), alone * 4, strict=True):
            assert np.array_equal(np.asarray(image), expected)


def test_the_largest_is_read_and_a_larger_one_refused(file, monkeypatch):
    """12 bytes a pixel, 17 where transparency is stored apart: 4 and 9 more than any image may take."""
    for kind, more in (("lossy", 4), ("lossless alpha", 4), ("animated", 4), ("lossy alpha", 9), ("animated alpha", 9)):
        data = made(kind)
        monkeypatch.setattr(headers, "MOST_BESIDE", 50 * 37 * more)
        assert ours(data, file).shape == (37, 50, 3)
        monkeypatch.setattr(headers, "MOST_BESIDE", 50 * 37 * more - 1)
        with pytest.raises(
            ValueError, match=r"^a\.webp: 50x37 is too large for such a WebP, .*; save it as PNG or JPEG$"
        ):
            ours(data, file)


def test_the_limit_is_read_off_the_header_before_anything_is_decoded(file, monkeypatch):
    """3.003 megapixels, whatever the file holds."""
    monkeypatch.setattr(reader.Image, "open", lambda *_, **__: pytest.fail("a decoder was called"))
    start = b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0"
    large = start + (2_002 - 1).to_bytes(3, "little") + (1_500 - 1).to_bytes(3, "little") + b"\0" * 40
    with pytest.raises(ValueError, match=r"2002x1500 is too large for such a WebP, at most 3\.0 megapixels"):
        ours(large, file)
