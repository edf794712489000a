"""What a small copy beside the chosen windows is worth, untrained: in the prompt, in the ViT, or both.

python -m studies.look_twice.fovea --questions 120 --seed 777 --out results/fovea.json

Every way looks twice and is given the same number of visual tokens in all: what a small copy takes in the prompt is
missing for windows. Context in the ViT takes none. Scenes are drawn at `--side` px.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from arr_coc.evaluation.field.batch import Batch, make_batch
from arr_coc.evaluation.field.data import Picture, batches, scene_pictures, score
from arr_coc.evaluation.field.engines import Outcome, PlainEngine
from arr_coc.evaluation.field.methods import Method, build
from arr_coc.files import write_json
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import PLAIN

SELECTOR = "look_twice"
WAYS = {  # encoding, where the small copy stands in the prompt, context in the ViT
    "sparse": ("sparse", "images", "never"),
    "sparse + context": ("sparse", "images", "always"),
    "foveated, two images": ("foveated", "images", "never"),
    "foveated, two images + context": ("foveated", "images", "always"),
    "foveated, one grid": ("foveated", "grid", "never"),
    "foveated, one grid + context": ("foveated", "grid", "always"),
}
MOST_TOKENS = 96  # of an answer
CELLS_AT_ONCE = 6144  # of all questions of a batch


def measure(owner: ARRCOCQwen, pictures: Sequence[Picture], keeps: Sequence[float]) -> Iterator[dict[str, Any]]:
    """A row per way and budget, after one for all tokens."""
    engine = PlainEngine(owner, build(owner, [SELECTOR]), MOST_TOKENS)
    cell = owner.geometry.cell
    known = [make_batch(owner, part) for part in batches(pictures, CELLS_AT_ONCE, cell)]
    plain = Method(PLAIN, "dense", 1.0)
    yield {"way": "all tokens", "keep": 1.0} | _figures([(one, engine.run(one, plain)) for one in known])
    config = owner.arr_coc_config
    for keep in keeps:
        for way, (encoding, periphery, context) in WAYS.items():
            owner.arr_coc_config = replace(config, periphery=periphery, context=context)
            made = [(one, engine.run(one, Method(SELECTOR, encoding, keep))) for one in known]
            yield {"way": way, "keep": keep} | _figures(made)
    owner.arr_coc_config = config


def _figures(made: Sequence[tuple[Batch, Outcome]]) -> dict[str, Any]:
    """Accuracy in all and by family, visual tokens in the mean, and how many of those were windows."""
    scores: dict[str, list[float]] = {}
    tokens, windows = [], []
    for batch, outcome in made:
        for query, answer in zip(batch.queries, outcome.answers, strict=True):
            found = score(query.metric, answer.strip(), query.answers)
            assert found is not None, "questions about scenes have answers"
            scores.setdefault(query.family, []).append(found)
        tokens += outcome.tokens
        windows += [len(cells) for cells in outcome.kept]
    everything = [one for family in scores.values() for one in family]
    return {
        "n": len(everything),
        "accuracy": round(sum(everything) / len(everything), 5),
        "tokens": round(sum(tokens) / len(tokens), 2),
        "windows": round(sum(windows) / len(windows), 2),
        "families": {name: round(sum(values) / len(values), 4) for name, values in sorted(scores.items())},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--questions", type=int, default=120)
    parser.add_argument("--side", type=int, default=512, help="px of the scenes")
    parser.add_argument("--seed", type=int, default=777)
    parser.add_argument(
        "--keep", type=float, action="append", help="fraction KEPT, in all; 0.25, 0.1, 0.06 if left out"
    )
    parser.add_argument("--out", type=Path, default=Path("out/fovea.json"))
    options = parser.parse_args(arguments)
    owner = ARRCOCQwen.from_pretrained(options.model, dtype="float32", fast=False)
    pictures = scene_pictures(options.questions, options.side, options.seed)
    rows = []
    for row in measure(owner, pictures, options.keep or (0.25, 0.1, 0.06)):
        rows.append(row)
        print(json.dumps({name: value for name, value in row.items() if name != "families"}), flush=True)
    about = {"model": Path(options.model).name, "side": options.side, "seed": options.seed, "selector": SELECTOR}
    write_json(options.out, {"about": about, "rows": rows})


if __name__ == "__main__":
    main()
