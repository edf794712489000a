"""Several choices in one picture: two in one image, or those of several questions about it.

H W grid of cells.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing.overlays import kept_overlay, outline, spread
from arr_coc.viewing.paper import FAINT, INK, RGB, SMALL, TEXT, above, beside, fitted, padded, page, text_block

FIRST: RGB = (86, 180, 233)  # sky blue and orange: apart for every kind of colour vision, and striped differently
SECOND: RGB = (230, 159, 0)
STRIPE = 8  # px from one stripe to the next
TINT = 0.35  # share of the colour between the stripes
PANEL = 360  # px of the longer side of the image under each question
NARROWEST = 220  # px: text needs that much, however narrow the image


def questions_row(image: Image.Image, entries: Sequence[tuple[str, Answer]]) -> Image.Image:
    """For each question a column: the question, the image with its kept cells clear, the answer, and the tokens.

    The answers are to one image each; of several images, the first is shown.
    """
    if not entries:
        raise ValueError("a row of questions needs at least one (question, answer) pair")
    small = fitted(image, PANEL)
    width = max(small.width, NARROWEST)
    heads = [text_block(question, width, TEXT + 2, bold=True) for question, _ in entries]
    head_height = max(head.height for head in heads)
    columns = []
    for head, (_, answer) in zip(heads, entries, strict=True):
        selection = answer.selection[0]
        picture = kept_overlay(small, selection.mask, selection.periphery)
        if selection.tokens_kept < selection.tokens_total:
            picture = outline(picture, selection.mask)
        share = 100 * selection.tokens_kept / selection.tokens_total
        tokens = f"{selection.tokens_kept} of {selection.tokens_total} tokens ({share:.0f} % kept)"
        blocks = [
            padded(head, width, head_height),
            picture,
            text_block(answer.text, width, TEXT + 2),
            text_block(tokens, width, SMALL, ink=FAINT),
        ]
        columns.append(above(blocks, gap=8))
    return page(beside(columns, gap=24))


def difference(image: Image.Image, first: ImageSelection, second: ImageSelection) -> Image.Image:
    """Cells kept by both are clear, those of one alone striped (rising: first, falling: second), all others dimmed."""
    if first.grid != second.grid:
        raise ValueError(f"grids of {first.grid} and {second.grid} cells differ: compare two choices in one image")
    one_HW, two_HW = first.mask.cpu(), second.mask.cpu()
    small = fitted(image)
    picture = kept_overlay(small, one_HW | two_HW)
    picture = striped(picture, one_HW & ~two_HW, FIRST, rising=True)
    picture = striped(picture, two_HW & ~one_HW, SECOND, rising=False)
    picture = outline(picture, one_HW | two_HW)
    legend = [
        _entry(None, f"kept by both: {int((one_HW & two_HW).sum())}"),
        _entry((FIRST, True), f"only by the first: {int((one_HW & ~two_HW).sum())}"),
        _entry((SECOND, False), f"only by the second: {int((two_HW & ~one_HW).sum())}"),
    ]
    return page(above([picture, above(legend, gap=4)]))


def striped(picture: Image.Image, cells_HW: Tensor, colour: RGB, rising: bool) -> Image.Image:
    """The picture with some cells tinted and striped: stripes that rise to the right, or that fall."""
    pixels = np.asarray(picture, dtype=np.float32)
    y, x = np.mgrid[: picture.height, : picture.width]
    on_stripe = ((x + y if rising else x - y) % STRIPE < STRIPE // 3)[..., None]
    amount = spread(cells_HW.float(), picture.size, smooth=False) * np.where(on_stripe, 1.0, TINT)
    mixed = (1 - amount) * pixels + amount * np.array(colour, dtype=np.float32)
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def _entry(stripes: tuple[RGB, bool] | None, words: str) -> Image.Image:
    """A line of the legend: a swatch as in the picture, and words."""
    swatch = Image.new("RGB", (30, 18), (255, 255, 255))
    if stripes is not None:
        swatch = striped(swatch, torch.ones(1, 1), stripes[0], stripes[1])
    ImageDraw.Draw(swatch).rectangle((0, 0, 29, 17), outline=INK)
    return beside([swatch, text_block(words, 260, SMALL)], gap=8)
