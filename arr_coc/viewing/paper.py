"""What every picture is made of: paper, ink, text, and blocks that are set beside or above each other.

H W grid of cells. A block is a plain Pillow RGB image. Pictures bring their own paper, so that they read well on a
light and on a dark page.
"""

from collections.abc import Sequence
from functools import lru_cache

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from arr_coc_scenes.masks import FILES, font_folder

RGB = tuple[int, int, int]

PAPER: RGB = (250, 250, 248)
INK: RGB = (40, 40, 44)
FAINT: RGB = (100, 100, 106)  # of lesser text; 5.7 to 1 against the paper
COLOURS = "cividis"  # even in lightness, and readable without colour vision
MARGIN, GAP = 18, 10  # px
TEXT, SMALL = 16, 14  # px of a line of text
LONGEST = 640  # px of the longer side of an image inside a picture
SHORTEST = 256  # images whose longer side is below this are enlarged, by a whole factor, so that cells can be seen


def colour_map(values_HW: Tensor) -> Image.Image:
    """Values in [0, 1] as colours, one pixel per cell."""
    colours = matplotlib.colormaps[COLOURS](values_HW.detach().cpu().float().clamp(0, 1).numpy())
    return Image.fromarray((colours[..., :3] * 255).round().astype(np.uint8))


def shade(value: float) -> RGB:
    """One colour of the map, for a value in [0, 1]."""
    red, green, blue, _ = matplotlib.colormaps[COLOURS](value)
    return round(255 * red), round(255 * green), round(255 * blue)


@lru_cache(maxsize=16)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(font_folder() / FILES["sans-bold" if bold else "sans"]), size)


def fitted(image: Image.Image, longest: int = LONGEST) -> Image.Image:
    """The image as RGB with its longer side at most `longest` px. Only tiny ones are enlarged."""
    image, longer = image.convert("RGB"), max(image.size)
    if longer > longest:
        size = (max(1, round(image.width * longest / longer)), max(1, round(image.height * longest / longer)))
        return image.resize(size, Image.Resampling.LANCZOS)
    factor = -(-SHORTEST // longer) if longer < SHORTEST else 1
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def wrap(text: str, width: int, face: ImageFont.FreeTypeFont, most: int) -> list[str]:
    """The text in at most `most` lines of at most `width` px; words too long are broken, a text too long is cut."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        while word and len(lines) <= most:
            longer = f"{line} {word}" if line else word
            if face.getlength(longer) <= width:
                line, word = longer, ""
            elif line:
                lines.append(line)
                line = ""
            else:
                sizes = range(min(len(word), width), 0, -1)  # of a word without end, all would be too many
                fits = next((n for n in sizes if face.getlength(word[:n]) <= width), 1)
                lines.append(word[:fits])
                word = word[fits:]
    lines += [line] if line else []
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    while last and face.getlength(f"{last}...") > width:
        last = last[:-1]
    return [*lines[: most - 1], f"{last}..."]


def text_block(
    text: str, width: int, size: int = TEXT, *, bold: bool = False, ink: RGB = INK, most: int = 4
) -> Image.Image:
    """Wrapped text, `width` px wide and as high as it needs; one line for no text."""
    face = font(size, bold)
    lines, step = wrap(text, width, face, most), round(1.3 * size)
    block = Image.new("RGB", (width, step * max(1, len(lines))), PAPER)
    draw = ImageDraw.Draw(block)
    for row, line in enumerate(lines):
        draw.text((0, row * step), line, fill=ink, font=face)
    return block


def beside(blocks: Sequence[Image.Image], gap: int = GAP) -> Image.Image:
    """Blocks in a row, their tops aligned."""
    width = sum(block.width for block in blocks) + gap * (len(blocks) - 1)
    row = Image.new("RGB", (width, max(block.height for block in blocks)), PAPER)
    x = 0
    for block in blocks:
        row.paste(block, (x, 0))
        x += block.width + gap
    return row


def above(blocks: Sequence[Image.Image], gap: int = GAP) -> Image.Image:
    """Blocks in a column, their left edges aligned."""
    height = sum(block.height for block in blocks) + gap * (len(blocks) - 1)
    column = Image.new("RGB", (max(block.width for block in blocks), height), PAPER)
    y = 0
    for block in blocks:
        column.paste(block, (0, y))
        y += block.height + gap
    return column


def padded(block: Image.Image, width: int, height: int) -> Image.Image:
    """The block in the upper left of paper of at least that size."""
    page = Image.new("RGB", (max(width, block.width), max(height, block.height)), PAPER)
    page.paste(block, (0, 0))
    return page


def page(block: Image.Image, margin: int = MARGIN) -> Image.Image:
    """The block with margins all around: a finished picture."""
    whole = Image.new("RGB", (block.width + 2 * margin, block.height + 2 * margin), PAPER)
    whole.paste(block, (margin, margin))
    return whole
