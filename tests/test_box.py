"""The process that decodes: the same pixels, limits that hold, and nothing lost when it dies."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
from attacks import images as attacks
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc.images import box, reader
from arr_coc.images.headers import one_line, orientation_of, read_header
from arr_coc.images.reader import read_image, read_images

WAYS = [
    ("png", "RGB", {}), ("png", "RGBA", {}), ("png", "LA", {}), ("png", "P", {}), ("png", "1", {}), ("png", "I;16", {}),
    ("jpeg", "RGB", {}), ("jpeg", "L", {}), ("jpeg", "CMYK", {}), ("jpeg", "RGB", {"progressive": True}),
    ("webp", "RGB", {}), ("webp", "RGBA", {}), ("webp", "RGBA", {"lossless": True}),
]  # fmt: skip


def made(kind: str, mode: str = "RGB", size: tuple[int, int] = (60, 40), **options: object) -> bytes:
    noise = np.random.default_rng(size).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    image = Image.fromarray(noise[..., 0].astype(np.uint16) * 250) if mode == "I;16" else Image.fromarray(noise)
    file = io.BytesIO()
    (image if mode == "I;16" else image.convert("RGBA" if "A" in mode else "RGB").convert(mode)).save(
        file, kind, **options
    )
    return file.getvalue()


@pytest.fixture
def own_box(monkeypatch):
    """A box without processes, ended after the test."""
    fresh = box.DecodingBox()
    monkeypatch.setattr(box, "BOX", fresh)
    yield fresh
    fresh.close()


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(WAYS), st.tuples(st.integers(1, 90), st.integers(1, 90)), st.integers(0, 9), st.integers(100, 9_000)
)
def test_the_box_gives_the_same_pixels_whatever_the_strips(way, size, orientation, strip):
    kind, mode, options = way
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = made(kind, mode, size, **options, exif=exif)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arr_coc.images.decoding.STRIP", strip)
        here = np.asarray(read_image(data))
    there = np.asarray(read_image(data, boxed=True))
    assert np.array_equal(here, there)
    assert here.shape[:2] == (size[::-1] if orientation < 5 or orientation > 8 else size)


def test_what_is_boxed(own_box, monkeypatch):
    """Ordinary images are decoded here at no cost; what is packed tightly, lossless WebP, and all on request: there."""
    boxed = []
    monkeypatch.setattr(own_box, "decode", lambda picture, name: boxed.append(name) or Image.new("RGB", (1, 1)))
    for kind, mode, options in WAYS:
        before = len(boxed)
        read_image(made(kind, mode, (300, 200), **options))
        assert (len(boxed) > before) == (kind == "webp" and mode == "RGBA"), (kind, mode)
        read_image(made(kind, mode, **options), boxed=True)
    packed = io.BytesIO()
    Image.new("RGB", (2_000, 2_000)).save(packed, "png")
    before = len(boxed)
    read_image(packed.getvalue())
    assert len(boxed) == before + 1


def test_tables_that_no_header_tells_of_are_refused(own_box):
    """340 MB for a picture of 4: the system says no, and the process lives on."""
    first = read_image(made("png"), boxed=True)
    worker = own_box._idle[0].pid
    with pytest.raises(ValueError, match=r"^the image: .*; .+$"):
        read_image(attacks.make("lossless", 4).data)
    assert np.array_equal(np.asarray(read_image(made("png"), boxed=True)), np.asarray(first))
    assert own_box._idle[0].pid == worker


def test_a_process_that_dies_takes_one_image_with_it(own_box, monkeypatch):
    good = np.asarray(read_image(made("png"), boxed=True))
    monkeypatch.setattr(box.json, "loads", lambda line: own_box_kills())

    def own_box_kills():
        raise EOFError

    with pytest.raises(ValueError, match="takes too long, or too much memory; save it as a plain PNG or JPEG"):
        read_image(made("png"), boxed=True)
    assert own_box._idle == []
    monkeypatch.undo()
    monkeypatch.setattr(box, "BOX", own_box)
    assert np.array_equal(np.asarray(read_image(made("png"), boxed=True)), good)
    os.kill(own_box._idle[0].pid, signal.SIGKILL)
    own_box._idle[0].wait()
    assert np.array_equal(np.asarray(read_image(made("png"), boxed=True)), good), "one that died while it waited"


def test_one_that_never_answers_is_ended(own_box, monkeypatch, tmp_path):
    (tmp_path / "worker.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(box, "WORKER", tmp_path / "worker.py")
    monkeypatch.setattr(box, "DEADLINE", 0.3)
    with pytest.raises(ValueError, match="takes too long"):
        read_image(made("png"), boxed=True)
    assert own_box._idle == []


def test_no_more_than_so_many_at_a_time(own_box, monkeypatch):
    data = made("jpeg", size=(300, 300))
    alone = np.asarray(read_image(data))
    with ThreadPoolExecutor(12) as pool:
        for image in pool.map(lambda _: read_image(data, boxed=True), range(60)):
            assert np.array_equal(np.asarray(image), alone)
    assert 1 <= len(own_box._idle) <= box.MOST_WORKERS
    monkeypatch.setattr(box, "PATIENCE", 0.05)
    monkeypatch.setattr(box, "LARGE", 300 * 300 - 1)
    for _ in range(box.MOST_WORKERS):
        own_box._rooms[0].acquire()
    with pytest.raises(ValueError, match="too many images are being decoded; ask again"):
        read_image(data, boxed=True)
    assert read_image(made("png"), boxed=True).size == (60, 40), "a small one waits for no large one"


def in_worker(code: str) -> subprocess.CompletedProcess:
    """Code run as the process is: isolated, without site, its folders on the path."""
    start = f"import sys; sys.path += {sorted(box.FOLDERS)}; import arr_coc.images.worker as worker\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_cpu_time_ends():
    done = in_worker("worker.CPU_SECONDS = 0.2\nworker.limit(10**9)\nwhile True: pass")
    assert done.returncode == -signal.SIGPROF


def test_memory_ends():
    done = in_worker("worker.limit(50_000_000)\nbytes(10_000_000)\nbytes(60_000_000)")
    assert done.stderr.strip().endswith("MemoryError")


def test_it_imports_pillow_alone():
    done = in_worker("print(*sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names))")
    assert done.stdout.split() == ["PIL", "__main__", "arr_coc"] or done.stdout.split() == ["PIL", "arr_coc"]


def test_a_child_does_not_talk_to_its_parents_processes():
    read_image(made("png"), boxed=True)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            fresh = box.BOX._idle == []
            os.write(writing, b"%d %d" % (fresh, read_image(made("jpeg"), boxed=True).size == (60, 40)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 99) == b"1 1"
    assert read_image(made("webp"), boxed=True).size == (60, 40)


def test_no_process_is_left_behind(tmp_path):
    """Neither by a process that ends, nor by one that is killed."""
    (tmp_path / "a.png").write_bytes(made("png"))
    code = (
        "import os, sys; from arr_coc.images import box; from arr_coc.images.reader import read_image\n"
        "read_image(sys.argv[1], boxed=True); print(box.BOX._idle[0].pid, flush=True)\n"
        "sys.argv[2] == 'killed' and os.kill(os.getpid(), 9)"
    )
    for how in ("ended", "killed"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "a.png"), how],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr == ""
        for _ in range(100):
            if not Path(f"/proc/{done.stdout.strip()}/cmdline").exists():
                break
            signal.sigtimedwait([], 0.05)
        else:
            pytest.fail("it is still there")


# ---------------------------------------------------------------- what is read by hand


class Watched(io.BytesIO):
    """A file that knows the most that was asked for at once: room would be made for it."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        self.most = max(self.most, size or 0)
        return super().read(size)


