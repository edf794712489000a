"""Whole pictures: what was kept with its legend, under the question, the answer and the tokens that it took.

H W grid of cells. Whoever finds such a picture needs no other page to read it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.records import STRATEGIES
from arr_coc.viewing.overlays import RELEVANT, choice_overlay, heat_overlay, kept_overlay, outline, side_by_side, spread
from arr_coc.viewing.paper import FAINT, MARGIN, RGB, SMALL, TEXT, above, beside, fitted, padded, page, text_block

LONGEST, MOST, READABLE = 800, 1600, 12  # px of an image: its longer side, that of a large one, and of its cells
OURS = {name for name, _ in STRATEGIES}  # other strategies are methods of the field
NARROWEST = 420  # px: text needs that much, however narrow the image
SWATCH, GROUND = (30, 18), (206, 210, 204)  # px, and the colour of what is shown in a swatch
FIRST: RGB = (0, 158, 115)  # green and purple: not those of relevance and coverage, and striped differently
SECOND: RGB = (204, 121, 167)
STRIPE = 8  # px from one stripe to the next
TINT = 0.35  # share of the colour between the stripes
PANEL, LEAST_PANEL = 360, 220  # px of the longer side of the image under each question; of its text at least


def tokens_told(kept: int, total: int) -> str:
    """How many visual tokens the answer was made from."""
    return f"{kept:,} of {total:,} visual tokens ({100 * kept / max(1, total):.0f} % kept)"


def headed(picture: Image.Image, question: str, answer: str = "", tokens: str = "") -> Image.Image:
    """A finished picture under the question, the answer and the tokens; what is empty is left out."""
    width, grown = max(picture.width, NARROWEST) - 2 * MARGIN, growth(picture.width - 2 * MARGIN)
    lines = [text_block(question, width, round((TEXT + 2) * grown), bold=True)] if question.strip() else []
    lines += [text_block(f"Answer: {answer}", width, round((TEXT + 2) * grown))] if answer.strip() else []
    lines += [text_block(tokens, width, round(SMALL * grown), ink=FAINT)] if tokens else []
    if not lines:
        return picture
    head = page(above(lines, gap=4))
    return above([head.crop((0, 0, head.width, head.height - MARGIN)), picture], gap=0)


def entry(swatch: Image.Image, words: str, size: int = SMALL) -> Image.Image:
    """A line of a legend: a swatch as in the picture, and words."""
    swatch = swatch.resize((round(swatch.width * size / SMALL), round(swatch.height * size / SMALL)))
    framed = Image.new("RGB", (swatch.width + 2, swatch.height + 2), FAINT)
    framed.paste(swatch, (1, 1))
    block = text_block(words, 2000, size)
    return beside([framed, block.crop((0, 0, _written(block), block.height))], gap=8)


def _written(block: Image.Image) -> int:
    """px from the left edge to the last ink."""
    box = Image.eval(block.convert("L"), lambda value: 255 * (value < 200)).getbbox()
    return box[2] + 2 if box else 1


def rows_of(entries: Sequence[Image.Image], width: int) -> Image.Image:
    """Entries of a legend beside each other, in as many rows as that width needs."""
    rows: list[list[Image.Image]] = [[]]
    for one in entries:
        if rows[-1] and sum(other.width + 24 for other in rows[-1]) + one.width > width:
            rows.append([])
        rows[-1].append(one)
    return above([beside(row, gap=24) for row in rows], gap=6)


def choice_words(choices: Sequence[ImageSelection]) -> dict[str, str]:
    """What each look of a cell means, with the number of such cells in all images; looks that none has are left out.

    Looks are "whole" (nothing was chosen), "relevant", "covered", and "copied" or "dropped".
    """
    covered = sum(one.cells_covered for one in choices)
    kept = sum(one.cells_kept for one in choices) - covered
    dropped = sum(one.tokens_total - one.cells_kept for one in choices)
    if not dropped:
        return {"whole": f"all {kept + covered:,} cells were kept"}
    by = next((f"by {one.strategy}" for one in choices if one.strategy not in OURS), "for relevance")
    words = {"relevant": f"kept {by}: {kept:,}"} if kept else {}
    if covered:
        words["covered"] = f"kept for coverage: {covered:,}"
    copied = any(one.periphery is not None for one in choices)
    name, said = ("copied", "seen in the small copy alone") if copied else ("dropped", "dropped")
    return {**words, name: f"{said}: {dropped:,}"}


def choice_legend(choices: Sequence[ImageSelection], size: int = SMALL) -> list[Image.Image]:
    """The same as entries of a legend, each with a swatch as in the picture."""
    ground, yes = Image.new("RGB", SWATCH, GROUND), torch.ones(1, 1, dtype=torch.bool)
    swatches = {
        "whole": ground,
        "relevant": outline(ground, yes, RELEVANT),
        "covered": kept_overlay(ground, yes, None, yes),
        "copied": Image.radial_gradient("L").resize(SWATCH).point(lambda value: 150 + value // 4).convert("RGB"),
        "dropped": kept_overlay(ground, ~yes),
    }
    return [entry(swatches[name], words, size) for name, words in choice_words(choices).items()]


def shown_size(grid: tuple[int, int]) -> int:
    """px of an image's longer side in a picture: more for one of many cells, so that they can be seen."""
    return min(MOST, max(LONGEST, READABLE * max(grid)))


