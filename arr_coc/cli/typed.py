"""What is typed after a verb, declared and read once: options, images, the question, the dial, files to write.

Importing this loads no torch.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

OFFLINE = "HF_HUB_OFFLINE"  # the hub's own switch
PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def go_offline(wanted: bool) -> bool:
    """Forbid the hub. It reads its switch when it is imported: the switch is set first, or set where it was read."""
    if wanted:
        os.environ[OFFLINE] = "1"
        read = sys.modules.get("huggingface_hub.constants")
        if read is not None:
            read.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    return wanted


def is_offline() -> bool:
    return os.environ.get(OFFLINE, "").lower() in ("1", "on", "yes", "true")


Texts = list[str] | None  # of an option that may be repeated
Numbers = list[int] | None
MODELS = "mini, a folder with a Qwen3-VL, or a hub id"
Model = Annotated[str, typer.Option(metavar="NAME", help=f"{MODELS}.")]
PART = 'Part KEPT: a fraction such as 0.25, a number of tokens such as 256, or "auto".'
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
    bool, typer.Option("--offline", callback=go_offline, is_eager=True, help="Never reach for the hub: cache only.")
]
OneImage = Annotated[list[str], typer.Argument(metavar="[IMAGE] QUESTION", help="A JPEG, PNG or WebP, the question.")]
Force = Annotated[bool, typer.Option("--force", help="Write over files that arr-coc did not make.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; the GPU where there is one.")]


def sample_image() -> Path:
    """The image that stands in where none is given: scene 529 of the test split, which training never draws."""
    return Path(str(files("arr_coc") / "assets" / "sample.png"))


def split_words(words: Sequence[str]) -> tuple[list[Path], str]:
    """The images and the question of a command line; the bundled sample where there is no image."""
    *files, question = words
    if is_image_name(question):
        if all(map(is_image_name, files)):
            raise ValueError(f"{question} is an image without a question: write the question after it, in quotes")
        raise ValueError(f"{question} stands where the question goes: images come first, then the question, in quotes")
    for word in files:
        if not Path(word).suffix and not os.path.exists(word):
            raise ValueError(f"{word}: no such image file; if it is a part of the question, put that in quotes")
    return [Path(word) for word in files] or [sample_image()], question


def one_image(words: list[str]) -> tuple[Path, str]:
    """One image, or the bundled sample, and the question."""
    images, question = split_words(words)
    if len(images) > 1:
        raise ValueError(f"{len(images)} images before the question: give one, and the question in quotes")
    return images[0], question


def is_image_name(word: str) -> bool:
    """Whether a word of the command line is meant as a file: it ends like a picture, or there is such a file."""
    return Path(word).suffix.lower() in PICTURES or os.path.isfile(word)  # isfile bears what no file can be called


def parse_keep(text: str) -> float | int | str:
    """The dial as typed: a whole number is a number of tokens, one with a point a fraction."""
    from arr_coc.config import check_keep

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
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"{path.name}: an overlay is a picture; end its name in {', '.join(PICTURES)}")
    if any(_is_same(path, image) for image in images):
        raise ValueError(f"{path.name} is the image that is asked about: give the overlay another name")


def check_free(paths: Iterable[Path], image: Path, force: bool) -> None:
    """Nobody's files are written over, and the image that is asked about never."""
    from arr_coc.viewing.saving import refuse_others

    for path in paths:
        if _is_same(path, image):
            raise ValueError(f"{path} is the image that is asked about: give another --out")
        refuse_others([path], force)


def _is_same(path: Path, image: Path) -> bool:
    return path.exists() and image.exists() and path.samefile(image)
