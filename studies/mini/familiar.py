"""What tells photographs from the drawn world, by what mini's own ViT makes of a small copy: fitted, and measured.

    ARR_COC_WIDE=PACK python -m studies.mini.familiar fit PHOTOS SPLIT
    ARR_COC_WIDE=OTHER_PACK python -m studies.mini.familiar measure PHOTOS SPLIT

PHOTOS is a folder of photographs, SPLIT the JSON file that names those of training and of validation; a pack is made by
`studies.wide.collect`, and measuring wants one whose photographs were not fitted on. The weights go into mini's
folder, the figures to results/familiar.json.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc import ARRCOCQwen
from arr_coc.files import write_json, write_whole
from arr_coc.images.reader import byte_tensor, read_image
from arr_coc.qwen.familiar import PROBE, impression
from arr_coc_scenes import draw_scene, make_scene
from studies.mini.train import ASSETS
from studies.wide.making import make_wide

SIDES = (256, 384, 512, 512, 640, 768)  # px
DECAY = 0.1  # of the weights over standardised features: 0.001 fits training whole, and foreign hands worse
RESULT = Path("results/familiar.json")


def cropped(picture: Image.Image, rng: Random) -> Image.Image:
    """A part of a photograph, half of the time mirrored."""
    share = rng.uniform(0.4, 1.0)
    wide, high = round(picture.width * share), round(picture.height * share)
    x, y = rng.randint(0, picture.width - wide), rng.randint(0, picture.height - high)
    part = picture.crop((x, y, x + wide, y + high))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else part


def photographs(folder: Path, split: Path, part: str, crops: int) -> Iterator[Image.Image]:
    """Each photograph of a part whole, and `crops` parts of it."""
    for name in sorted(json.loads(split.read_text())[part]):
        picture = read_image(folder / name)
        yield picture
        yield from (cropped(picture, Random(f"{name}/{crop}")) for crop in range(crops))


def drawings(split: str, count: int, ground: str | None = None, first: int = 0) -> Iterator[Image.Image]:
    """Scenes of the wide world of all sizes and shapes, on one kind of ground if it is named."""
    seed, rng = first, Random(f"{split}/{ground}")
    while count:
        size = rng.choice(SIDES), rng.choice(SIDES)
        wide = make_wide(seed, split, size)
        seed += 1
        if ground is None or wide.draft.chosen.ground == ground:
            count -= 1
            yield Image.fromarray(wide.pixels)


def old_drawings(count: int) -> Iterator[Image.Image]:
    """Scenes of the first world."""
    for seed in range(count):
        yield Image.fromarray(draw_scene(make_scene(seed, "train", (512, 512))))


def seen(owner: ARRCOCQwen, pictures: Iterable[Image.Image]) -> Tensor:
    """Impressions `[pictures, X]`."""
    return torch.stack([impression(owner.model, byte_tensor(picture), owner.geometry) for picture in pictures])


def fit(photos_NX: Tensor, drawn_MX: Tensor) -> dict[str, Any]:
    """A logistic regression, both sides counting alike; above 0 it is rather a photograph than a drawing."""
    both = torch.cat([photos_NX, drawn_MX])
    mean, spread = both.mean(0), both.std(0) + 1e-3
    target = torch.cat([torch.ones(len(photos_NX)), torch.zeros(len(drawn_MX))])
    share = torch.where(target > 0, 0.5 / target.mean(), 0.5 / (1 - target.mean()))
    weight, bias = torch.zeros(both.shape[1], requires_grad=True), torch.zeros(1, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=300)

    def loss() -> Tensor:
        solver.zero_grad()
        logits = (both - mean) / spread @ weight + bias
        off = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, weight=share)
        off = off + DECAY * weight.square().sum()
        off.backward()
        return off

    solver.step(loss)
    folded = weight.detach() / spread
    return {"weight": [round(one, 5) for one in folded.tolist()], "bias": float(bias.detach() - folded @ mean)}


def told(owner: ARRCOCQwen, pictures: Iterable[Image.Image]) -> dict[str, int]:
    """How many of the pictures are told to look like photographs."""
    found = [bool(owner.unfamiliar(one)) for one in pictures]
    return {"pictures": len(found), "told": sum(found)}


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Fit and measure what tells photographs from drawn scenes.")
    parser.add_argument("task", choices=("fit", "measure"))
    parser.add_argument("photos", type=Path)
    parser.add_argument("split", type=Path)
    a = parser.parse_args()
    owner = ARRCOCQwen.from_pretrained("mini")
    if a.task == "fit":
        drawn = (drawings("train", 600), drawings("train", 400, "photo", 10**6), old_drawings(200))
        photos_NX = seen(owner, photographs(a.photos, a.split, "train", 1))
        found = fit(photos_NX, torch.cat([seen(owner, some) for some in drawn]))
        write_whole(ASSETS / PROBE, json.dumps(found) + "\n")
        return
    sets = {
        "photographs of validation": photographs(a.photos, a.split, "validation", 0),
        "parts of them": (part for n, part in enumerate(photographs(a.photos, a.split, "validation", 1)) if n % 2),
        "the wide world, seen": drawings("seen", 120),
        "on photographs, seen": drawings("seen", 60, "photo", 10**6),
        "styles never trained": drawings("styles", 120),
        "the first world": old_drawings(60),
    }
    write_json(RESULT, {name: told(owner, pictures) for name, pictures in sets.items()})
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
