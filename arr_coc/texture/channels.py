"""The canvas that channels are measured on, and the measures of the 13 that are the default.

B batch, C channels, H W grid of cells, h w the finest level (4 x 4 samples a cell) or any coarser one, X width of a
ViT, T earlier looks.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FINE
from arr_coc.records import constant_table

LUMA = (0.299, 0.587, 0.114)
EPS = 1e-6
CENTRES = 4  # of colours
KMEANS_STEPS = 6


@dataclass(frozen=True, slots=True)
class Canvas:
    """What channels are computed from: the image and its squared luma, pooled to the finest level, and gradients.

    Beside them what may be known of it: the image as it came, the canvas of the frame before, that of the frame after
    where this one is of both, what the model's ViT saw at a glance, maps of where earlier questions looked (newest
    last). What is None makes channels of zeros.
    """

    rgb_B3hw: Tensor
    luma_B1hw: Tensor
    luma_squared_B1hw: Tensor
    gradients: tuple[Tensor, Tensor]
    image_B3hw: Tensor | None = None
    previous: "Canvas | None" = None
    latest: "Canvas | None" = None  # None: this one is
    glance_BXhw: Tensor | None = None
    history_BThw: Tensor | None = None

    @classmethod
    def of(cls, rgb_B3hw: Tensor, luma_B1hw: Tensor, luma_squared_B1hw: Tensor) -> "Canvas":
        return cls(rgb_B3hw, luma_B1hw, luma_squared_B1hw, luma_gradients(luma_B1hw))


def luma_gradients(luma_B1hw: Tensor) -> tuple[Tensor, Tensor]:
    """Absolute luma gradients along x and y, each in [0, 1]: 1 is a step from black to white."""
    luma = F.pad(luma_B1hw, (1, 1, 1, 1), mode="replicate")
    smooth_y = (luma[..., :-2, :] + 2 * luma[..., 1:-1, :] + luma[..., 2:, :]) / 4
    smooth_x = (luma[..., :-2] + 2 * luma[..., 1:-1] + luma[..., 2:]) / 4
    return (smooth_y[..., 2:] - smooth_y[..., :-2]).abs(), (smooth_x[..., 2:, :] - smooth_x[..., :-2, :]).abs()


# ---------------------------------------------------------------- channels on the finest level


def sobel_magnitude(canvas: Canvas) -> Tensor:
    across, down = canvas.gradients
    return (across**2 + down**2).sqrt() / 2**0.5


def box(x_BChw: Tensor, cells: int) -> Tensor:
    """Mean over a square of `cells` cells a side, the border repeated outwards."""
    size = cells * FINE + 1
    margin = size // 2
    return F.avg_pool2d(F.pad(x_BChw, (margin, margin, margin, margin), mode="replicate"), size, stride=1)


def spectral_residual(canvas: Canvas) -> Tensor:
    """Where the image departs from its own regularity (Hou and Zhang 2007), as excess over its mean, in [0, 1]."""
    luma = canvas.luma_B1hw.float()
    spectrum = torch.fft.fft2(luma - luma.mean(dim=(-2, -1), keepdim=True))
    amplitude = spectrum.abs()
    # Rounding noise must not pass for structure: a floor of a millionth of a full-contrast image's amplitude.
    floor = 1e-6 * luma.shape[-2] * luma.shape[-1]
    log_amplitude = (amplitude + floor).log()
    usual = F.avg_pool2d(F.pad(log_amplitude, (1, 1, 1, 1), mode="circular"), 3, stride=1)
    residual = (log_amplitude - usual).exp() * amplitude / (amplitude + floor)
    saliency = torch.fft.ifft2(torch.polar(residual, spectrum.angle())).abs() ** 2
    saliency = F.avg_pool2d(F.pad(saliency, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    mean = saliency.mean(dim=(-2, -1), keepdim=True)
    excess = (saliency - mean).clamp(min=0)
    # An even pattern gives nothing; x / (x + 4 mean) keeps one bright point from hiding the rest.
    return (excess / (excess + 4 * mean + EPS**2)).to(canvas.luma_B1hw.dtype)


def colour_contrast(canvas: Canvas) -> Tensor:
    """Distance of the chroma (without luma) to that of a surround of 5 cells, in [0, 1]."""
    red, green, blue = canvas.rgb_B3hw.unbind(dim=1)
    chroma_B2hw = torch.stack([(red - green) / 2, (blue - (red + green) / 2) / 2], dim=1)
    return (chroma_B2hw - box(chroma_B2hw, 5)).norm(dim=1, keepdim=True).clamp(max=1)


def local_contrast(canvas: Canvas) -> Tensor:
    """Twice the standard deviation of the pooled luma over 3 cells: what differs between neighbours, in [0, 1]."""
    luma = canvas.luma_B1hw
    return 2 * (box(luma**2, 3) - box(luma, 3) ** 2).clamp(min=EPS**2).sqrt() - 2 * EPS


def _kmeans(points_BN3: Tensor) -> Tensor:
    """Colour centres [B, CENTRES, 3]: farthest-point start, Lloyd steps. Deterministic, no labels."""
    mean = points_BN3.mean(dim=1, keepdim=True)
    centres = _farthest(points_BN3, mean)
    for _ in range(CENTRES - 1):
        centres = torch.cat([centres, _farthest(points_BN3, centres)], dim=1)
    number_K = torch.arange(CENTRES, device=points_BN3.device)
    for _ in range(KMEANS_STEPS):
        nearest = (_squared(points_BN3, centres).argmin(-1, keepdim=True) == number_K).to(points_BN3.dtype)
        count_BK1 = nearest.sum(1).unsqueeze(-1)
        means = nearest.transpose(1, 2) @ points_BN3 / count_BK1
        centres = torch.where(count_BK1 > 0, means, centres)  # nothing by 0 is left out
    return centres


def _squared(points_BN3: Tensor, centres_BK3: Tensor) -> Tensor:
    """Squared distances `[B, N, K]`, exact where they are 0, which products of sums are not."""
    return (points_BN3.unsqueeze(2) - centres_BK3.unsqueeze(1)).square().sum(-1)


def _farthest(points_BN3: Tensor, centres_BK3: Tensor) -> Tensor:
    index = _squared(points_BN3, centres_BK3).amin(-1).argmax(-1)
    return points_BN3.gather(1, index.view(-1, 1, 1).expand(-1, 1, 3))


def colour_clusters(canvas: Canvas) -> tuple[Tensor, Tensor]:
    """Colour centres `[B, CENTRES, 3]`, and the squared distance of every sample to each, `[B, N, CENTRES]`."""
    rgb = canvas.rgb_B3hw.float()
    centres = _kmeans(F.avg_pool2d(rgb, FINE).flatten(2).transpose(1, 2))
    return centres, _squared(rgb.flatten(2).transpose(1, 2), centres)


def ambiguity(distances_BNK: Tensor, canvas: Canvas) -> Tensor:
    """Distance of a colour to its nearest centre over that to the second nearest: 0 typical, 1 in between."""
    # Not topk, which takes a block of a GPU for each place.
    nearest_BN1 = distances_BNK.argmin(-1, keepdim=True)
    first_BN = distances_BNK.amin(-1).sqrt()
    second_BN = distances_BNK.scatter(-1, nearest_BN1, torch.inf).amin(-1).sqrt()
    # A quarter of a grey level of slack: colours that differ by rounding only are the same colour.
    ratio = (first_BN - 1e-3).clamp(min=0) / (second_BN + 1e-3)
    return ratio.view(canvas.luma_B1hw.shape).to(canvas.rgb_B3hw.dtype)


def cluster_ambiguity(canvas: Canvas) -> Tensor:
    return ambiguity(colour_clusters(canvas)[1], canvas)


# ---------------------------------------------------------------- channels defined on each level


def places(height: int, width: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """y and x of each place, [2, h, w], 0 at the top and left, 1 at the bottom and right (0 for a single row)."""
    y = torch.linspace(0, 1, height, device=device, dtype=dtype) if height > 1 else torch.zeros(1, device=device)
    x = torch.linspace(0, 1, width, device=device, dtype=dtype) if width > 1 else torch.zeros(1, device=device)
    return torch.stack(torch.meshgrid(y.to(dtype), x.to(dtype), indexing="ij"))


position_grid = constant_table(places)
"""The same, kept: recordings keep the tables of their own grid alive (`qwen/graphs`)."""


def position(canvas: Canvas, factor: int, axis: int) -> Tensor:
    batch, _, height, width = canvas.luma_B1hw.shape
    grid = position_grid(height // factor, width // factor, canvas.luma_B1hw.device, canvas.luma_B1hw.dtype)
    return grid[axis].expand(batch, 1, -1, -1)


def within_cell_variance(canvas: Canvas, factor: int) -> Tensor:
    """Twice the standard deviation of the luma of all pixels inside each place of the level, in [0, 1]."""
    mean, mean_of_squares = canvas.luma_B1hw, canvas.luma_squared_B1hw
    if factor > 1:
        mean, mean_of_squares = F.avg_pool2d(mean, factor), F.avg_pool2d(mean_of_squares, factor)
    # fp32 rounding of the squares is about 1e-7; below it there is nothing to see.
    return 2 * (mean_of_squares - mean**2 - 2e-7).clamp(min=0).sqrt()


# ---------------------------------------------------------------- the canvas of an image


def _as_image(image: Tensor) -> Tensor:
    """uint8 0..255 or float 0..1, [3, h, w] or [B, 3, h, w] -> float [B, 3, h, w] in [0, 1]."""
    if image.ndim == 3:
        image = image.unsqueeze(0)
    if image.ndim != 4 or image.shape[1] != 3 or 0 in image.shape:
        raise ValueError(f"image has shape {tuple(image.shape)}: expected [3, h, w] or [B, 3, h, w] with pixels in it")
    if image.dtype == torch.uint8:
        return image.float() / 255
    if not image.is_floating_point():
        raise ValueError(f"image has dtype {image.dtype}: expected uint8 in 0..255 or float in 0..1")
    return image.float().clamp(0, 1)


@torch.no_grad()
def canvas_of(
    image: Tensor,
    grid_size: int | tuple[int, int],
    glance: Tensor | None = None,
    previous: Tensor | None = None,
    history: Tensor | None = None,
) -> Canvas:
    """An image pooled to the finest level of a grid of cells (int or (H, W)), with what is known beside it.

    `glance` is `[B, X, h, w]`, `previous` the frame before, like the image, `history` `[B, T, h, w]` maps in [0, 1],
    newest last; of any grid, and for a single image also without B.
    """
    rgb = _as_image(image)
    height, width = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
    if height < 1 or width < 1:
        raise ValueError(f"grid_size={grid_size}: expected at least one cell each way")
    size = (height * FINE, width * FINE)
    luma = (rgb * rgb.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    canvas = Canvas.of(
        rgb_B3hw=F.adaptive_avg_pool2d(rgb, size),
        luma_B1hw=F.adaptive_avg_pool2d(luma, size),
        luma_squared_B1hw=F.adaptive_avg_pool2d(luma**2, size),
    )
    return replace(
        canvas,
        image_B3hw=image if image.ndim == 4 else image.unsqueeze(0),
        previous=None if previous is None else canvas_of(_beside(previous, rgb, "previous"), (height, width)),
        glance_BXhw=None if glance is None else _beside(glance, rgb, "glance").float(),
        history_BThw=None if history is None else _beside(history, rgb, "history").float().clamp(0, 1),
    )


def _beside(given: Tensor, rgb_B3hw: Tensor, name: str) -> Tensor:
    """What is known beside an image, on its device, one for each image of the batch."""
    given = given.unsqueeze(0) if given.ndim == 3 else given
    if given.ndim != 4 or given.shape[0] != rgb_B3hw.shape[0] or 0 in given.shape:
        raise ValueError(f"{name} has shape {tuple(given.shape)}: expected one [C, h, w] for each of the image's batch")
    return given.to(rgb_B3hw.device)