@pytest.mark.parametrize("kind", ["IDAT", "eXIf", "tEXt", "EXIF", "VP8L", "ANMF"])
def test_what_a_chunk_claims_is_not_believed(kind):
    if kind in ("EXIF", "VP8L", "ANMF"):
        data = made("webp", "RGBA", lossless=True) + kind.encode() + b"\xff\xff\xff\xff" + bytes(20)
    else:
        data = attacks.with_chunks(made("png"), attacks.chunk(kind.encode(), b"", length=2**32 - 5))
    file = Watched(data)
    with contextlib.suppress(ValueError):
        read_header(file)
    assert 0 < file.most <= 2**25 + 8


@pytest.mark.parametrize("examples", [300, pytest.param(30_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_no_change_of_a_file_breaks_what_walks_it(examples):
    """Bytes put in, taken out and changed: a picture of a bearable size or a refusal, and never more than the file."""

    @settings(deadline=None, max_examples=examples, database=None)
    @given(
        st.sampled_from(WAYS),
        st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=8), st.integers(0, 8)), max_size=4),
    )
    def walk(way, changes):
        kind, mode, options = way
        data = made(kind, mode, (30, 20), **options)
        for place, new, old in changes:
            data = data[:place] + new + data[place + old :]
        file, picture = Watched(data), None
        with contextlib.suppress(ValueError), one_line("x"):
            picture = read_header(file)
        assert file.most <= 2**25 + 8
        assert picture is None or picture.file.getbuffer().nbytes <= len(data)
        assert picture is None or picture.file.tell() == 0

    walk()


