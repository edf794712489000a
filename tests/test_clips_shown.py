"""What a person sees of a clip, as it is called: show, compare and chat, the animation, the budget over time."""

import csv
import io
import json
import sys

import av
import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from test_clips_in import moving, part, video, written

from arr_coc.cli import loading, typed
from arr_coc.cli.loading import load
from arr_coc.cli.run import run
from arr_coc.images.clips import Clip, is_played, read_clip
from arr_coc.images.reader import read_image
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing import clips as viewing

QUESTION = "What moves?"


@pytest.fixture(scope="module")
def mini():
    return load("mini")


@pytest.fixture
def loaded(mini, monkeypatch):
    """One model for all commands of this file; it is as it was after each."""
    before = mini.selector
    monkeypatch.setattr(loading, "load", lambda *_, **__: mini)
    yield mini
    mini.selector, mini.break_even = before, None


def table(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def selection(kept: int = 3, cut: bool = False, covered: int = 0, clip: int | None = 0) -> ImageSelection:
    marks = torch.arange(kept) < covered
    how = {"covered": marks, "clip": clip, "seconds": 0.25, "cut": cut}
    return ImageSelection((2, 2), torch.arange(kept), None, {}, {}, {}, "relevance", "the best", **how)


def clip(frames: int = 4, width: int = 64, height: int = 64) -> Clip:
    return Clip(torch.zeros(frames, 3, height, width, dtype=torch.uint8), tuple(n / 2 for n in range(frames)))


# ---------------------------------------------------------------- what is a clip


def test_a_gif_or_webp_is_a_clip_where_it_has_several_frames(tmp_path):
    for kind in ("GIF", "WEBP"):
        moves, still = (moving(tmp_path / f"{n}.{kind.lower()}", kind, n, loop=0) for n in (6, 1))
        assert is_played(moves)
        assert not is_played(still)
        assert read_image(moves).size == (64, 48)  # as an image it is its first frame, as ever
        assert not is_played(part(moves, 0.2))
    assert not is_played(tmp_path / "nowhere.gif")
    assert [is_played(tmp_path / name) for name in ("a.mp4", "a.png", "")] == [True, False, True]


def test_no_more_frames_are_looked_at_than_are_allowed(tmp_path):
    fit = lambda frames, height, width: (height, width)  # noqa: E731
    for source in (video(tmp_path / "a.mp4"), [tiny.picture(64, 48)] * 20):
        assert len(read_clip(source, fit, fps=10, most=6).seconds) == 6


# ---------------------------------------------------------------- the verbs


def test_show_writes_what_a_clip_has_and_tells_of_every_moment(loaded, tmp_path, capsys):
    source, out = video(tmp_path / "a.mp4"), tmp_path / "why"
    arguments = ["show", str(source), QUESTION, "--out", str(out), "--keep", "0.25", "--frames", "8"]
    assert run(arguments) == 0
    files = [out / name for name in ("strip.png", "animation.gif", "budget.png", "moments.csv", "tokens.csv")]
    said, err = capsys.readouterr()
    assert said.splitlines() == [str(file) for file in files]
    assert "answer: " in err
    moments, cells = table(files[3]), table(files[4])
    assert [row["moment"] for row in moments] == list("0123")
    kept = [sum(row["kept"] == "True" for row in cells if row["moment"] == one["moment"]) for one in moments]
    assert [int(one["kept"]) for one in moments] == kept
    assert sum(kept) == round(0.25 * len(cells))
    assert Image.open(files[1]).n_frames == 8
    assert run([*arguments, "--only", "animation", "--only", "moments"]) == 0  # its own are written over
    capsys.readouterr()
    moving(files[1], "GIF")
    assert run([*arguments, "--only", "animation"]) == 3
    assert "arr-coc did not make" in capsys.readouterr().err


def test_what_is_asked_of_a_clip_is_chosen_as_ask_chooses(loaded, tmp_path):
    """Not by what learned from images alone."""
    source = moving(tmp_path / "a.gif", "GIF")
    assert run(["show", str(source), QUESTION, "--out", str(tmp_path), "--keep", "7", "--only", "tokens", "-q"]) == 0
    kept = [(int(row["moment"]), int(row["index"])) for row in table(tmp_path / "tokens.csv") if row["kept"] == "True"]
    loaded.break_even = None
    choices = loaded.choose(None, QUESTION, keep=7, video=str(source))
    assert kept == [(n, cell) for n, one in enumerate(choices) for cell in one.kept.tolist()]


def test_compare_answers_about_a_clip_at_each_budget(loaded, tmp_path, capsys):
    arguments = ["compare", str(moving(tmp_path / "a.gif", "GIF")), QUESTION, "--keep", "0.2", "--keep", "1.0"]
    how = ["--selector", "auto", "--selector", "even_grid", "--max-new-tokens", "4", "--frames", "4"]
    assert run([*arguments, *how, "--json", "--out", str(tmp_path / "out")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["selector"] for row in rows] == ["look_twice", "even_grid", "plain"]
    assert [row["tokens_kept"] for row in rows] == [round(0.2 * rows[0]["tokens_total"])] * 2 + [
        rows[0]["tokens_total"]
    ]
    assert all(row["total_ms"] > 0 for row in rows)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(files) == 5
    sheet, one = (Image.open(tmp_path / "out" / name) for name in ("sheet.png", files[0]))
    assert sheet.height > 2 * one.height


def test_chat_talks_about_a_clip(loaded, monkeypatch, tmp_path, capsys):
    source, other = video(tmp_path / "a.mp4"), tmp_path / "b.png"
    tiny.picture(64, 64).save(other)
    bad = written(tmp_path / "bad.mp4", b"no")
    lines = [QUESTION, f"/overlay {tmp_path / 'why.mp4'}", "/keep 0.5", QUESTION, f"/image {bad}", QUESTION]
    lines += [f"/image {other}", QUESTION, f"/overlay {tmp_path / 'no.mp4'}", f"/image {source} {other}", QUESTION]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert run(["chat", str(source), "--keep", "0.25", "--frames", "8", "--max-new-tokens", "4"]) == 3
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5
    assert "bad.mp4: not a video" in err
    assert "no.mp4: an overlay is a picture; end its name in .png, .jpg, .jpeg, .webp" in err
    tokens = [int(line.split()[2]) for line in err.splitlines() if line.startswith("visual tokens")]
    assert tokens[0] == tokens[1] == tokens[2]  # what was talked about is still there after a bad one
    assert tokens[4] == tokens[0] + tokens[3]
    assert (tmp_path / "why.mp4").stat().st_size > 1000


@pytest.mark.parametrize("verb", ["ask", "show", "compare"])
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("bad.mp4", [], "bad.mp4: not a video"),
        ("nowhere.mp4", [], "no such video file"),
        ("photo.png", ["--fps", "2"], "--fps and --frames are of a video"),
        ("a.gif", ["--fps", "2", "--frames", "3"], "give one of them"),
        ("a.gif", ["--frames", "0"], "1 to 768"),
        ("empty", [], "no frames"),
    ],
)
def test_a_mistake_about_a_clip_is_one_line(loaded, verb, name, options, says, tmp_path, capsys):
    written(tmp_path / "bad.mp4", b"this is no video")
    moving(tmp_path / "a.gif", "GIF")
    tiny.picture(64, 64).save(tmp_path / "photo.png")
    (tmp_path / "empty").mkdir()
    assert run([verb, str(tmp_path / name), QUESTION, *options]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err


def test_only_what_a_clip_has_can_be_asked_for(loaded, tmp_path, capsys):
    source = str(moving(tmp_path / "a.gif", "GIF"))
    assert run(["show", source, QUESTION, "--out", str(tmp_path), "--only", "slider"]) == 3
    assert "expected one of strip, animation" in capsys.readouterr().err
    assert run(["textures", str(video(tmp_path / "a.mp4")), "--out", str(tmp_path)]) == 3
    assert "arr-coc ask, show, compare and chat take it" in capsys.readouterr().err


def test_a_video_is_not_begun_where_it_cannot_be_written(tmp_path, monkeypatch):
    source = [moving(tmp_path / "a.gif", "GIF")]
    typed.check_picture(tmp_path / "why.mp4", source)
    monkeypatch.setattr(typed, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'arr-coc\[video\]'"):
        typed.check_picture(tmp_path / "why.mp4", source)


# ---------------------------------------------------------------- pictures


def test_a_video_shows_every_frame_for_its_time():
    colours = [(200, 30, 30), (30, 160, 30), (30, 30, 200)]
    data = viewing.mp4([Image.new("RGB", (64, 48), one) for one in colours], [300, 1000, 200])
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        shown = [
            (float(one.pts * stream.time_base), one.to_ndarray(format="rgb24")) for one in container.decode(stream)
        ]
    assert [round(at, 3) for at, _ in shown] == [n / 10 for n in range(15)]
    for at, pixels in shown:
        wanted = colours[0 if at < 0.29 else 1 if at < 1.29 else 2]
        assert np.abs(pixels.reshape(-1, 3).mean(0) - wanted).max() < 12


def test_clips_are_shown_after_each_other_and_images_beside_them(tmp_path):
    shown = [tiny.picture(64, 64), clip(4), clip(2, 96, 64)]
    choices = [selection(clip=None), selection(), selection(cut=True), selection(clip=1)]
    answer = Answer.of("it", choices, {}, None)
    viewing.save_animation(tmp_path / "a.gif", shown[1:], "Which?", answer)
    with Image.open(tmp_path / "a.gif") as moves:
        assert moves.n_frames == 3  # of equal frames Pillow writes one
        assert moves.info["comment"] == b"arr-coc"
    whole, one = (viewing.clips_card(some, "Which?", answer).height for some in (shown, shown[1:2]))
    assert whole > 2 * one - 200


def test_the_budget_over_time_shows_bars_coverage_and_cuts():
    choices = [selection(4), selection(0), selection(4, covered=2), selection(1, cut=True)]
    plot = np.asarray(viewing.budget_plot(choices)).astype(int)
    left, wide = 44, (1120 - 44) // 4

    def rows(colour, number: int) -> int:
        column = plot[:, left + number * wide + wide // 2]
        return int((np.abs(column - colour).max(-1) < 9).sum())

    relevant, covered = (tuple(getattr(viewing, name)) for name in ("RELEVANT", "COVERED"))
    full = rows(relevant, 0)
    assert full > 100
    assert [rows(relevant, n) for n in (1, 2, 3)] == [0, pytest.approx(full / 2, abs=2), pytest.approx(full / 4, abs=2)]
    assert [rows(covered, n) for n in (0, 1, 2, 3)] == [0, 0, pytest.approx(full / 2, abs=2), 0]
    marks = (np.abs(plot - viewing.CUT).max(-1) < 9)[20:].any(0).nonzero()[0]
    assert marks.min() >= left + 3 * wide - 4
    assert marks.max() <= left + 3 * wide + 4
    assert viewing.budget_page(choices).height > viewing.HIGH


def test_every_moment_has_its_row():
    rows = viewing.moment_rows([selection(3), selection(0, cut=True)])
    assert [(row["moment"], row["kept"], row["cells"], row["cut"]) for row in rows] == [
        (0, 3, 4, False),
        (1, 0, 4, True),
    ]
    assert "nothing of it was kept" in rows[1]["why"]
