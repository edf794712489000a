"""What was typed, read and checked: images, the question, the dial, names of files to write."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from arr_coc.cli.sample import sample_image

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


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
    if any(path.exists() and image.exists() and path.samefile(image) for image in images):
        raise ValueError(f"{path.name} is the image that is asked about: give the overlay another name")


def check_free(paths: Iterable[Path], image: Path, force: bool) -> None:
    """Nobody's files are written over, and the image that is asked about never."""
    from arr_coc.viewing.saving import refuse_others

    for path in paths:
        if path.exists() and image.exists() and path.samefile(image):
            raise ValueError(f"{path} is the image that is asked about: give another --out")
        refuse_others([path], force)