def test_an_arithmetic_jpeg_is_told_apart_from_a_damaged_one():
    with pytest.raises(ValueError, match=r"arithmetic-coded, lossless or hierarchical\); convert it first"):
        read_image(attacks.make("arithmetic", 15).data)


def test_a_webp_in_too_many_pieces_is_refused():
    with pytest.raises(ValueError, match=r"cut into too many chunks\); export it again"):
        read_image(made("webp") + (b"JUNK" + bytes(4)) * 30_000)


@given(st.sampled_from("<>"), st.sampled_from([1, 3, 4]), st.integers(0, 255), st.integers(0, 5))
def test_the_orientation_is_where_it_stands(order, kind, value, before):
    import struct

    number = struct.pack(order + {1: "B3x", 3: "H2x", 4: "I"}[kind], value)
    tags = [struct.pack(f"{order}HHI", 0x0100 + n, 3, 1) + b"\7\0\0\0" for n in range(before)]
    tags.append(struct.pack(f"{order}HHI", 0x0112, kind, 1) + number)
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(tags))
    assert orientation_of(b"Exif\0\0" + head + b"".join(tags)) == value
    assert orientation_of(head + b"".join(tags)) == value
    assert orientation_of(head + b"".join(tags)[:-9]) == 0


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data):
    for start in (b"", b"II*\0", b"MM\0*", b"Exif\0\0II*\0\x08\0\0\0"):
        assert 0 <= orientation_of(start + data) < 2**32


def test_what_belongs_to_the_file_is_let_go():
    for kind in ("jpeg", "png", "webp"):
        file = io.BytesIO()
        tiny.picture(64, 64).save(file, kind, exif=b"Exif\0\0" + bytes(9_000), icc_profile=b"p" * 9_000)
        assert len(read_header(io.BytesIO(file.getvalue())).file.getvalue()) < len(file.getvalue()) - 8_000
        image = read_image(file.getvalue())
        assert not {"exif", "icc_profile", "xmp"} & set(image.info)
        assert type(image) is Image.Image


def test_pixels_of_all_images_together_are_bounded(monkeypatch):
    monkeypatch.setattr(reader, "MOST_PIXELS_IN_ALL", 3 * 64 * 64)
    picture = tiny.picture(64, 64)
    assert len(read_images([picture] * 3)) == 3
    with pytest.raises(ValueError, match=r"^image 4 of 5: over 0 megapixels in all; resize them first$"):
        read_images([picture] * 5)
