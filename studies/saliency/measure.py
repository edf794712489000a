"""Measure saliency maps on the validation photographs, against where people looked.

python -m studies.saliency.measure --gaze FOLDER --out results/saliency.json

Everything reads a photograph of 512 x 384 px on its own grid of 16 x 12 cells, at the finest level of the textures.
"""

import argparse
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from arr_coc.evaluation.statistics import Clustered, compared, difference_of, mean_of
from arr_coc.knowing import PerspectivalScorer
from arr_coc.qwen.chooser import Chooser
from arr_coc.texture import pyramid_of
from arr_coc.texture.channels import canvas_of
from arr_coc.texture.saliency import SaliencyNetwork
from studies.saliency.gaze import METRICS, PLACES, Gaze, judged, on_places, read_gaze
from studies.saliency.train import GRID

Maker = Callable[[Tensor], Tensor]
WEIGHTS = Path(str(files("arr_coc") / "assets" / "saliency.safetensors"))


def channel(name: str, grid: tuple[int, int] = GRID) -> Maker:
    """A texture channel of a photograph at its finest level, `[1, 1, h, w]`."""
    return lambda photo: pyramid_of(canvas_of(photo, grid), (name,)).fine_BChw


def shipped_scorer() -> Maker:
    """The perspectival map of the adapter that ships with mini. It never reads the question."""
    chooser = Chooser.from_pretrained("mini", keep=0.25)

    def make(photo: Tensor) -> Tensor:
        chosen = chooser.choose(photo.permute(1, 2, 0).numpy(), "Describe the scene.")
        return chosen[0].maps["perspectival"][None, None]

    return make


def methods(train: Gaze) -> dict[str, Maker]:
    """Name -> photograph to map of any grid."""
    centre = train.density_Bhw.mean(0)[None, None]
    torch.manual_seed(0)
    start, learned = PerspectivalScorer(13), PerspectivalScorer(40)

    def scored(scorer: PerspectivalScorer, channels: int) -> Maker:
        return lambda photo: scorer(pyramid_of(canvas_of(photo, GRID), channels)).unsqueeze(1)

    return {
        "learned": channel("saliency"),
        "learned_fine": channel("saliency", (2 * GRID[0], 2 * GRID[1])),
        "learned_cells": lambda photo: pyramid_of(canvas_of(photo, GRID), ("saliency",)).cell_BCHW,
        "spectral_residual": channel("spectral_residual"),
        "spectral_residual_fine": channel("spectral_residual", (2 * GRID[0], 2 * GRID[1])),
        "colour_contrast": channel("colour_contrast"),
        "local_contrast": channel("local_contrast"),
        "centre_bias": lambda photo: centre,
        "perspectival_shipped": shipped_scorer(),
        "perspectival_untrained_13": scored(start, 13),
        "perspectival_untrained_40": scored(learned, 40),
    }


@torch.no_grad()
def measured(train: Gaze, validation: Gaze) -> dict[str, Any]:
    found: dict[str, Tensor] = {}
    for name, make in methods(train).items():
        found[name] = judged(torch.cat([on_places(make(photo)) for photo in validation.photos]), validation)
        print(name, [round(value, 3) for value in found[name].mean(0).tolist()], flush=True)
    itself = judged(validation.density_Bhw, validation)  # the most that a map could have, which knows the gaze
    places = np.arange(len(validation.names))
    samples = {
        name: {
            metric: Clustered(rows[:, column].numpy().astype(float), places) for column, metric in enumerate(METRICS)
        }
        for name, rows in found.items()
    }
    learned = samples["learned"]["nss"]
    return {
        "photographs": len(places),
        "places": list(PLACES),
        "methods": {name: {metric: mean_of(one) for metric, one in by.items()} for name, by in samples.items()},
        "gaze_itself": dict(zip(METRICS, itself.mean(0).tolist(), strict=True)),
        "nss_over_spectral_residual": compared(learned, samples["spectral_residual"]["nss"], np.divide),
        "nss_above_centre_bias": difference_of(learned, samples["centre_bias"]["nss"]),
        "nss_above_shipped": difference_of(learned, samples["perspectival_shipped"]["nss"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gaze", type=Path, required=True, help="folder with photos/ and fixations.json")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    found = measured(read_gaze(a.gaze, "train"), read_gaze(a.gaze, "validation"))
    with safe_open(WEIGHTS, "pt") as weights:
        training = {name: json.loads(value) for name, value in weights.metadata().items()}
    network = {
        "parameters": sum(one.numel() for one in SaliencyNetwork().parameters()),
        "weights_kb": round(WEIGHTS.stat().st_size / 1000),
        "training": training,
    }
    command = "python -m studies.saliency.measure --gaze FOLDER --out results/saliency.json"
    a.out.write_text(json.dumps({"command": command, "network": network, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
