"""The model card of mini, generated from its configuration and its results.

python -m studies.mini.card --model arr_coc/models/mini --results results/mini.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from arr_coc_scenes import COLOURS, FAMILIES, THINGS

SPLITS = {
    "seen": "the wide world, 512 px",
    "double_size": "1024 px",
    "fourfold_size": "2048 px",
    "styles": "styles never trained",
    "fonts": "fonts never trained",
    "pairs": "pairs of colour and thing never trained",
    "wordings": "wordings never trained",
    "layouts": "layouts never trained",
    "several": "several images",
    "clips": "clips",
    "clips_in_time": "clips, questions about order and direction",
    "clips_shuffled": "control: the same, frames in another order",
    "old_seen": "the first world",
    "old_unseen": "the first world: a font, wordings and layouts never trained",
    "sparse25": "25 % of the tokens: the evidence and an even grid, encoded sparse",
    "sparse6": "6 % of the tokens, or all of a larger evidence",
    "foveated25": "25 % of the tokens, a small copy among them",
    "sparse128": "128 of the 1,024 tokens of 1024 px, with the evidence",
    "foveated128": "the same, a small copy among them",
    "sparse128_missed": "128 of 1,024, half of the evidence missed",
    "foveated128_missed": "the same, a small copy among them and half of the evidence missed",
    "blank": "control: a blank image",
    "another_image": "control: another scene's image",
}
"""What is told of mini, by the names of `studies/wide/evaluate.py`."""

HEAD = """---
license: apache-2.0
pipeline_tag: image-text-to-text
library_name: transformers
---
# mini

A Qwen3-VL of {parameters:.1f} M parameters (`Qwen3VLForConditionalGeneration`: {vision} vision layers with
{levels} DeepStack levels, {text} text layers, hidden size {hidden}, M-RoPE, patch 16, merge 2) with a
tokenizer of {vocabulary} entries. It ships inside `arr_coc`, so that every command, test and benchmark runs
on real answers without a network. The same weights serve dense images and images of which only chosen cells
are encoded. Beside them lies a trained ARR-COC selector (`arr_coc.safetensors`, `arr_coc_config.json`), which
chooses those cells before the vision encoder runs.

## What it knows
Drawn things, signs, documents and charts of a world that varies on every axis (`studies/wide/`: drawing, ground, fonts,
pose, light, layouts) and of the plain one that comes with the package (`arr_coc_scenes`): {things} things in {colours}
colours, signs, pages, forms, tables, receipts, bar, line and pie charts, from 128 to 2048 px; questions of these families:
{families}; in American and British spelling, any capitals, common synonyms and plurals. Several images at once (which one
has it, what differs), and clips of 4 to 32 frames (what moves, where to, what comes and goes, in which order, how often).

## What it does not know
Photographs (it saw some as grounds, never as what is asked about), handwriting, words outside its world, and any question
of another kind. It answers those too, and the answer means nothing. What it does badly is in the figures below.
"""

RETRAIN = """
## How to train it again
    python -m studies.mini.train --out runs/1 --seconds 545 --config configs/mini-1-scratch.json
    python -m studies.mini.train --out runs/2 --seconds 512 --init-from runs/1 --config configs/mini-2-reading.json --seed 2
    python -m studies.mini.train --out runs/3 --seconds 447 --init-from runs/2 --config configs/mini-3-all.json --seed 3
    python -m studies.mini.train --out runs/4 --seconds 520 --init-from runs/3 --config configs/mini-4-binding.json --seed 4
    python -m studies.mini.train --out runs/5 --seconds 475 --init-from runs/4 --config configs/mini-5-all.json --seed 5
    python -m studies.mini.train --out runs/6 --seconds 230 --init-from runs/5 --config configs/mini-6-variety.json --seed 6
    FROM=runs/6 studies/wide/gpu_train.sh OUT 470 0 0 --config studies/wide/wide-1.json --seed 21

and six more runs of the last kind, each from the one before it, with the configs, seconds and seeds of `results/wide.json`:
on one H200, 46 minutes and 51 minutes. The recipe: cross-entropy on the answers, an auxiliary loss per visual token that is
dropped afterwards (things, colours, letters under it, and which label they belong to), sheets full of letters, scenes
that fill up over the first half, half of the steps sparse, questions about pairs of labels and values, further fonts,
wordings and layouts. Training data are drawn on the fly.
"""


def model_card(config: dict[str, Any], vocabulary: int, parameters: int, results: dict[str, Any]) -> str:
    """The card as Markdown; `config` is config.json, `results` is results/mini.json."""
    head = HEAD.format(
        parameters=parameters / 1e6,
        vision=config["vision_config"]["depth"],
        levels=len(config["vision_config"]["deepstack_visual_indexes"]),
        text=config["text_config"]["num_hidden_layers"],
        hidden=config["text_config"]["hidden_size"],
        vocabulary=f"{vocabulary:,}",
        things=len(THINGS),
        colours=len(COLOURS),
        families=", ".join(name.replace("_", " ") for name in FAMILIES),
    )
    return head + _figures(results) + RETRAIN


def _figures(results: dict[str, Any]) -> str:
    lines = [
        "\n## Figures",
        "Exact answers (descriptions: F1 over colour and thing); 95 % intervals over images. With the evidence given,",
        "the search is done for the model: that figure can exceed the one for whole images, above all on charts.",
        "",
    ]
    lines += ["| test | accuracy | interval | questions |", "|---|---|---|---|"]
    lines += [_row(label, results[key]) for key, label in SPLITS.items() if key in results]
    for split in ("seen", "several", "clips"):
        lines += ["", f"| {SPLITS[split]}, by family | accuracy | interval | questions |", "|---|---|---|---|"]
        lines += [_row(name.replace("_", " "), one) for name, one in results[split]["families"].items()]
    return "\n".join(lines) + "\n"


def _row(label: str, figure: dict[str, Any]) -> str:
    if not figure["n"]:
        return f"| {label} | - | - | 0 |"
    low, high = figure["ci95"]
    return f"| {label} | {figure['accuracy']:.1%} | {low:.1%} to {high:.1%} | {figure['n']:,} |"


def count_weights(folder: Path) -> int:
    """Parameters of a folder of bfloat16 safetensors, from the index alone."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return int(index["metadata"]["total_size"]) // 2


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Write the model card of mini.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="default: README.md in the model's folder")
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    tokenizer = json.loads((arguments.model / "tokenizer.json").read_text())
    results = json.loads(arguments.results.read_text())
    vocabulary = len(tokenizer["model"]["vocab"])
    card = model_card(config, vocabulary, count_weights(arguments.model), results)
    out = arguments.out or arguments.model / "README.md"
    out.write_text(card)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
