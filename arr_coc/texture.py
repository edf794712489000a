"""Image -> texture pyramid: named channels on a grid, at three scales, computed from the pixels alone.

B batch, C channels, H W grid of cells (one cell is one visual token), h w any finer grid.

The image is pooled to the finest level (4 x 4 samples a cell: 8 px each at Qwen3-VL's 32 px cell) before anything else,
so memory does not grow with the channels. Every value is in [0, 1]. A fine channel is measured once on the finest
level, and coarser levels average it. A level channel is measured on each level itself: position (the top row is 0, the
bottom row 1) and within-cell variance.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FINE, channel_names
from arr_coc.records import TexturePyramid, constant_table

LUMA = (0.299, 0.587, 0.114)
EPS = 1e-6
CENTRES = 4  # of colours
KMEANS_STEPS = 6
LEAST_DETAIL = 0.05  # mean detail under which an image is flat, not noisy


@dataclass(frozen=True, slots=True)
class Canvas:
    """What channels are computed from: the image and its squared luma, pooled to the finest level, and gradients."""

    rgb_B3hw: Tensor
    luma_B1hw: Tensor
    luma_squared_B1hw: Tensor
    gradients: tuple[Tensor, Tensor]

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


def _box(x_BChw: Tensor, cells: int) -> Tensor:
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
    return (chroma_B2hw - _box(chroma_B2hw, 5)).norm(dim=1, keepdim=True).clamp(max=1)


def local_contrast(canvas: Canvas) -> Tensor:
    """Twice the standard deviation of the pooled luma over 3 cells: what differs between neighbours, in [0, 1]."""
    luma = canvas.luma_B1hw
    return 2 * (_box(luma**2, 3) - _box(luma, 3) ** 2).clamp(min=EPS**2).sqrt() - 2 * EPS


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


def cluster_ambiguity(canvas: Canvas) -> Tensor:
    """Distance of a colour to its nearest k-means centre over that to the second nearest: 0 typical, 1 in between."""
    rgb = canvas.rgb_B3hw.float()
    cells_BN3 = F.avg_pool2d(rgb, FINE).flatten(2).transpose(1, 2)
    centres = _kmeans(cells_BN3)
    distances_BNK = _squared(rgb.flatten(2).transpose(1, 2), centres)
    # Not topk, which takes a block of a GPU for each place.
    nearest_BN1 = distances_BNK.argmin(-1, keepdim=True)
    first_BN = distances_BNK.amin(-1).sqrt()
    second_BN = distances_BNK.scatter(-1, nearest_BN1, torch.inf).amin(-1).sqrt()
    # A quarter of a grey level of slack: colours that differ by rounding only are the same colour.
    ratio = (first_BN - 1e-3).clamp(min=0) / (second_BN + 1e-3)
    return ratio.view(rgb.shape[0], 1, *rgb.shape[-2:]).to(canvas.rgb_B3hw.dtype)


# ---------------------------------------------------------------- channels defined on each level


@constant_table
def position_grid(height: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """y and x of each place, [2, h, w], 0 at the top and left, 1 at the bottom and right (0 for a single row)."""
    y = torch.linspace(0, 1, height, device=device, dtype=dtype) if height > 1 else torch.zeros(1, device=device)
    x = torch.linspace(0, 1, width, device=device, dtype=dtype) if width > 1 else torch.zeros(1, device=device)
    return torch.stack(torch.meshgrid(y.to(dtype), x.to(dtype), indexing="ij"))


def _position(axis: int) -> "LevelFunction":
    def position(canvas: Canvas, factor: int) -> Tensor:
        batch, _, height, width = canvas.luma_B1hw.shape
        grid = position_grid(height // factor, width // factor, canvas.luma_B1hw.device, canvas.luma_B1hw.dtype)
        return grid[axis].expand(batch, 1, -1, -1)

    return position


def within_cell_variance(canvas: Canvas, factor: int) -> Tensor:
    """Twice the standard deviation of the luma of all pixels inside each place of the level, in [0, 1]."""
    mean, mean_of_squares = canvas.luma_B1hw, canvas.luma_squared_B1hw
    if factor > 1:
        mean, mean_of_squares = F.avg_pool2d(mean, factor), F.avg_pool2d(mean_of_squares, factor)
    # fp32 rounding of the squares is about 1e-7; below it there is nothing to see.
    return 2 * (mean_of_squares - mean**2 - 2e-7).clamp(min=0).sqrt()


FineFunction = Callable[[Canvas], Tensor]
LevelFunction = Callable[[Canvas, int], Tensor]

FINE_CHANNELS: dict[str, FineFunction] = {
    "red": lambda canvas: canvas.rgb_B3hw[:, 0:1],
    "green": lambda canvas: canvas.rgb_B3hw[:, 1:2],
    "blue": lambda canvas: canvas.rgb_B3hw[:, 2:3],
    "sobel_x": lambda canvas: canvas.gradients[0],
    "sobel_y": lambda canvas: canvas.gradients[1],
    "sobel_magnitude": sobel_magnitude,
    "spectral_residual": spectral_residual,
    "colour_contrast": colour_contrast,
    "local_contrast": local_contrast,
    "cluster_ambiguity": cluster_ambiguity,
}
LEVEL_CHANNELS: dict[str, LevelFunction] = {
    "y": _position(0),
    "x": _position(1),
    "within_cell_variance": within_cell_variance,
}


# ---------------------------------------------------------------- the pyramid


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
def canvas_of(image: Tensor, grid_size: int | tuple[int, int]) -> Canvas:
    """An image pooled to the finest level of a grid of cells (int or (H, W))."""
    rgb = _as_image(image)
    height, width = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
    if height < 1 or width < 1:
        raise ValueError(f"grid_size={grid_size}: expected at least one cell each way")
    size = (height * FINE, width * FINE)
    luma = (rgb * rgb.new_tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    return Canvas.of(
        rgb_B3hw=F.adaptive_avg_pool2d(rgb, size),
        luma_B1hw=F.adaptive_avg_pool2d(luma, size),
        luma_squared_B1hw=F.adaptive_avg_pool2d(luma**2, size),
    )


def detail_spread(cell_BCHW: Tensor, names: tuple[str, ...]) -> Tensor:
    """How unevenly detail lies over the cells, relative to its mean: `[B]`; infinite where an image is flat.

    Noise 0.02, blocks 0.15, splatter 0.46 to 0.70; drawn scenes 0.65 to 6.
    """
    detail_BN = cell_BCHW[:, names.index("within_cell_variance")].flatten(1)
    mean_B = detail_BN.mean(-1)
    spread_B = (detail_BN - mean_B.unsqueeze(-1)).square().mean(-1).sqrt() / mean_B.clamp(min=LEAST_DETAIL)
    return torch.where(mean_B > LEAST_DETAIL, spread_B, torch.full_like(spread_B, torch.inf))


@torch.no_grad()
def pyramid_of(canvas: Canvas, channels: int = 13) -> TexturePyramid:
    """The registered set of `channels` channels of a pooled image, at three scales. Reads nothing back to the host."""
    names = channel_names(channels)
    pooled = [name for name in names if name in FINE_CHANNELS]
    fine_BChw = torch.cat([FINE_CHANNELS[name](canvas) for name in pooled], dim=1)

    def level(factor: int) -> Tensor:
        # All channels in one pool: on a GPU it is the number of launches that costs.
        coarse = fine_BChw if factor == 1 else F.avg_pool2d(fine_BChw, factor)
        maps = dict(zip(pooled, coarse.split(1, dim=1), strict=True))
        every = [maps[name] if name in maps else LEVEL_CHANNELS[name](canvas, factor) for name in names]
        return torch.cat(every, dim=1).clamp(0, 1)

    cell_BCHW = level(FINE)
    return TexturePyramid(level(1), level(FINE // 2), cell_BCHW, names, detail_spread(cell_BCHW, names))


def texture_pyramid(image: Tensor, grid_size: int | tuple[int, int], channels: int = 13) -> TexturePyramid:
    """The registered set of `channels` channels of an image, on `grid_size` cells (int or (H, W)), at three scales."""
    return pyramid_of(canvas_of(image, grid_size), channels)


def generate_texture_array(image: Tensor, grid_size: int | tuple[int, int] = 32, channels: int = 13) -> Tensor:
    """Textures of an image on a grid of cells: [B, channels, H, W], each in [0, 1], without a graph.

    `image` is uint8 0..255 or float 0..1, [3, h, w] or [B, 3, h, w]; `grid_size` a number of cells or (H, W).
    """
    return texture_pyramid(image, grid_size, channels).cell_BCHW
