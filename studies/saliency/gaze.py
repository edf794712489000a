"""Where people looked at photographs, and how well a map says so.

B photographs, h w the grid of 96 x 128 places on which maps are judged (photographs are 3 : 4), P fixations.

The folder has `photos/` and `fixations.json`: {"train" or "validation": {file: [[[x, y], ...] per person]}}, x and y as
shares of the image. Its photographs stay there: nothing of them is kept.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

PLACES = (96, 128)  # rows and columns on which maps are judged
BLUR = 0.03  # of the width: one degree of a viewer's eye, about what the fovea sees
TINY = 1e-9
METRICS = ("nss", "auc_judd", "cc", "kl")


@dataclass(frozen=True, slots=True)
class Gaze:
    """Photographs of one split, in the order of their names."""

    names: list[str]
    photos: list[Tensor]  # uint8 [3, h, w]
    counts_Bhw: Tensor  # fixations on each place
    density_Bhw: Tensor  # the same blurred, sums to 1


def read_gaze(folder: Path, split: str) -> Gaze:
    fixations = json.loads((folder / "fixations.json").read_text())[split]
    names = sorted(fixations)
    photos = [np.array(Image.open(folder / "photos" / name).convert("RGB")) for name in names]
    found = [torch.tensor([point for person in fixations[name] for point in person]) for name in names]
    counts_Bhw = torch.stack([counted(points_P2) for points_P2 in found])
    pixels = [torch.from_numpy(photo).permute(2, 0, 1) for photo in photos]
    return Gaze(names, pixels, counts_Bhw, blurred(counts_Bhw))


def counted(points_P2: Tensor) -> Tensor:
    """Fixations (x, y) in [0, 1] -> how many fell on each place."""
    height, width = PLACES
    x, y = ((points_P2[:, axis] * size).long().clamp(0, size - 1) for axis, size in ((0, width), (1, height)))
    return torch.bincount(y * width + x, minlength=height * width).view(height, width).float()


def blurred(counts_Bhw: Tensor) -> Tensor:
    """Fixations blurred by a Gaussian, each map summing to 1."""
    sigma = BLUR * PLACES[1]
    reach = round(4 * sigma)
    bell = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    maps = F.conv2d(counts_Bhw.unsqueeze(1), bell.view(1, 1, -1, 1), padding=(reach, 0))
    maps = F.conv2d(maps, bell.view(1, 1, 1, -1), padding=(0, reach)).squeeze(1)
    return maps / maps.sum((-2, -1), keepdim=True)


def on_places(map_B1hw: Tensor) -> Tensor:
    """A map of any grid on the places where it is judged, `[B, h, w]`."""
    return F.interpolate(map_B1hw.float(), size=PLACES, mode="bilinear", align_corners=False).squeeze(1)


def nss(map_hw: Tensor, counts_hw: Tensor) -> float:
    """Normalised scanpath saliency: the map, with mean 0 and deviation 1, averaged over fixations."""
    standard = (map_hw - map_hw.mean()) / (map_hw.std() + TINY)
    return ((standard * counts_hw).sum() / counts_hw.sum()).item()


def auc_judd(map_hw: Tensor, counts_hw: Tensor) -> float:
    """Area under the curve of fixations found against other places taken, at every threshold; ties count half."""
    values, counts = map_hw.flatten(), counts_hw.flatten()
    levels, level_of = values.unique(return_inverse=True)
    hits, misses = torch.zeros(2, len(levels) + 1, dtype=torch.float64).unbind(0)
    top_first = len(levels) - level_of  # 1 for the highest level
    hits.scatter_add_(0, top_first, counts.double())
    misses.scatter_add_(0, top_first, (counts == 0).double())
    area = torch.trapezoid(hits.cumsum(0) / hits.sum(), misses.cumsum(0) / misses.sum())
    return area.item()


def correlation(map_hw: Tensor, density_hw: Tensor) -> float:
    both = torch.stack([map_hw.flatten(), density_hw.flatten()])
    both = both - both.mean(1, keepdim=True)
    return ((both[0] * both[1]).sum() / (both.norm(dim=1).prod() + TINY)).item()


def divergence(map_hw: Tensor, density_hw: Tensor) -> float:
    """Kullback-Leibler divergence of the gaze from the map taken as shares; less is better."""
    share = map_hw / (map_hw.sum() + TINY)
    return (density_hw * ((density_hw + TINY) / (share + TINY)).log()).sum().item()


def judged(maps_Bhw: Tensor, gaze: Gaze) -> Tensor:
    """Every measure of METRICS of every map, `[B, 4]`."""
    rows = [
        (nss(one, counts), auc_judd(one, counts), correlation(one, density), divergence(one, density))
        for one, counts, density in zip(maps_Bhw, gaze.counts_Bhw, gaze.density_Bhw, strict=True)
    ]
    return torch.tensor(rows)
