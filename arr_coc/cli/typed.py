"""What is typed after a verb, declared and read once: options, images, the question, the dial, files to write.

Importing this loads no torch.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli.terminal import is_terminal
from arr_coc.data import FORMS
from arr_coc.images.headers import VIDEOS
from arr_coc.qwen.finding import go_offline

if TYPE_CHECKING:
    from PIL.Image import Image

    from arr_coc.qwen import ARRCOCQwen

PICTURES = (".png", ".jpg", ".jpeg", ".webp")  # that are written
ANIMATIONS = (".gif", ".mp4")  # of clips
READ = (*PICTURES, ".gif", ".bmp", ".tif", ".tiff", *VIDEOS)
STDIN = Path("-")
KINDS = "JPEG, PNG, WebP, GIF, BMP or TIFF"
SAMPLE_QUESTION = "Which word is blue?"  # of the bundled sample, where nothing is asked


def _offline(wanted: bool) -> bool:
    if wanted:
        go_offline()
    return wanted


Texts = list[str] | None  # of an option that may be repeated
Numbers = list[int] | None
MODELS = "mini, a folder with a Qwen3-VL, or a hub id"
DATA = ", ".join(FORMS.values())
METRICS = ("exact", "normal", "contains", "choice", "anls", "relaxed", "vqa")
Metric = Annotated[str | None, typer.Option(help=f"Of files: {', '.join(METRICS)}; by their kind if left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Model = Annotated[str, typer.Option(metavar="NAME", help=f"{MODELS}.")]
PART = 'Part KEPT: a fraction such as 0.25 or 25%, a number of tokens such as 256, or "auto".'
KeepDial = Annotated[
    str | None,
    typer.Option(metavar="PART", help=f"{PART} If left out: auto."),
]
SelectorName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How tokens are chosen: auto, arr_coc, look_twice, even_grid, random, ...; settings as NAME:KEY=VALUE.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="auto, dense (choose after the ViT), sparse (before it), foveated (likewise, beside a small copy) or "
        "weighted. If left out: as the model says.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, max=4096, metavar="N", help="Length of the answer at most, tokens.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="N", help="Of sampling, and of the selector random.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors on stderr.")]
Offline = Annotated[
    bool, typer.Option("--offline", callback=_offline, is_eager=True, help="Never reach for the hub: cache only.")
]
OneImage = Annotated[
    Texts,
    typer.Argument(
        metavar="[IMAGE] [QUESTION]",
        help=f"A {KINDS}, a video, a folder of frames, or - for stdin; the question. Without both: the sample.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write over files that arr-coc did not make.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; the GPU where there is one.")]
Dtype = Annotated[str, typer.Option(metavar="NAME", help="auto, float32, bfloat16 or float16.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        min=0, max=100, metavar="T", help="Sample the answer; 0: take the likeliest. If left out: as the model."
    ),
]
MaxPixels = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Pixels of an image at most, as the model sees it; as in training, else its own."
    ),
]
MaxBroken = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of broken rows to go on without; 0.01 if left out.")
]
MinPixels = Annotated[int | None, typer.Option(min=1, metavar="N", help="Likewise, at least.")]
System = Annotated[str, typer.Option(metavar="TEXT", help="What the model is told before the question.")]


Fps = Annotated[
    float | None, typer.Option(metavar="N", help="Frames of a second of a video that are looked at. If left out: 2.")
]
Frames = Annotated[
    int | None, typer.Option(metavar="N", help="Frames of a video that are looked at, in place of --fps.")
]


def sampling(temperature: float | None) -> dict[str, float | bool]:
    """Keywords of generate."""
    if temperature is None:
        return {}
    return {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}


def sample_image() -> Path:
    """The image that stands in where none is given: scene 529 of the test split, which training never draws."""
    return Path(str(files("arr_coc") / "assets" / "sample.png"))


def split_words(words: Sequence[str] | None) -> tuple[list[Path], str]:
    """The images and the question of a command line; the bundled sample where there is no image, or nothing at all."""
    if not words:
        return [sample_image()], SAMPLE_QUESTION
    *files, question = words
    if is_image_name(question):
        if all(map(is_image_name, files)):
            raise ValueError(f"{question} is an image without a question: write the question after it, in quotes")
        raise ValueError(f"{question} stands where the question goes: images come first, then the question, in quotes")
    for place, word in enumerate(files):
        if is_image_name(word) or os.path.exists(word):
            continue
        if place and any(map(is_image_name, files[place + 1 :])):
            raise ValueError(
                f"{word!r} stands between images: one question is asked at a time; for several images with a question "
                "each, use arr-coc batch"
            )
        if not Path(word).suffix or " " in word:
            raise ValueError(f"{word}: no such image file; if it is a part of the question, put that in quotes")
    return [Path(word) for word in files] or [sample_image()], question


def one_image(words: Sequence[str] | None) -> tuple[Path, str]:
    """One image, or the bundled sample, and the question."""
    images, question = split_words(words)
    if len(images) > 1:
        raise ValueError(f"{len(images)} images before the question: give one, and the question in quotes")
    return images[0], question


def is_image_name(word: str) -> bool:
    """Whether a word of the command line is meant as a file: it ends like a picture, or there is such a file."""
    is_file = Path(word).suffix.lower() in READ or os.path.isfile(word)  # isfile bears what no file can be called
    return is_file or Path(word) == STDIN


def clips_of(images: Sequence[Path]) -> list[Path]:
    """Those that are clips: named like one, folders of frames, GIFs and WebPs of several frames."""
    from arr_coc.images.clips import is_played

    return [one for one in images if is_played(one)]


def reading(
    images: Sequence[Path], fps: float | None = None, frames: int | None = None
) -> "Callable[[ARRCOCQwen], list[Any]]":
    """What gives the images and clips that were typed, once there is a model, which says how large it sees clips.

    Images are read at once, and what is wrong with a clip's name is told at once: before a model is loaded.
    """
    from arr_coc.images.clips import check_sampling, read_clip

    check_sampling(fps, frames)
    played = clips_of(images)
    if not played and (fps is not None or frames is not None):
        raise ValueError("--fps and --frames are of a video: give one, or leave them out")
    for one in played:
        if not one.exists():
            raise ValueError(f"{one}: no such video file; check the path")
        if one.is_dir() and any(other.suffix.lower() not in READ for other in one.iterdir()):
            raise ValueError(f"{one}: no such image file, but a folder; give the image itself, or a folder of frames")
    stills = read_typed([one for one in images if one not in played])

    def read(loaded: "ARRCOCQwen") -> list[Any]:
        if not played:
            return list(stills)
        from arr_coc.qwen.clips import ClipForm

        fit, rest = ClipForm.of(loaded.processor).fit, iter(stills)
        return [read_clip(one, fit, fps, frames) if one in played else next(rest) for one in images]

    return read


def read_typed(images: Sequence[Path]) -> "list[Image]":
    """The images that were typed, - from stdin; messages name each as it was."""
    if not images:
        return []
    if played := [one for one in images if one.suffix.lower() in VIDEOS]:
        raise ValueError(f"{played[0]}: a video; arr-coc ask, show, compare and chat take it")
    from arr_coc.images.reader import MOST_BYTES, read_images

    if list(images).count(STDIN) > 1:
        raise ValueError("- twice: stdin holds one image; give the others as files")
    if STDIN in images and is_terminal(sys.stdin):
        raise ValueError("-: the image is read from stdin, and nothing is piped into it; write cat FILE | arr-coc ...")
    given = [sys.stdin.buffer.read(MOST_BYTES + 1) if one == STDIN else one for one in images]
    return read_images(given, names=["stdin" if one == STDIN else str(one) for one in images])


def check_question(question: str) -> None:
    if not question.strip():
        raise ValueError("the question is empty: ask something about the image")


def parse_keep(text: str) -> float | int | str:
    """The dial as typed: a whole number is a number of tokens, one with a point a fraction, as is one with %."""
    from arr_coc.config import check_keep

    if text.endswith("%"):
        try:
            return check_keep(float(text[:-1]) / 100)
        except ValueError:
            return check_keep(text)  # told as it was typed
    for kind in (int, float):
        try:
            return check_keep(kind(text))
        except ValueError as error:
            if "keep=" in str(error):
                raise
    return check_keep(text)


def check_picture(path: Path | None, images: Sequence[Path] = ()) -> None:
    """Whether a picture can be written there, as far as its name tells; the images themselves are never overwritten."""
    if path is None:
        return
    endings = (*PICTURES, *ANIMATIONS) if clips_of(images) else PICTURES
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path}: an overlay is a picture; end its name in {', '.join(endings)}")
    if path.suffix.lower() == ".mp4" and find_spec("av") is None:
        raise ValueError(f"{path}: writing a video needs PyAV: pip install 'arr-coc[video]', or end its name in .gif")
    if any(_is_same(path, image) for image in images):
        raise ValueError(f"{path} is the image that is asked about: give the overlay another name")


def check_free(paths: Iterable[Path], image: Path, force: bool) -> None:
    """Nobody's files are written over, and the image that is asked about never."""
    from arr_coc.files import refuse_others

    for path in paths:
        if _is_same(path, image):
            raise ValueError(f"{path} is the image that is asked about: give another --out")
        refuse_others([path], force)


def _is_same(path: Path, image: Path) -> bool:
    return path.exists() and image.exists() and path.samefile(image)
