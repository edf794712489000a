"""The channels of the whole array that the default set has not: place, bands, edges, clusters, time, meaning, history.

B batch, h w the finest level, N = h * w, K colour centres, X width of a ViT, T earlier looks. What a channel would need
and is not given makes it zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import GROUPS
from arr_coc.texture.channels import Canvas, ambiguity, box, colour_clusters, position, sobel_magnitude

EDGE = 0.08  # of a step from black to white: a sample with a stronger gradient lies on an edge
STILL = 0.02  # gradients under it do not tell how far something moved
CHUNK = 1 << 24  # distances that are compared at a time: 64 MB


def eccentricity(canvas: Canvas, factor: int) -> Tensor:
    """Distance to the image's centre, 1 in the corners; each axis counts alike, whatever the shape."""
    y, x = position(canvas, factor, 0), position(canvas, factor, 1)
    rows, columns = (1 if size == 1 else 0 for size in y.shape[-2:])  # a single row or column lies in the middle
    return ((2 * y - 1 + rows) ** 2 + (2 * x - 1 + columns) ** 2).div(2).sqrt()


def edges(canvas: Canvas) -> Tensor:
    """Edges and their inverse, which is 1 in what is smooth."""
    strength = sobel_magnitude(canvas)
    return torch.cat([strength, 1 - strength], dim=1)


def low_pass(canvas: Canvas) -> Tensor:
    """The luma without what is smaller than five cells."""
    return box(canvas.luma_B1hw, 5)


def edge_distance(canvas: Canvas) -> Tensor:
    """Exact distance to the nearest edge, as a share of the image's diagonal; 1 everywhere where there is no edge."""
    return nearest_distance(sobel_magnitude(canvas) > EDGE)


