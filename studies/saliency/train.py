"""Train the saliency network on the gaze of people, on a CPU, in minutes.

python -m studies.saliency.train --gaze FOLDER --out arr_coc/assets/saliency.safetensors

The schedule is fixed: no step is chosen by looking at the validation photographs.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from arr_coc.texture.channels import LUMA, Canvas, canvas_of
from arr_coc.texture.saliency import WIDTHS, SaliencyNetwork, saliency_textures
from studies.saliency.gaze import Gaze, on_places, read_gaze

GRID = (12, 16)  # cells of 32 px of a photograph of 384 x 512 px
BATCH = 16


@dataclass(frozen=True, slots=True)
class Schedule:
    epochs: int = 30
    rate: float = 4e-3
    decay: float = 0.3
    dropout: float = 0.25
    averaged: float = 0.99  # of the running mean of the weights that is kept at each step
    seed: int = 0


def pooled(gaze: Gaze) -> Tensor:
    """All photographs as canvases, `[B, 5, h, w]`: colour, luma, and squared luma."""
    canvases = [canvas_of(photo, GRID) for photo in gaze.photos]
    return torch.cat([torch.cat([c.rgb_B3hw, c.luma_B1hw, c.luma_squared_B1hw], dim=1) for c in canvases])


def other_light(pooled_B5hw: Tensor) -> Tensor:
    """The same photographs in another light: contrast, brightness, tint and saturation, some of them grey."""
    batch = pooled_B5hw.shape[0]

    def drawn(spread: float, channels: int = 1) -> Tensor:
        return spread * torch.randn(batch, channels, 1, 1)

    luma_weights = torch.tensor(LUMA).view(1, 3, 1, 1)
    detail = pooled_B5hw[:, 4:5] - pooled_B5hw[:, 3:4] ** 2
    gain = (1 + drawn(0.25)).clamp(0.5, 1.6)
    rgb = (pooled_B5hw[:, :3] - 0.5) * gain * (1 + drawn(0.1, 3)).clamp(0.7, 1.3) + 0.5 + drawn(0.08)
    luma = (rgb * luma_weights).sum(1, keepdim=True)
    saturation = (1 + drawn(0.4)).clamp(0, 2) * (torch.rand(batch, 1, 1, 1) > 0.1)
    rgb = (luma + (rgb - luma) * saturation).clamp(0, 1)
    luma = (rgb * luma_weights).sum(1, keepdim=True)
    return torch.cat([rgb, luma, luma**2 + detail * gain**2], dim=1)


def loss_of(logits_B1hw: Tensor, counts_Bhw: Tensor, density_Bhw: Tensor) -> Tensor:
    """Cross-entropy of the gaze, less shares of NSS and correlation."""
    log_BN = on_places(logits_B1hw).flatten(1).log_softmax(-1)
    share = log_BN.exp()
    standard = (share - share.mean(-1, keepdim=True)) / (share.std(-1, keepdim=True) + 1e-9)
    counts, density = counts_Bhw.flatten(1), density_Bhw.flatten(1)
    nss = ((standard * counts).sum(-1) / counts.sum(-1)).mean()
    wanted = (density - density.mean(-1, keepdim=True)) / density.std(-1, keepdim=True)
    return -(density * log_BN).sum(-1).mean() - 0.2 * nss - 0.5 * (standard * wanted).mean()


def learner(dropout: float) -> SaliencyNetwork:
    """The network with what only training needs: normalisation, and channels left out of what is far."""
    network = SaliencyNetwork()
    shares = [0.0, 0.0, dropout, dropout, dropout]
    network.norms = nn.ModuleList(
        nn.Sequential(nn.BatchNorm2d(width), nn.Dropout2d(share)) for width, share in zip(WIDTHS, shares, strict=True)
    )
    return network


def folded(network: SaliencyNetwork) -> SaliencyNetwork:
    """The network as it ships: normalisation folded into the convolutions."""
    network = network.eval()
    for name, norm in zip(("see", "halve", "quarter", "around", "beyond"), network.norms, strict=True):
        assert isinstance(norm, nn.Sequential)
        assert isinstance(norm[0], nn.BatchNorm2d)
        setattr(network, name, fuse_conv_bn_eval(getattr(network, name), norm[0]))
    network.norms = nn.ModuleList(nn.Identity() for _ in WIDTHS)
    return network


def trained(gaze: Gaze, schedule: Schedule) -> SaliencyNetwork:
    torch.manual_seed(schedule.seed)
    photos_B5hw = pooled(gaze)
    network, mean = learner(schedule.dropout), learner(schedule.dropout)
    mean.load_state_dict(network.state_dict())
    steps = schedule.epochs * (len(photos_B5hw) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=schedule.rate, weight_decay=schedule.decay)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, schedule.rate, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        if step % (len(photos_B5hw) // BATCH) == 0:
            order = torch.randperm(len(photos_B5hw))
        chosen = order[step * BATCH % (len(photos_B5hw) // BATCH * BATCH) :][:BATCH]
        maps = photos_B5hw[chosen], gaze.counts_Bhw[chosen], gaze.density_Bhw[chosen]
        mirrored = torch.rand(BATCH) < 0.5
        photos, counts, density = (
            torch.where(mirrored.view(-1, *[1] * (one.ndim - 1)), one.flip(-1), one) for one in maps
        )
        with torch.no_grad():
            light = other_light(photos)
            textures = saliency_textures(Canvas.of(light[:, :3], light[:, 3:4], light[:, 4:5]))
        loss = loss_of(network(textures), counts, density)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        kept = min(schedule.averaged, (step + 1) / (step + 11))
        with torch.no_grad():
            for slow, fast in zip(mean.state_dict().values(), network.state_dict().values(), strict=True):
                if slow.is_floating_point():
                    slow.lerp_(fast, 1 - kept)
        if step % 100 == 99:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
    return folded(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gaze", type=Path, required=True, help="folder with photos/ and fixations.json")
    parser.add_argument("--out", type=Path, required=True, help="where the weights go, in half precision")
    parser.add_argument("--epochs", type=int, default=Schedule().epochs)
    a = parser.parse_args()
    begun = time.perf_counter()
    network = trained(read_gaze(a.gaze, "train"), Schedule(epochs=a.epochs))
    told = {"seconds": str(round(time.perf_counter() - begun)), "schedule": json.dumps({"epochs": a.epochs})}
    save_file({name: tensor.half().contiguous() for name, tensor in network.state_dict().items()}, a.out, told)
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters in {told['seconds']} s: {a.out}")


if __name__ == "__main__":
    main()
