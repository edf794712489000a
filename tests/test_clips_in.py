"""Clips as people have them, and as nobody should: each is an answer or one clear line, and the next one works."""

import io
import json
import re
import struct
import subprocess
import sys
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc.cli import run
from arr_coc.images import clips
from arr_coc.images.clips import Clip, read_clip
from arr_coc.qwen.clips import ClipForm, each_clip

FORM = ClipForm(16, 2, 2, 4096, 1_048_576, (0.5,) * 3, (0.5,) * 3)


def drawn(frames: int, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """A white bar goes to the right over black; its place tells the frame."""
    pictures = np.zeros((frames, height, width, 3), np.uint8)
    for number, picture in enumerate(pictures):
        picture[:, : 1 + number * (width - 1) // max(1, frames - 1)] = 255
    return list(pictures)


def video(path: Path, frames=None, rate: int = 10, codec: str = "mpeg4", pixels: str = "yuv420p", times=None) -> Path:
    pictures = drawn(20) if frames is None else frames
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt, stream.gop_size = pixels, 5
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = times[number], Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def moving(path: Path, kind: str, frames: int = 6, **how) -> Path:
    pictures = [Image.fromarray(one) for one in drawn(frames)]
    pictures[0].save(path, kind, save_all=True, append_images=pictures[1:], duration=500, **how)
    return path


def bars(clip: Clip) -> list[float]:
    """Share of each frame that is white."""
    return (clip.frames_T3hw.float() / 255).mean((1, 2, 3)).tolist()


# ---------------------------------------------------------------- good ones


def test_a_file_is_sampled_as_the_stock_processor_would(tmp_path):
    clip = read_clip(video(tmp_path / "a.mp4", drawn(50), rate=10), FORM.fit)
    assert clip.seconds == pytest.approx(np.linspace(0, 49, 10).round() / 10)
    assert bars(clip) == pytest.approx([one.mean() / 255 for one in drawn(50)][::1][:: 49 // 9 or 1][:10], abs=0.12)
    assert bars(clip) == sorted(bars(clip))
    assert clip.pairs() == pytest.approx([np.mean(clip.seconds[n : n + 2]) for n in range(0, 10, 2)])
    assert len(read_clip(tmp_path / "a.mp4", FORM.fit, fps=4).seconds) == 20
    assert len(read_clip(tmp_path / "a.mp4", FORM.fit, frames=7).seconds) == 7


def test_frames_are_prepared_as_the_stock_patchify_does():
    """Its functions run without torchvision; what they give is ours, bit for bit."""
    stock = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    clip = Clip(torch.randint(0, 256, (5, 3, 64, 96), dtype=torch.uint8), (0.0, 0.5, 1.0, 1.5, 2.0))
    rows, grid = FORM.rows(clip)
    values = (clip.frames_T3hw.float() - 127.5) / 127.5
    theirs, *sizes = stock.Qwen3VLVideoProcessor.patchify(None, values[None], 16, 2, 2)
    assert grid == sizes == [3, 4, 6]
    assert torch.equal(rows, theirs[0])
    for size in ((9, 1080, 1920), (2, 30, 400), (768, 480, 640)):
        assert FORM.fit(*size) == stock.smart_resize(*size, 2, 32, 4096, 1_048_576)


@pytest.mark.parametrize("kind", ["folder", "list", "array", "tensor", "gif", "webp", "bytes", "file"])
def test_every_way_to_hand_a_clip_in_gives_the_same_frames(tmp_path, kind):
    pictures = drawn(6, 64, 64)
    if kind == "folder":
        for number, one in enumerate(pictures):
            Image.fromarray(one).save(tmp_path / f"{number:03}.png")
    frames = np.stack(pictures)
    source = {
        "folder": tmp_path,
        "list": [Image.fromarray(one) for one in pictures],
        "array": frames,
        "tensor": torch.from_numpy(frames).permute(0, 3, 1, 2),
    }.get(kind)
    if source is None:
        path, images = tmp_path / "a", [Image.fromarray(one) for one in pictures]
        form = "WEBP" if kind == "webp" else "GIF"
        images[0].save(path, form, save_all=True, append_images=images[1:], duration=500, lossless=True)
        source = {"bytes": path.read_bytes(), "file": io.BytesIO(path.read_bytes())}.get(kind, path)
    clip = read_clip(source, FORM.fit)
    assert clip.seconds == tuple(n / 2 for n in range(6))
    assert torch.equal(clip.frames_T3hw, torch.from_numpy(frames).permute(0, 3, 1, 2))


@settings(max_examples=40, deadline=None)
@given(total=st.integers(1, 5000), rate=st.floats(0.5, 120), fps=st.floats(0.1, 30))
def test_what_is_sampled_is_in_order_and_within_the_limits(total, rate, fps):
    sys.argv, before = [sys.argv[0]], sys.argv
    from arr_coc.images.clip_worker import sample

    sys.argv = before
    wanted = {"fps": fps, "frames": None, "least": clips.LEAST_FRAMES, "most": clips.MOST_FRAMES}
    found = sample(total, rate, wanted)
    assert found == sorted(set(found))
    assert min(total, clips.LEAST_FRAMES) <= len(found) <= min(total, clips.MOST_FRAMES)
    assert found[0] == 0
    assert found[-1] == total - 1 or total == 1


def test_lists_of_files_are_several_clips_and_lists_of_stills_are_one():
    stills = [tiny.picture(), tiny.picture()]
    assert list(each_clip(["a.mp4", "b.mp4"])) == ["a.mp4", "b.mp4"]
    assert list(each_clip([stills, ["1.png", "2.png"]])) == [stills, ["1.png", "2.png"]]
    assert list(each_clip([[], ["a.mp4", stills]])) == ["a.mp4", stills]
    assert list(each_clip(None)) == []


# ---------------------------------------------------------------- hostile ones


def boxes(data: bytes, name: bytes) -> int:
    return data.index(name) + 4


def turned(path: Path) -> Path:
    """The track's matrix turns it by 90 degrees."""
    data = bytearray(video(path).read_bytes())
    at = boxes(data, b"tkhd") + 4 + 36
    data[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def lying(path: Path) -> Path:
    """Its header tells of years, and of frames of 65535 px."""
    data = bytearray(video(path).read_bytes())
    at = boxes(data, b"mvhd") + 16
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    at = boxes(data, b"mp4v") + 24
    data[at : at + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    return path


def sound(path: Path) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
        file.writeframes(bytes(8000))
    return path


def shrinking(path: Path) -> Path:
    """Pictures of changing size, one after the other."""
    path.write_bytes(b"".join(jpeg(48 + 16 * n, 64) for n in range(6)))
    return path


def jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 10, 10)).save(file, "JPEG")
    return file.getvalue()


def part(path: Path, share: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def huge_gif(path: Path) -> Path:
    data = bytearray(moving(path, "GIF").read_bytes())
    data[6:10] = struct.pack("<HH", 60000, 60000)
    return written(path, bytes(data))


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:///etc/hostname\n#EXT-X-ENDLIST\n"
THREAD = [np.zeros((2, 1000, 3), np.uint8)] * 4
HOSTILE = {
    "text": (lambda p: written(p / "a.mp4", b"this is no video\n" * 50), "not a video"),
    "nothing": (lambda p: written(p / "a.mp4", b""), "not a video|no frames|no video"),
    "noise": (lambda p: written(p / "a.mp4", np.random.default_rng(0).bytes(50_000)), "."),
    "a picture": (lambda p: written(p / "a.mp4", jpeg(64, 48)), 2),
    "a playlist": (lambda p: written(p / "a.mp4", PLAYLIST), "not a video|no video|no frames"),
    "a list of files": (lambda p: written(p / "a.mkv", b"ffconcat version 1.0\nfile '/etc/hostname'\n"), "not a video"),
    "cut before its table": (lambda p: part(video(p / "a.mp4"), 0.6), "not a video|no video"),
    "cut in the middle": (lambda p: part(video(p / "a.mkv"), 0.6), (2, 20)),
    "sound alone": (lambda p: sound(p / "a.avi"), "no video in it"),
    "one frame": (lambda p: video(p / "a.mp4", drawn(1)), 2),
    "two frames": (lambda p: video(p / "a.mp4", drawn(2)), 2),
    "ten thousand frames": (lambda p: video(p / "a.mp4", drawn(2, 32, 32) * 5000, rate=30), (600, 768)),
    "8K": (lambda p: video(p / "a.mkv", drawn(2, 7680, 4320), codec="mjpeg", pixels="yuvj420p"), 2),
    "changing size": (lambda p: shrinking(p / "a.mjpeg"), (4, 6)),
    "uneven times": (lambda p: video(p / "a.mkv", times=[n * n for n in range(20)], rate=25), (4, 40)),
    "ten bits": (lambda p: video(p / "a.mkv", codec="ffv1", pixels="yuv422p10le"), 4),
    "grey of sixteen bits": (lambda p: video(p / "a.mkv", codec="ffv1", pixels="gray16le"), 4),
    "turned": (lambda p: turned(p / "a.mp4"), 4),
    "a lying header": (lambda p: lying(p / "a.mp4"), "(?s)."),
    "a still gif": (lambda p: moving(p / "a.gif", "GIF", 1), 2),
    "half a gif": (lambda p: part(moving(p / "a.gif", "GIF", 20), 0.5), "(?s)."),
    "a gif like a wall": (lambda p: huge_gif(p / "a.gif"), "60000x60000"),
    "half a webp": (lambda p: part(moving(p / "a.webp", "WEBP", 12), 0.5), "(?s)."),
    "a thread": (lambda p: video(p / "a.mkv", THREAD, codec="ffv1", pixels="bgr0"), "200"),
    "an empty folder": (lambda p: p, "no frames"),
    "a folder that is not there": (lambda p: p / "nowhere.mp4", "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_an_answer_or_one_line(tmp_path, name):
    """A number, or two: so many frames. A text: what the line says, where it is refused; "(?s).": either will do."""
    make, expected = HOSTILE[name]
    source = make(tmp_path)
    clip = refused = None
    try:
        clip = read_clip(source, FORM.fit)
    except ValueError as error:
        refused = str(error)
    if clip is None:
        assert isinstance(expected, str), refused
        assert re.search(expected, refused)
        assert "\n" not in refused
        assert str(tmp_path) not in refused
        return
    assert not isinstance(expected, str) or expected == "(?s)."
    least, most = expected if isinstance(expected, tuple) else (expected, expected)
    if not isinstance(expected, str):
        assert least <= len(clip.seconds) <= most
    assert clip.frames_T3hw.shape[0] * clip.frames_T3hw[0, 0].numel() <= 1_048_576
    assert list(clip.seconds) == sorted(clip.seconds)


def test_a_turned_clip_is_set_upright(tmp_path):
    upright, turn = (read_clip(one, FORM.fit) for one in (video(tmp_path / "a.mp4"), turned(tmp_path / "b.mp4")))
    assert upright.frames_T3hw.shape[2:] == turn.frames_T3hw.shape[:1:-1]
    assert bars(turn) == pytest.approx(bars(upright), abs=0.06)


@pytest.mark.parametrize(
    ("source", "how", "match"),
    [
        ([], {}, "has no frames"),
        (np.zeros((3, 4, 4)), {}, "cannot read a ndarray as a clip"),
        (np.full((4, 32, 32, 3), 7.0), {}, "fractions"),
        (3, {}, "cannot read a int as a clip"),
        ([tiny.picture()], {"fps": 1, "frames": 2}, "give one of them"),
        ([tiny.picture()], {"fps": 0}, "above 0"),
        ([tiny.picture()], {"frames": 10_000}, "1 to 768"),
        ("https://example.com/a.mp4", {}, "not fetched"),
    ],
)
def test_mistakes_are_told_in_one_line(source, how, match):
    with pytest.raises(ValueError, match=match):
        read_clip(source, FORM.fit, **how)


def test_a_decoder_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(clips, "WORKER", written(tmp_path / "w.py", b"import time\ntime.sleep(600)\n"))
    monkeypatch.setattr(clips, "DEADLINE", 0.2)
    with pytest.raises(ValueError, match="takes too long"):
        read_clip(video(tmp_path / "a.mp4"), FORM.fit)


def test_without_pyav_a_gif_is_read_and_a_video_names_the_extra(tmp_path):
    wanted = {"fps": 2, "frames": None, "least": 4, "most": 768, "path": str(video(tmp_path / "a.mp4"))}
    code = (
        f"import sys; sys.modules['av'] = None; sys.argv = ['w', {json.dumps(wanted)!r}]\n" + clips.WORKER.read_text()
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert "arr-coc[video]" in json.loads(said)["refused"]


def test_the_command_answers_about_a_clip_and_goes_on_after_a_bad_one(tmp_path, capsys):
    ask = ["ask", str(video(tmp_path / "a.mp4")), "What moves?", "--keep", "0.2", "--frames", "8"]
    assert run.run([*ask, "--json", "--overlay", str(tmp_path / "why.gif"), "-q"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["clip"] for one in said["images"]] == [0] * 4
    assert [one["seconds"] for one in said["images"]] == sorted(one["seconds"] for one in said["images"])
    assert Image.open(tmp_path / "why.gif").n_frames == 8
    assert run.run(["ask", str(written(tmp_path / "b.mp4", b"no")), "What moves?", "-q"]) == 3
    assert "b.mp4: not a video" in capsys.readouterr().err
    assert run.run([*ask, "--overlay", str(tmp_path / "why.png"), "-q"]) == 0
    assert Image.open(tmp_path / "why.png").width > 600
