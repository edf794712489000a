"""What users get wrong: one clear line each, and the next call works."""

import io
import os
import re

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, PngImagePlugin

from arr_coc.images.headers import read_header
from arr_coc.images.reader import read_image
from arr_coc.qwen.processor import Conversation


@pytest.fixture(scope="module")
def ours():
    return tiny.wrapped(tiny.stock(), keep=0.5)


@pytest.fixture(scope="module")
def good(ours):
    return ours.ask(tiny.picture(), "what is this?", max_new_tokens=4).text


def write(path, data: bytes):
    path.write_bytes(data)
    return path


def broken_images(folder):
    whole = folder / "whole.png"
    tiny.picture().save(whole)
    bomb = bytearray(whole.read_bytes())
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    tiny.picture().save(folder / "picture.ico")
    return {
        "missing": folder / "nothing.png",
        "a folder": folder,
        "empty": write(folder / "empty.png", b""),
        "text": write(folder / "text.png", b"hello"),
        "cut": write(folder / "cut.png", whole.read_bytes()[:300]),
        "bomb": write(folder / "bomb.png", bytes(bomb)),
        "a format that is not read": folder / "picture.ico",
        "cut, opened by the caller": Image.open(folder / "cut.png"),
        "too long": Image.new("RGB", (201, 1)),
        "too tall": Image.new("RGB", (3, 700)),
        "too large": Image.new("L", (8_000, 7_000)),
        "no pixels": Image.new("RGB", (0, 5)),
        "no image": 17,
        "fractions above 1": np.full((5, 5, 3), 200.0),
        "a batch": torch.zeros(1, 3, 5, 5),
        "a text file": open(folder / "text.png"),
        "empty list": [],
        "nine": [tiny.picture(64, 64)] * 9,
    }


def test_images_that_cannot_be_used_are_refused_in_one_line(ours, good, tmp_path):
    for name, image in broken_images(tmp_path).items():
        with pytest.raises(ValueError, match=r".+") as caught:
            ours.ask(image, "what is this?")
        message = str(caught.value)
        assert "\n" not in message, name
        assert str(tmp_path) not in message, name
        assert not re.search("0x[0-9a-f]{6}", message), name
        assert ours.ask(tiny.picture(), "what is this?", max_new_tokens=4).text == good, name


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 64), (2, 2), (31, 33), (640, 480)])
def test_odd_sizes_are_handled(ours, size):
    answer = ours.ask(Image.new("RGB", size, "red"), "what is this?", max_new_tokens=2)
    assert 1 <= answer.tokens_kept <= answer.tokens_total


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16"])
def test_every_mode_becomes_rgb(mode):
    picture = Image.new("L", (40, 40), 255) if mode == "I;16" else tiny.picture(64, 64)
    converted = Image.fromarray(np.full((40, 40), 65535, np.uint16)) if mode == "I;16" else (
        picture.convert("L").convert(mode) if mode in ("I", "F", "LA", "PA") else picture.convert(mode))  # fmt: skip
    assert read_image(converted).mode == "RGB"
    if mode == "I;16":
        assert read_image(converted).getpixel((3, 3)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_all_orientations_are_applied(kind, tmp_path):
    for orientation in range(1, 9):
        image = tiny.picture(64, 32)
        exif = image.getexif()
        exif[0x0112] = orientation
        image.save(tmp_path / f"turned.{kind}", exif=exif)
        with Image.open(tmp_path / f"turned.{kind}") as stored:
            expected = ImageOps.exif_transpose(stored).convert("RGB")
        assert np.array_equal(np.asarray(read_image(tmp_path / f"turned.{kind}")), np.asarray(expected)), orientation


def test_transparency_and_depth_do_not_depend_on_the_strips(tmp_path, monkeypatch):
    """Converted a few rows at a time, an image is what it is when it is converted whole."""
    rng = np.random.default_rng(0)
    deep = Image.fromarray(rng.integers(0, 65_536, (37, 50), dtype=np.uint16))
    clear = Image.fromarray(rng.integers(0, 256, (37, 50, 4), dtype=np.uint8))
    fractions = Image.fromarray(rng.normal(0.5, 1, (37, 50)).astype(np.float32))
    fractions.putpixel((3, 3), float("nan"))
    white = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    palette = clear.convert("RGB").quantize(16)
    palette.info["transparency"] = 3
    for image in (deep, clear, fractions, palette, clear.convert("LA")):
        monkeypatch.setattr("arr_coc.images.decoding.STRIP", 10**9)
        whole = np.asarray(read_image(image))
        monkeypatch.setattr("arr_coc.images.decoding.STRIP", 120)
        assert np.array_equal(np.asarray(read_image(image)), whole), image.mode
    assert np.array_equal(np.asarray(read_image(clear)), np.asarray(white))
    assert np.array_equal(np.asarray(read_image(deep))[..., 0], (np.asarray(deep) * (255 / 65_535)).astype(np.uint8))
    assert read_image(Image.new("RGBA", (10, 10))).getpixel((5, 5)) == (255, 255, 255)


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)).filter(lambda size: max(size) <= 200 * min(size)),
    st.sampled_from(["png", "jpeg", "jpeg progressive", "webp", "webp lossless", "webp alpha"]),
)
def test_the_header_says_what_the_decoder_finds(size, kind):
    file, (name, *how) = io.BytesIO(), kind.split()
    options = dict.fromkeys(set(how) - {"alpha"}, True)
    Image.new("RGBA" if "alpha" in how else "RGB", size, "teal").save(file, name, comment=b"c" * 90, **options)
    file.seek(0)
    header = read_header(file)
    assert (header.format, header.width, header.height) == (name.upper(), *size)
    with Image.open(header.file) as image:
        image.load()
        assert (image.format, image.size) == (header.format, size)


def jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "jpeg", quality=92, **options)
    return file.getvalue()


def test_the_header_knows_what_a_jpegs_decoder_holds():
    """Nothing where the picture comes in one scan; else 2 bytes for each coefficient, of which CMYK has 4 a pixel."""
    rgb = tiny.picture(64, 64)

    def held(data: bytes) -> float:
        return read_header(io.BytesIO(data)).held

    for subsampling, expected in ((0, 6), (1, 4), (2, 3)):
        assert held(jpeg(rgb, subsampling=subsampling)) == 0
        assert held(jpeg(rgb, subsampling=subsampling, progressive=True)) == expected
    assert held(jpeg(rgb.convert("L"), progressive=True)) == 2
    assert held(jpeg(rgb.convert("CMYK"), progressive=True)) == 8
    apart = bytearray(jpeg(rgb, subsampling=0))
    apart[apart.index(b"\xff\xda") + 4] = 1  # colours of the first scan
    assert held(bytes(apart)) == 6
    unsaid = bytearray(jpeg(rgb, progressive=True))
    unsaid[unsaid.index(b"\xff\xc2") + 11] = 0x20
    with pytest.raises(ValueError, match="how its colours are stored"):
        held(bytes(unsaid))


@pytest.mark.parametrize("options", [{}, {"keep_rgb": True}])
def test_a_jpeg_too_costly_to_decode_at_once_keeps_all_of_its_brightness(options, tmp_path, monkeypatch):
    """Grey is equal bit for bit; colours are at half the size, wherever the strips end; orientation is applied."""
    path, exif = tmp_path / "large.jpg", Image.Exif()
    exif[0x0112] = 6
    colourful = Image.fromarray(np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    colourful = colourful.resize((135, 101), Image.Resampling.BICUBIC)
    for picture in (colourful.convert("L").convert("RGB"), colourful):
        path.write_bytes(jpeg(picture, subsampling=0, progressive=True, exif=exif, **options))
        exact = np.asarray(read_image(path)).astype(int)
        with monkeypatch.context() as patch:
            patch.setattr("arr_coc.images.decoding.SPARE", 0)
            thrifty = np.asarray(read_image(path)).astype(int)
            patch.setattr("arr_coc.images.decoding.STRIP", 500)
            assert np.array_equal(np.asarray(read_image(path)), thrifty)
        assert thrifty.shape == (135, 101, 3)
        if picture is colourful:
            assert 0 < np.abs(thrifty - exact).mean() < 2
        else:
            assert np.abs(thrifty - exact).max() <= (1 if options else 0)


def test_a_jpeg_that_no_way_makes_cheap_is_refused(tmp_path, monkeypatch):
    (tmp_path / "print.jpg").write_bytes(jpeg(tiny.picture(64, 32).convert("CMYK"), progressive=True))
    assert read_image(tmp_path / "print.jpg").mode == "RGB"
    monkeypatch.setattr("arr_coc.images.decoding.SPARE", 0)
    with pytest.raises(ValueError, match=r"a progressive CMYK JPEG of \d+x\d+ needs too much memory; save it as RGB"):
        read_image(tmp_path / "print.jpg")
    (tmp_path / "full.jpg").write_bytes(jpeg(tiny.picture(64, 32), progressive=True, subsampling=0))
    assert read_image(tmp_path / "full.jpg").size == (64, 32)
    monkeypatch.setattr("arr_coc.images.decoding.MOST_TWICE", 64 * 32 - 1)  # reading it twice takes too long
    with pytest.raises(
        ValueError, match=r"a progressive RGB JPEG of 64x32 needs too much memory; .* without 'progress"
    ):
        read_image(tmp_path / "full.jpg")


def test_what_is_no_part_of_the_picture_is_never_decoded(tmp_path):
    plain, laden = tmp_path / "plain.png", tmp_path / "laden.png"
    tiny.picture().save(plain)
    text = PngImagePlugin.PngInfo()
    text.add_text("note", "x" * 10_000, zip=True)
    tiny.picture().save(laden, pnginfo=text, icc_profile=b"junk" * 100)
    with open(laden, "rb") as file:
        picture = read_header(file).file
    with Image.open(picture) as image:
        assert "note" not in image.info
        assert "icc_profile" not in image.info
    assert np.array_equal(np.asarray(read_image(laden)), np.asarray(read_image(plain)))


def test_names_cannot_break_the_line(tmp_path, monkeypatch):
    wrong = {
        "two\nlines\x1b[31m.png": "two?lines?[31m.png: not a readable",
        "x" * 4_000: "no such image file",
        "a\0b.png": "no such image file",
        "https://example.org/a.png": "an address is not fetched",
        "file:///etc/passwd": "an address is not fetched",
    }
    (tmp_path / "two\nlines\x1b[31m.png").write_bytes(b"hello")
    monkeypatch.chdir(tmp_path)
    for name, says in wrong.items():
        with pytest.raises(ValueError, match=re.escape(says)) as caught:
            read_image(name)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 250


def test_what_is_not_the_files_fault_is_not_called_damage(tmp_path, monkeypatch):
    """No room and no right to read are told as what they are; a pipe is not waited for."""
    tiny.picture().save(tmp_path / "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match="no such image file, but"):
        read_image(tmp_path / "pipe.png")

    def no_room(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", no_room)
        with pytest.raises(MemoryError):
            read_image(tmp_path / "good.png")

    def no_right(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", no_right)
        with pytest.raises(ValueError, match="cannot be opened \\(Permission denied\\)"):
            read_image(tmp_path / "good.png")


@pytest.mark.parametrize("keep", [0, -1, 1, True, 1.01, float("nan"), "abc", [0.5, 0.5]])
def test_a_wrong_dial_is_refused(ours, good, keep):
    with pytest.raises(ValueError, match="keep"):
        ours.ask(tiny.picture(), "what is this?", keep=keep)
    with pytest.raises(ValueError, match="keep"):
        ours.generate(**tiny.inputs(Conversation([tiny.picture()], "what?")), keep=keep)
    assert ours.ask(tiny.picture(), "what is this?", max_new_tokens=4).text == good


@pytest.mark.parametrize("question", ["", "   ", "\n", None, 7])
def test_an_empty_question_is_refused(ours, question):
    with pytest.raises(ValueError, match="empty"):
        ours.ask(tiny.picture(), question)


def test_text_that_is_no_text_is_refused(ours):
    with pytest.raises(ValueError, match="surrogate"):
        ours.ask(tiny.picture(), "half \ud83d of it")
    for history in ([("a", None)], ["ab"], [("a",)], [(1, "b")]):
        with pytest.raises(ValueError, match="history"):
            ours.ask(tiny.picture(), "what?", history=history)


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("token", [*tiny.SPECIAL, *tiny.ADDED])
def test_special_tokens_in_the_question_are_text(ours, token, images):
    question = f"what is {token} and {token}?"
    pictures = [tiny.picture(64, 96, n) for n in range(images)]
    inputs = tiny.inputs(Conversation(pictures, question))
    cells = int((inputs["image_grid_thw"].prod(-1) // 4).sum())
    assert (inputs["input_ids"] == tiny.token_id("<|image_pad|>")).sum() == cells
    assert tiny.tokenizer().decode(inputs["input_ids"][inputs["question_mask"]]) == question
    assert ours.ask(pictures, question, max_new_tokens=2).tokens_total == cells


def test_inputs_that_do_not_fit_each_other_are_refused(ours):
    inputs = tiny.inputs(Conversation([tiny.picture()], "what?"))
    with pytest.raises(ValueError, match="placeholders"):
        ours(**{**inputs, "input_ids": inputs["input_ids"][:, 8:], "attention_mask": inputs["attention_mask"][:, 8:]})
    with pytest.raises(ValueError, match="image_grid_thw"):
        ours(input_ids=inputs["input_ids"], pixel_values=inputs["pixel_values"])
    with pytest.raises(ValueError, match="original_image"):
        tiny.wrapped(ours.model, selector="arr_coc")(**inputs, keep=3, original_image=[tiny.picture(), tiny.picture()])
    with pytest.raises(ValueError, match="logits_to_keep"):
        ours(**inputs, keep=0.5, logits_to_keep=torch.tensor([3]))
    with pytest.raises(ValueError, match="logits_to_keep"):
        ours(**inputs, keep=0.5, align_logits=True, logits_to_keep=1)
    cache = ours(**inputs, use_cache=True).past_key_values
    for refused in (
        lambda: ours.generate(**inputs, past_key_values=cache),
        lambda: ours.generate(input_ids=inputs["input_ids"], past_key_values=cache),
        lambda: ours(**inputs, past_key_values=cache),
    ):
        with pytest.raises(ValueError, match="whole conversation"):
            refused()
    for run in (ours, ours.generate):
        with pytest.raises(ValueError, match="position_ids"):
            run(**inputs, position_ids=torch.zeros(3, 1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="shape of the"):
        type(ours)(ours.model, selector="arr_coc", processor=tiny.processor())(
            **inputs, keep=5, original_image=tiny.picture(64, 512)
        )
    with pytest.raises(ValueError, match="keep"):
        ours(input_ids=inputs["input_ids"][:, :3], keep="abc")
    with pytest.raises(ValueError, match="processor"):
        type(ours)(ours.model).ask(tiny.picture(), "what?")


def test_a_wrong_dtype_is_refused():
    from arr_coc.qwen.loading import pick_dtype

    assert pick_dtype("auto", torch.device("cpu")) == torch.float32
    with pytest.raises(ValueError, match="dtype"):
        pick_dtype("int8", torch.device("cpu"))
