"""WebP through the plain decoder of libwebp: the same pixels as in Pillow's own way, for good files and broken ones."""

import io
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc.images import reader as images
from arr_coc.images import webp
from arr_coc.images.headers import Damaged, read_header
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


def ours(data: bytes) -> np.ndarray:
    header = read_header(io.BytesIO(data))
    return np.asarray(images._upright_rgb(webp.read_webp(data, (header.width, header.height)), ours=True))


def pillows(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data), formats=("WEBP",)) as image:
        return np.asarray(images._upright_rgb(image, ours=True))


def test_the_library_is_found_where_pillow_comes_with_it():
    assert webp.libwebp() is not None


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(KINDS),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.integers(0, 2**20),
    st.sampled_from([0, 4, 6]),
    st.sampled_from([0, 60, 100]),
    st.booleans(),
)
def test_pixels_are_pillows(kind, size, seed, method, quality, exact):
    data = made(kind, size, seed, method=method, quality=quality, exact=exact)
    assert np.array_equal(ours(data), pillows(data))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "animated" in kind])
def test_a_first_frame_lies_where_it_belongs(kind):
    data = on_larger_canvas(made(kind), (70, 60), (6, 10))
    assert ours(data).shape == (60, 70, 3)
    assert np.array_equal(ours(data), pillows(data))
    with pytest.raises(Damaged, match="sizes contradict"):
        ours(on_larger_canvas(made(kind), (52, 60), (6, 10)))


@pytest.mark.parametrize("kind", KINDS)
def test_orientation_and_what_is_no_picture(kind):
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        data = made(kind, exif=exif, icc_profile=b"junk" * 9)
        assert np.array_equal(ours(data), pillows(data)), orientation
    told_otherwise = made(kind, xmp=b'<rdf:Description tiff:Orientation="6"/>')
    assert ours(told_otherwise).shape == (50, 37, 3)
    unannounced = bytearray(told_otherwise)
    unannounced[20] &= ~0x04
    assert ours(bytes(unannounced)).shape == (37, 50, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_are_refused_or_read_as_pillow_reads_them(kind):
    good, rng = made(kind), random.Random(kind)
    for end in (*range(12, 90), *range(90, len(good), 97), len(good) - 1):
        with pytest.raises(Damaged):
            ours(good[:end])
    taken = 0
    for _ in range(200):
        bits = bytearray(good)
        for _ in range(2 ** rng.randrange(5)):
            bits[rng.randrange(20, len(bits))] ^= 1 << rng.randrange(8)
        try:
            values = ours(bytes(bits))
        except Damaged:
            continue
        try:
            expected = pillows(bytes(bits))
        except OSError:
            continue  # a later frame is broken, which is none of ours
        assert np.array_equal(values, expected)
        taken += 1
    assert taken >= 3


def test_transparency_counts_only_where_the_file_announces_it():
    for kind in ("lossy alpha", "animated alpha", "animated lossless alpha"):
        data = bytearray(made(kind))
        data[20] ^= 0x10
        assert np.array_equal(ours(bytes(data)), pillows(bytes(data))), kind


def test_too_many_chunks_and_no_picture():
    good = made("lossy alpha")
    many = good + b"teSt\0\0\0\0" * 30_000
    with pytest.raises(Damaged, match="too many chunks"):
        ours(many[:4] + (len(many) - 8).to_bytes(4, "little") + many[8:])
    for kind in ("lossy alpha", "animated"):
        with pytest.raises(Damaged, match=r"no picture|sizes contradict"):
            ours(made(kind).replace(b"VP8 ", b"VP8_").replace(b"ANMF", b"ANM_"))


def test_threads_do_not_disturb_each_other():
    files = [made(kind, (300, 200), seed) for seed, kind in enumerate(KINDS * 3)]
    alone = [ours(data) for data in files]
    with ThreadPoolExecutor(8) as pool:
        for values, expected in zip(pool.map(ours, files * 4), alone * 4, strict=True):
            assert np.array_equal(values, expected)


def test_without_the_library_pillow_reads_and_large_ones_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.webp"
    path.write_bytes(made("lossy alpha"))
    expected = np.asarray(read_image(path))
    monkeypatch.setattr(images, "libwebp", lambda: None)
    assert np.array_equal(np.asarray(read_image(path)), expected)
    monkeypatch.setattr(images, "MOST_PIXELS", 3_000)
    with pytest.raises(ValueError, match="50x37 is too large for a WebP here; save it as PNG or JPEG"):
        read_image(path)


def test_a_pillow_with_libwebp_inside_of_it_is_seen(monkeypatch):
    monkeypatch.setitem(webp._SIGNATURES, "NoSuchFunction", (None, []))
    assert webp.libwebp.__wrapped__() is None