def same_height(images: Sequence[Image.Image]) -> list[Image.Image]:
    """Several images of one height, so large that a row of them fits into a picture; a single one as it is."""
    if len(images) == 1:
        return list(images)
    shapes = [image.width / image.height for image in images]
    height = min(LONGEST, max(image.height for image in images), round(MOST / sum(shapes)))
    sizes = [(max(1, round(shape * height)), max(1, height)) for shape in shapes]
    return [image.resize(size, Image.Resampling.LANCZOS) for image, size in zip(images, sizes, strict=True)]


def kept_page(images: Sequence[Image.Image], choices: Sequence[ImageSelection]) -> Image.Image:
    """What was kept of each image, the legend, and why: a finished picture."""
    shown = same_height([fitted(image, shown_size(one.grid)) for image, one in zip(images, choices, strict=True)])
    drawn = [choice_overlay(image, choice) for image, choice in zip(shown, choices, strict=True)]
    whys = [f"Why: {choice.why}" for choice in choices]
    if len(set(whys)) > 1:
        whys = [f"Image {number}: {choice.why}" for number, choice in enumerate(choices, 1)]
    return _page(side_by_side(drawn), lambda size: choice_legend(choices, size), list(dict.fromkeys(whys)))


def looked_page(images: Sequence[Image.Image], heats: Sequence[Tensor]) -> Image.Image:
    """Where the answer's words attended, where nothing was chosen: a finished picture."""
    grids = [(heat.shape[0], heat.shape[1]) for heat in heats]
    shown = same_height([fitted(image, shown_size(grid)) for image, grid in zip(images, grids, strict=True)])
    drawn = [heat_overlay(image, heat) for image, heat in zip(shown, heats, strict=True)]
    ramp = heat_overlay(Image.new("RGB", (3 * SWATCH[0], SWATCH[1]), GROUND), torch.linspace(0, 1, 90).view(1, -1))

    def legend(size: int) -> list[Image.Image]:
        return [entry(ramp, "looked at least ... most while answering", size)]

    return _page(
        side_by_side(drawn), legend, ["Every token was kept: the picture shows where the answer's words attended"]
    )


def _page(drawn: Image.Image, legend: Callable[[int], list[Image.Image]], why: Sequence[str]) -> Image.Image:
    width, size = max(drawn.width, NARROWEST - 2 * MARGIN), round(SMALL * growth(drawn.width))
    lines = [text_block(f"{line}.", width, size, ink=FAINT) for line in why]
    return page(above([drawn, rows_of(legend(size), width), above(lines, gap=2)]))


def growth(width: int) -> float:
    """How much larger letters are in a picture of that width."""
    return max(1.0, width / LONGEST) ** 0.5


def answer_card(
    images: Sequence[Image.Image], question: str, answer: Answer, heats: Sequence[Tensor] | None = None
) -> Image.Image:
    """One picture of an answer: question, answer, tokens, what was kept of each image, legend, and why.

    `heats` are where the answer's words attended, shown instead where every token was kept.
    """
    made = kept_page(images, answer.selection) if heats is None else looked_page(images, heats)
    return headed(made, question, answer.text, tokens_told(answer.tokens_kept, answer.tokens_total))


# ---------------------------------------------------------------- several choices in one picture


def questions_row(image: Image.Image, entries: Sequence[tuple[str, Answer]]) -> Image.Image:
    """For each question a column: the question, the image with what was kept, the answer, the tokens, and the legend.

    The answers are to one image each; of several images, the first is shown.
    """
    if not entries:
        raise ValueError("a row of questions needs at least one (question, answer) pair")
    small = fitted(image, PANEL)
    width = max(small.width, LEAST_PANEL)
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
    return page(above([picture, rows_of(legend, max(picture.width, LEAST_PANEL))]))


def striped(picture: Image.Image, cells_HW: Tensor, colour: RGB, rising: bool) -> Image.Image:
    """The picture with some cells tinted and striped: stripes that rise to the right, or that fall."""
    pixels = np.asarray(picture, dtype=np.float32)
    y, x = np.mgrid[: picture.height, : picture.width]
    on_stripe = ((x + y if rising else x - y) % STRIPE < STRIPE // 3)[..., None]
    amount = spread(cells_HW.float(), picture.size, smooth=False) * np.where(on_stripe, 1.0, TINT)
    mixed = (1 - amount) * pixels + amount * np.array(colour, dtype=np.float32)
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))
