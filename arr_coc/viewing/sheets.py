"""Maps as one labelled sheet: the texture channels of an image, and what the question-blind scorers make of them.

C channels, H W grid of cells.
"""

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor

from arr_coc.images.reader import ImageLike, image_tensor, read_image
from arr_coc.knowing import InformationScorer, stands_out, with_gaze
from arr_coc.texture import texture_pyramid
from arr_coc.viewing.cards import headed
from arr_coc.viewing.heatmaps import stretched
from arr_coc.viewing.paper import PAPER, colour_map, font, text_block, wrap

TILE = 240  # px of the longer side of a tile
NARROWEST = 96  # px of a column at least, so that its label can be read
CELL = 32  # px of a cell where no model says it
MARGIN, LABEL, LINES = 12, 13, 2  # px, px of a label's letters, lines of it at most


def sheet(tiles: Sequence[tuple[str, Image.Image]], size: tuple[int, int], columns: int) -> Image.Image:
    """Labelled tiles in rows, on paper that reads well on a light and on a dark page."""
    rows, width = -(-len(tiles) // columns), max(size[0], NARROWEST)
    lines = max(len(wrap(label, width, font(LABEL), LINES)) for label, _ in tiles)
    caption = text_block("", width, LABEL).height * lines + 9
    step_x, step_y = width + MARGIN, size[1] + caption + MARGIN
    page = Image.new("RGB", (columns * step_x + MARGIN, rows * step_y + MARGIN), PAPER)
    for place, (label, picture) in enumerate(tiles):
        x, y = MARGIN + place % columns * step_x, MARGIN + place // columns * step_y
        page.paste(text_block(label, width, LABEL, most=LINES), (x, y + 2))
        is_map = place and picture.width < size[0]  # cells; a picture is larger than its tile, or the first
        how = Image.Resampling.NEAREST if is_map else Image.Resampling.LANCZOS
        page.paste(picture.resize(size, how), (x, y + caption))
    return page


def _prepare(image: ImageLike, cell: int) -> tuple[Image.Image, Tensor, tuple[int, int], tuple[int, int]]:
    picture = read_image(image)
    grid = (max(1, round(picture.height / cell)), max(1, round(picture.width / cell)))
    scale = TILE / max(picture.size)
    size = (max(48, round(picture.width * scale)), max(48, round(picture.height * scale)))
    return picture, image_tensor(picture), grid, size


def texture_sheet(image: ImageLike, channels: int = 13, cell: int = CELL) -> Image.Image:
    """The image and every texture channel of it, at the finest level; cells of `cell` px."""
    picture, pixels, grid, size = _prepare(image, cell)
    pyramid = texture_pyramid(pixels, grid, channels)
    labels = [f"{index}  {name.replace('_', ' ')}" for index, name in enumerate(pyramid.names)]
    maps = zip(labels, pyramid.fine_BChw[0], strict=True)
    drawn = sheet([("image", picture), *((label, colour_map(values)) for label, values in maps)], size, columns=7)
    return headed(drawn, "What ARR-COC sees before it knows the question", tokens="Dark is 0, bright is 1.")


@torch.no_grad()
def question_blind_maps(image: ImageLike, channels: int = 13, cell: int = CELL) -> Image.Image:
    """Information and perspectival, as looking twice has them where nobody asks: nothing is trained on a model."""
    picture, pixels, grid, size = _prepare(image, cell)
    pyramid = texture_pyramid(pixels, grid, with_gaze(channels))
    information, perspectival = InformationScorer(channels)(pyramid)[0], stands_out(pyramid)[0]
    tiles = [
        ("image", picture),
        ("information: how much is there", colour_map(stretched(information)[0])),
        ("perspectival: what stands out", colour_map(stretched(perspectival)[0])),
    ]
    title, legend = (
        "What can be said without a question",
        "By untrained scorers. Dark: the least in this image, bright: the most.",
    )
    return headed(sheet(tiles, size, columns=3), title, tokens=legend)
