"""Writing pictures, pages and tables so that they are known as ours, and never over somebody else's file."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from arr_coc.viewing.slider import GENERATOR

COLUMNS = "index,y,x,kept,relevance"  # how a table of cells begins


def save_picture(picture: Image.Image, path: Path) -> None:
    """A PNG that says in its header who made it."""
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", GENERATOR)
    picture.save(path, "PNG", pnginfo=about, optimize=True)


def save_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows of cells as CSV with a header; a value that is missing is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def is_ours(path: Path) -> bool:
    """Whether a file was written here before: by the mark of its kind."""
    if path.suffix == ".png":
        try:
            with Image.open(path, formats=("PNG",)) as picture:
                return bool(picture.info.get("Software") == GENERATOR)
        except (OSError, ValueError, SyntaxError):
            return False
    with path.open("rb") as file:
        start = file.read(1024).decode("utf-8", "replace")
    return start.startswith(COLUMNS) if path.suffix == ".csv" else f'content="{GENERATOR}"' in start


def refuse_others(paths: Iterable[Path], force: bool) -> None:
    """Refuse to write over files that were not written here."""
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path}: is a folder, and a file of that name is to be written; give another --out")
        if path.exists() and not force and not is_ours(path):
            raise ValueError(f"{path}: there is such a file that arr-coc did not make; give another --out, or --force")
