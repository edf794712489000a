"""What is written: pictures, tables, and a page with a slider; known as ours, and never over somebody else's file."""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image, PngImagePlugin

from arr_coc.files import GENERATOR, is_ours, refuse_others, write_whole
from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing.overlays import kept_overlay

__all__ = ["before_after", "is_ours", "refuse_others", "save_as", "save_picture", "save_table", "slider_html"]

MOST = 1600  # px of the longer side inside a page, so that a page stays small


def save_picture(picture: Image.Image, path: Path) -> None:
    """A PNG that says in its header who made it."""
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", GENERATOR)
    save_as(picture, path, "PNG", pnginfo=about, optimize=True)


def save_as(picture: Image.Image, path: Path, kind: str = "", **options: Any) -> None:
    """A picture, in the format that the file's name ends in unless another is given."""
    written = io.BytesIO()
    picture.save(written, kind or Image.registered_extensions()[path.suffix.lower()], **options)
    write_whole(path, written.getvalue())


def save_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows of cells as CSV with a header; a value that is missing is empty."""
    written = io.StringIO(newline="")
    writer = csv.DictWriter(written, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, written.getvalue())


def before_after(image: Image.Image, selection: ImageSelection) -> tuple[Image.Image, Image.Image]:
    """The image, and the image with dropped cells dimmed: both RGB and of the image's size."""
    return image.convert("RGB"), kept_overlay(image, selection.mask, selection.periphery)


def slider_html(before: Image.Image, after: Image.Image) -> str:
    """One page with both pictures inside and a slider between them; it loads nothing from anywhere."""
    if before.size != after.size:
        raise ValueError(f"a slider needs two pictures of one size, not {before.size} and {after.size}")
    page = Template((files("arr_coc") / "assets" / "slider.html").read_text(encoding="utf-8"))
    return page.substitute(
        generator=GENERATOR,
        width=min(MOST, max(320, before.width + 32)),
        before=_data(before),
        after=_data(after),
    )


def _data(picture: Image.Image) -> str:
    """The picture as a data address."""
    picture = picture.convert("RGB")
    picture.thumbnail((MOST, MOST))
    written = io.BytesIO()
    picture.save(written, "WEBP", quality=88)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode()
