"""Where people would look: a small network over textures, learned from the gaze of people (`studies/saliency`).

B batch, h w a level of the canvas. It always sees the image at the same size, 64 samples along the longer side, as it
was trained: what stands out does not depend on the number of cells, and its cost does not grow with the image.
"""

from functools import cache
from importlib.resources import files

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from arr_coc.texture.channels import Canvas, colour_contrast, places, within_cell_variance

SIDE = 64  # samples of the longer side
LEAST = 8  # of the shorter one: three halvings leave something
READ = 9  # channels that it reads
WIDTHS = (24, 32, 48, 48, 48)
JOINED = 24
MOST = 32.0  # times the even share of gaze at which a place has 1: a photograph's peak has 10 to 60


class SaliencyNetwork(nn.Module):
    """Textures `[B, 9, h, w]` -> logarithm of the share of gaze `[B, 1, h/2, w/2]`, up to a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Conv2d(READ, WIDTHS[0], 3, padding=1)
        self.halve = nn.Conv2d(WIDTHS[0], WIDTHS[1], 3, stride=2, padding=1)
        self.quarter = nn.Conv2d(WIDTHS[1], WIDTHS[2], 3, stride=2, padding=1)
        self.around = nn.Conv2d(WIDTHS[2], WIDTHS[3], 3, padding=2, dilation=2)
        self.beyond = nn.Conv2d(WIDTHS[3], WIDTHS[4], 3, padding=4, dilation=4)
        self.far = nn.Conv2d(sum(WIDTHS[2:]), JOINED, 1)
        self.near = nn.Conv2d(WIDTHS[1], JOINED, 1)
        self.join = nn.Conv2d(JOINED, JOINED, 3, padding=1)
        self.tell = nn.Conv2d(JOINED, 1, 1)
        self.place = nn.Conv2d(5, 1, 1, bias=False)
        # Training has normalisation here; once trained it is folded into the convolutions.
        self.norms = nn.ModuleList(nn.Identity() for _ in WIDTHS)

    def forward(self, textures_B9hw: Tensor) -> Tensor:
        steps = (self.see, self.halve, self.quarter, self.around, self.beyond)
        kept, x = [], textures_B9hw * 4 - 1
        for step, norm in zip(steps, self.norms, strict=True):
            x = F.gelu(norm(step(x)))
            kept.append(x)
        half = kept[1].shape[-2:]
        far = F.interpolate(self.far(torch.cat(kept[2:], dim=1)), size=half, mode="bilinear", align_corners=False)
        told: Tensor = self.tell(F.gelu(self.join(F.gelu(far + self.near(kept[1])))))
        return told + self.place(off_centre(half[0], half[1], told.device))


def off_centre(height: int, width: int, device: torch.device) -> Tensor:
    """How far each place lies from the middle, `[1, 5, h, w]`: y, x, their squares and product; people look there."""
    y, x = places(height, width, device) - 0.5
    return torch.stack([y, x, y**2, x**2, x * y]).unsqueeze(0)


def saliency_textures(canvas: Canvas) -> Tensor:
    """What the network reads, `[B, 9, h, w]`: colour, detail, edges along x and y, contrast of colour, place."""
    height, width = canvas.luma_B1hw.shape[-2:]
    place_B2hw = places(height, width, canvas.luma_B1hw.device).expand(canvas.luma_B1hw.shape[0], -1, -1, -1)
    detail, contrast = within_cell_variance(canvas, 1), colour_contrast(canvas)
    return torch.cat([canvas.rgb_B3hw, detail, *canvas.gradients, contrast, place_B2hw], dim=1)


def as_trained(canvas: Canvas) -> Canvas:
    """The canvas at the size that the network knows."""
    height, width = canvas.luma_B1hw.shape[-2:]
    size = tuple(max(LEAST, round(side * SIDE / max(height, width))) for side in (height, width))
    if size == (height, width):
        return canvas
    pooled = torch.cat([canvas.rgb_B3hw, canvas.luma_B1hw, canvas.luma_squared_B1hw], dim=1)
    if max(height, width) > SIDE:
        pooled = F.interpolate(pooled, size=size, mode="area")
    else:
        pooled = F.interpolate(pooled, size=size, mode="bilinear", align_corners=False)
    return Canvas.of(pooled[:, :3], pooled[:, 3:4], pooled[:, 4:5])


@cache
def _network(device: torch.device) -> SaliencyNetwork:
    """The network that ships, on a device."""
    weights = load((files("arr_coc") / "assets" / "saliency.safetensors").read_bytes())
    network = SaliencyNetwork()
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    return network.eval().requires_grad_(False).to(device)


def gaze(network: nn.Module, canvas: Canvas) -> Tensor:
    """The share of gaze that falls on each place, relative to an even one, `[B, 1, h, w]`: 1 on average."""
    logits = network(saliency_textures(as_trained(canvas)))
    logits = F.interpolate(logits, size=canvas.luma_B1hw.shape[-2:], mode="bilinear", align_corners=False)
    return logits.flatten(1).softmax(-1).view(logits.shape) * logits.shape[-2:].numel()


def saliency(canvas: Canvas) -> Tensor:
    """Where people would look: the share of gaze on each place, in [0, 1]; the mean of an image is about 1/32."""
    return (gaze(_network(canvas.luma_B1hw.device), canvas) / MOST).clamp(max=1)