def nearest_distance(mark_B1hw: Tensor) -> Tensor:
    """Euclidean distance of each sample to the nearest marked one, over the diagonal; 1 where nothing is marked.

    Along columns by the last mark met from either side, then along rows by the least of all sums of squares: no
    approximation, nothing read back, and h * w * w comparisons.
    """
    height, width = mark_B1hw.shape[-2:]
    far = float(height + width)
    place_h1 = torch.arange(height, device=mark_B1hw.device, dtype=torch.float32).view(-1, 1)
    above = torch.where(mark_B1hw, place_h1, -far).cummax(-2).values
    below = torch.where(mark_B1hw, place_h1, 2 * far).flip(-2).cummin(-2).values.flip(-2)
    column_Bhw = torch.minimum(place_h1 - above, below - place_h1).square().flatten(0, 1)
    place_w = torch.arange(width, device=mark_B1hw.device, dtype=torch.float32)
    steps_ww = (place_w.view(-1, 1) - place_w).square()
    rows = max(1, CHUNK // (column_Bhw.shape[0] * width * width))
    parts = [(part.unsqueeze(-2) + steps_ww).amin(-1) for part in column_Bhw.split(rows, dim=1)]
    distance = torch.cat(parts, dim=1).sqrt().view(mark_B1hw.shape) / (height**2 + width**2) ** 0.5
    return distance.clamp(max=1)


def clusters(canvas: Canvas) -> Tensor:
    """Of the cluster that a sample's colour belongs to: how surely, how much of the image, how far from the others.

    The last is the mean distance of its colour to those of the whole image. None depends on the order of clusters.
    """
    centres_BK3, distances_BNK = colour_clusters(canvas)
    number_K = torch.arange(centres_BK3.shape[1], device=centres_BK3.device)
    own_BNK = (distances_BNK.argmin(-1, keepdim=True) == number_K).to(centres_BK3.dtype)
    share_BK1 = own_BNK.mean(1).unsqueeze(-1)
    apart_BK1 = torch.cdist(centres_BK3, centres_BK3) @ share_BK1 / 3**0.5
    told_BN2 = own_BNK @ torch.cat([share_BK1, apart_BK1], dim=-1)
    told = told_BN2.transpose(1, 2).unflatten(2, canvas.luma_B1hw.shape[-2:])
    return torch.cat([ambiguity(distances_BNK, canvas), told.to(canvas.rgb_B3hw.dtype)], dim=1)


def _zeros(canvas: Canvas, channels: int) -> Tensor:
    return canvas.luma_B1hw.new_zeros(()).expand(canvas.luma_B1hw.shape[0], channels, *canvas.luma_B1hw.shape[-2:])


def motion(canvas: Canvas) -> Tensor:
    """How far an edge moved since the frame before, across itself: 1 is a sample (a quarter of a cell) or more."""
    before, now = canvas.previous, canvas.latest or canvas
    if before is None:
        return _zeros(canvas, 1)
    change = (now.luma_B1hw - before.luma_B1hw).abs()
    # Gradients are differences over two samples; the stronger of both frames, since an edge may have come or gone.
    slope = torch.maximum(sobel_magnitude(now), sobel_magnitude(before)) / 2**0.5
    return (change * slope / (slope**2 + STILL**2)).clamp(max=1)


def temporal(canvas: Canvas) -> Tensor:
    """What changed since the frame before: brighter, darker, another hue, more or less detail."""
    before, now = canvas.previous, canvas.latest or canvas
    if before is None:
        return _zeros(canvas, len(GROUPS["temporal"]))
    luma = now.luma_B1hw - before.luma_B1hw
    hue = (now.rgb_B3hw - before.rgb_B3hw - luma).norm(dim=1, keepdim=True) / 3**0.5
    detail = _inside(now) - _inside(before)
    return torch.cat([luma.clamp(min=0), -luma.clamp(max=0), hue.clamp(max=1), detail.abs()], dim=1)


def _inside(canvas: Canvas) -> Tensor:
    """Twice the standard deviation of the pixels inside each sample."""
    return 2 * (canvas.luma_squared_B1hw - canvas.luma_B1hw**2 - 2e-7).clamp(min=0).sqrt()


def semantic(canvas: Canvas) -> Tensor:
    """What the model's own ViT saw at a glance, on 16 fixed directions: 1/2 is the image's mean, nothing is learned."""
    glance = canvas.glance_BXhw
    count = len(GROUPS["semantic"])
    if glance is None:
        return _zeros(canvas, count)
    width = glance.shape[1]
    apart = F.normalize(glance - glance.mean(dim=(-2, -1), keepdim=True), dim=1) * width**0.5
    told = torch.einsum("bxhw,cx->bchw", apart, directions(count, width, glance.device))
    return _spread(told.sigmoid(), canvas)


def directions(count: int, width: int, device: torch.device) -> Tensor:
    """Orthonormal directions `[count, X]`: cosines of growing rate, the same on every machine; zeros beyond X - 1."""
    rate = torch.arange(1, count + 1, device=device, dtype=torch.float32).view(-1, 1)
    place = torch.arange(width, device=device, dtype=torch.float32) + 0.5
    return (2 / width) ** 0.5 * torch.cos(torch.pi / width * rate * place) * (rate < width)


def _spread(map_BChw: Tensor, canvas: Canvas) -> Tensor:
    """A map of another grid on the canvas."""
    return F.interpolate(map_BChw, size=canvas.luma_B1hw.shape[-2:], mode="bilinear", align_corners=False)


def history(canvas: Canvas) -> Tensor:
    """Where earlier questions looked: the last, the mean of those before it, and where all did (of two or more)."""
    looks = canvas.history_BThw
    if looks is None:
        return _zeros(canvas, len(GROUPS["history"]))
    last, earlier = looks[:, -1:], looks[:, :-1]
    if looks.shape[1] == 1:
        return _spread(torch.cat([last, torch.zeros_like(last), torch.zeros_like(last)], dim=1), canvas)
    return _spread(torch.cat([last, earlier.mean(1, keepdim=True), looks.amin(1, keepdim=True)], dim=1), canvas)
