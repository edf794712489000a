"""Train a selector on a machine without the command line's libraries: `arr-coc train selector`, by argparse.

    python -m studies.selector.train --out runs/one --config configs/selector-mini-1.json [--wide 0.7]

`--wide` is the share of scenes that are drawn as the wide world draws them.
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from random import Random

from arr_coc.data.examples import Example
from arr_coc.training.config import read_selector_config
from arr_coc.training.data import draw_examples
from arr_coc.training.main import Places, train_selector
from studies.wide.training import WIDE


def draw_mixed(
    wide: float, seed: int, size: tuple[int, int], hard: bool, families: tuple[str, ...] | None
) -> list[Example]:
    """The questions of a scene, of the wide world for a share `wide` of the seeds."""
    if Random(seed).random() >= wide:
        return draw_examples(seed, size, hard, families)
    drawn, found = WIDE.draw(seed, size, 1.0, families), []
    for one in drawn.scene.questions:
        boxes = tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in one.evidence)
        found.append(Example(f"wide/{seed}: {one.text}", drawn.pixels, one.text, one.answer, boxes, one.family))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a selector.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter, metrics and checkpoints")
    parser.add_argument("--config", type=Path, help="JSON file with settings of SelectorTrainConfig")
    parser.add_argument("--init-from", type=Path, help="start from the adapter in this folder")
    parser.add_argument("--stage", type=int)
    parser.add_argument("--model", help="mini, a folder, or shape:qwen3-vl-2b")
    parser.add_argument("--seconds", type=float, help="time budget of training, start-up included")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--strategy", help="stage 2: score, straight_through, gumbel or reinforce")
    parser.add_argument("--channels", type=int, dest="texture_channels", help="size of the set of textures")
    parser.add_argument("--sight", help="textures, stem, glance or look")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--wide", type=float, default=0.0, help="share of scenes of the wide world")
    a = vars(parser.parse_args())
    places, draw = Places(a.pop("out"), a.pop("init_from")), partial(draw_mixed, a.pop("wide"))
    try:
        train_selector(
            read_selector_config(a.pop("config"), **a), places, lambda line: print(line, flush=True), draw=draw
        )
    except ValueError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
