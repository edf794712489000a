"""The adapter of the format before as a start for the one of today: what fits is taken over, the rest is fresh.

    python -m studies.selector.convert --old runs/before --out runs/start [--channels 40] [--sight look]

Until format 4 the participatory scorer read full-size textures at 21 places of a cell, the stem over them, and the
glance. Now it is shown a small copy. Its first layer's weights for the places of a channel are added up, as if all were
equal, which is what they are in a small copy; those of the glance, the question, and all deliberation stay as they are.
Information, perspectival and the policy, which the old training had driven to nothing, begin anew.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from arr_coc.config import CONFIG_FILE, ARRCOCConfig, channel_names
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.storage import WEIGHTS_FILE, save_adapter

OLD_VERSION = 3
HEARD = 0.3  # how far a look moves what was learned without one, at first
PLACES = 16 + 4 + 1  # of a channel in a cell, all three scales together
FIRST = "knowing.participatory.cells.0.weight"
KEPT = ("sight.glance.", "knowing.participatory.", "pool.", "attending.")
FRESH = ("knowing.participatory.looked.", "knowing.participatory.trusts_look")


def first_layer(old_EG: Tensor, new_EG: Tensor, old: ARRCOCConfig, new: ARRCOCConfig) -> Tensor:
    """Weights `[192, G]` of the participatory scorer's first layer for what it is shown now."""
    before, now = channel_names(old.texture_channels), channel_names(new.texture_channels)
    # The old order: 16 fine samples of each channel, 4 middle ones of each, one of each cell; then stem and glance.
    fine, middle, cell, stem, glance = old_EG.split(
        [16 * len(before), 4 * len(before), len(before), old.sight_channels, old.glance_channels], dim=1
    )
    of_channel = fine.unflatten(1, (-1, 16)).sum(-1) + middle.unflatten(1, (-1, 4)).sum(-1) + cell
    made = torch.zeros_like(new_EG)
    for place, name in enumerate(before):
        if name in now:
            made[:, now.index(name)] = of_channel[:, place]
    made[:, len(now) : len(now) + stem.shape[1]] = new_EG[:, len(now) : len(now) + stem.shape[1]]
    made[:, -glance.shape[1] :] = glance
    return made


def convert(folder: Path, channels: int, sight: str, look_dim: int) -> tuple[ARRCOCConfig, ARRCOCLayer]:
    """A layer of today's format that begins with what the adapter of the format before had learned."""
    settings = json.loads((folder / CONFIG_FILE).read_text())
    if settings.pop("format_version") != OLD_VERSION or settings["sight"] != "glance":
        raise ValueError(f"{folder}: expected an adapter of format {OLD_VERSION} with a glance")
    old = ARRCOCConfig(**settings)
    new = ARRCOCConfig(**settings | {"texture_channels": channels, "sight": sight, "look_dim": look_dim})
    torch.manual_seed(0)
    layer = ARRCOCLayer.from_config(new)
    weights, given = layer.state_dict(), load_file(folder / WEIGHTS_FILE)
    for name, tensor in weights.items():
        if name == FIRST:
            weights[name] = first_layer(given[name].flatten(1), tensor.flatten(1), old, new).view_as(tensor)
        elif name.startswith(KEPT) and not name.startswith(FRESH):
            weights[name] = given[name]
    if sight == "look":
        weights["knowing.participatory.trusts_look"] = torch.tensor(HEARD)
    layer.load_state_dict(weights)
    return new, layer


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Begin a selector of today's format with one of the format before.")
    parser.add_argument("--old", type=Path, required=True, help="folder of the adapter of the format before")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--channels", type=int, default=40)
    parser.add_argument("--sight", default="look")
    parser.add_argument("--look-dim", type=int, default=20, help="attention maps; mini's are 20")
    a = parser.parse_args()
    config, layer = convert(a.old, a.channels, a.sight, a.look_dim if a.sight == "look" else 0)
    a.out.mkdir(parents=True, exist_ok=True)
    save_adapter(a.out, config, layer)
    print(f"{sum(p.numel() for p in layer.parameters()):,} parameters in {a.out}")


if __name__ == "__main__":
    main()
