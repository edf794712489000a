"""The homunculus: the image with its relevant parts grown and the rest shrunk, as the body is drawn in the brain.

H W grid of cells, h w px of the picture.

The mesh has the corners of the cells. Rows of cells grow with the most relevant cell in them; along every grid line,
columns grow with the cells above and below it. Corners of one grid line share their y and keep their order in x, so
every cell becomes a trapezoid with level edges: nothing folds and nothing tears.
"""

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from arr_coc.viewing.paper import FAINT, SMALL, above, fitted, page, text_block

GROWTH = 4.0  # height and width of the most relevant cell, against those of one without relevance beside it
BAND = 256  # rows of the picture that are made at once: bounds the memory for large images


def mesh(relevance_HW: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Where the corners of cells go, as shares of the picture: y `[H + 1]` and x `[H + 1, W + 1]`, both increasing."""
    relevance = relevance_HW.detach().cpu().double().nan_to_num(0, 0, 0).clamp(0, 1).numpy()
    density = 1 + (GROWTH - 1) * relevance
    rows = np.pad(density, ((2, 2), (0, 0)), mode="edge")
    # At each grid line the two rows above and the two below it, so that a thing in one row does not shear the next.
    lines = (rows[:-3] + 3 * rows[1:-2] + 3 * rows[2:-1] + rows[3:]) / 8
    return _shares(density.max(axis=1)), _shares(lines)


def _shares(lengths: np.ndarray) -> np.ndarray:
    """Lengths -> the places of their ends, from 0 to 1, along the last axis."""
    ends = np.concatenate([np.zeros_like(lengths[..., :1]), lengths.cumsum(-1)], axis=-1)
    return ends / ends[..., -1:]


def homunculus(image: Image.Image, relevance_HW: Tensor) -> Image.Image:
    """A picture of the image's own size in which a cell takes the more room the more relevant it is."""
    y, x = mesh(relevance_HW)
    pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).unsqueeze(0).float()
    bands = [
        _band(pixels, y, x, range(top, min(top + BAND, image.height)), image.size)
        for top in range(0, image.height, BAND)
    ]
    return Image.fromarray(np.concatenate(bands))


def homunculus_page(image: Image.Image, relevance_HW: Tensor) -> Image.Image:
    """The same as a finished picture that says what is seen in it."""
    grown = homunculus(fitted(image), relevance_HW)
    width = max(grown.width, 380)
    words = f"The more relevant a cell, the more room it takes: up to {GROWTH:.0f} times the height and the width."
    return page(above([grown, text_block(words, width, SMALL, ink=FAINT)]))


def _band(pixels: Tensor, y: np.ndarray, x: np.ndarray, rows: range, size: tuple[int, int]) -> np.ndarray:
    """Some rows of the picture `[rows, w, 3]`: each pixel is the mean of four places in the image."""
    lines, columns = y.shape[0] - 1, x.shape[1] - 1
    across = (np.arange(2 * size[0]) + 0.5) / (2 * size[0])
    down = (np.arange(2 * rows.start, 2 * rows.stop) + 0.5) / (2 * size[1])
    source_y = np.interp(down, y, np.arange(lines + 1))  # in cells of the image
    line = np.minimum(source_y.astype(int), lines - 1)
    part = (source_y - line)[:, None]
    corners = (1 - part) * x[line] + part * x[line + 1]  # the corners' x at the height of each row
    source_x = np.stack([np.interp(across, row, np.arange(columns + 1)) for row in corners])
    places = np.stack([2 * source_x / columns - 1, np.broadcast_to(2 * source_y[:, None] / lines - 1, source_x.shape)])
    grid = torch.from_numpy(places).permute(1, 2, 0).unsqueeze(0).float()
    fine = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return F.avg_pool2d(fine, 2)[0].permute(1, 2, 0).round().clamp(0, 255).byte().numpy()
