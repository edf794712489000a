"""The image that stands in where none is given: scene 529 of the test split, which training never draws."""

from importlib.resources import files
from pathlib import Path


def sample_image() -> Path:
    return Path(str(files("arr_coc") / "assets" / "sample.png"))
