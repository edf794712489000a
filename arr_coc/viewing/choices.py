"""Several choices in one picture: two in one image, or those of several questions about it.

H W grid of cells.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing.cards import GROUND, SWATCH, choice_legend, entry, rows_of, tokens_told
from arr_coc.viewing.overlays import choice_overlay, kept_overlay, spread
from arr_coc.viewing.paper import FAINT, RGB, SMALL, TEXT, above, beside, fitted, padded, page, text_block

FIRST: RGB = (0, 158, 115)  # green and purple: not those of relevance and coverage, and striped differently
SECOND: RGB = (204, 121, 167)
STRIPE = 8  # px from one stripe to the next
TINT = 0.35  # share of the colour between the stripes
PANEL = 360  # px of the longer side of the image under each question
NARROWEST = 220  # px: text needs that much, however narrow the image


def questions_row(image: Image.Image, entries: Sequence[tuple[str, Answer]]) -> Image.Image:
    """For each question a column: the question, the image with what was kept, the answer, the tokens, and the legend.

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
        blocks = [
            padded(head, width, head_height),
            choice_overlay(small, selection),
            text_block(f"Answer: {answer.text}", width, TEXT + 2),
            text_block(tokens_told(selection.tokens_kept, selection.tokens_total), width, SMALL, ink=FAINT),
            above(choice_legend([selection]), gap=4),
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
    ground, every = Image.new("RGB", SWATCH, GROUND), torch.ones(1, 1)
    legend = [
        entry(ground, f"kept by both: {int((one_HW & two_HW).sum())}"),
        entry(striped(ground, every, FIRST, True), f"only by the first: {int((one_HW & ~two_HW).sum())}"),
        entry(striped(ground, every, SECOND, False), f"only by the second: {int((two_HW & ~one_HW).sum())}"),
        entry(kept_overlay(ground, every == 0), f"dropped by both: {int((~one_HW & ~two_HW).sum())}"),
    ]
    return page(above([picture, rows_of(legend, max(picture.width, NARROWEST))]))


def striped(picture: Image.Image, cells_HW: Tensor, colour: RGB, rising: bool) -> Image.Image:
    """The picture with some cells tinted and striped: stripes that rise to the right, or that fall."""
    pixels = np.asarray(picture, dtype=np.float32)
    y, x = np.mgrid[: picture.height, : picture.width]
    on_stripe = ((x + y if rising else x - y) % STRIPE < STRIPE // 3)[..., None]
    amount = spread(cells_HW.float(), picture.size, smooth=False) * np.where(on_stripe, 1.0, TINT)
    mixed = (1 - amount) * pixels + amount * np.array(colour, dtype=np.float32)
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))
