"""The image that stands in where none is given."""

from importlib.resources import files
from pathlib import Path


def sample_image() -> Path:
    return Path(str(files("arr_coc") / "assets" / "sample.png"))
