"""What is kept where nobody asks: of the cells that people looked at in photographs, and of what is written on pages.

python -m studies.saliency.choice --gaze FOLDER --out results/gaze.json
python -m studies.saliency.choice --gaze FOLDER --split train --out out/gaze-train.json     # to choose exponents by

Looking twice without a question, beside variance, the centre, an even grid and chance, as `arr-coc eval --score
evidence` judges them. Documents with gaze are not at hand; pages stand in for them: what is written or drawn should be
kept, titles first, and blank paper should not. Of pages, 1 less the precision is the share of the kept cells that is
blank.
"""

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.evaluation.field.data import Picture, Query, Share, ids_of
from arr_coc.evaluation.field.evidence import HOW, KEEPS, EvidenceBench, described, row_of
from arr_coc.evaluation.field.main import FieldOptions
from arr_coc.evaluation.field.methods import Method
from arr_coc.evaluation.field.run import Samples
from arr_coc.files import read_json_object, write_json
from arr_coc.images.reader import read_image
from arr_coc_scenes.types import Box
from studies.saliency.pages import DENSE, SIZES, dense_page, whole_page
from studies.text_channel import LAYOUTS
from studies.wide.making import make_wide

PAGES = 60  # of each kind of pages
SIDE = 768  # px of a drawn page


def unasked(**truth: Any) -> tuple[Query, ...]:
    return (Query("", (), "none", "", **{"boxes": None, **truth}),)


def shares(boxes: list[Box], size: tuple[int, int]) -> tuple[Share, ...]:
    width, height = size
    return tuple((x0 / width, y0 / height, x1 / width, y1 / height) for x0, y0, x1, y1 in boxes)


def _read(path: Path) -> np.ndarray:
    return np.array(read_image(path))


def photographs(folder: Path, split: str) -> Iterator[Picture]:
    fixations = read_json_object(folder / "fixations.json")[split]
    for number, name in enumerate(sorted(fixations)):
        path = folder / "photos" / name
        looked = tuple((x, y) for person in fixations[name] for x, y in person)
        yield Picture(number, read_image(path).size, partial(_read, path), unasked(gaze=looked))


def drawn_pages(split: str) -> Iterator[Picture]:
    """Documents of the wide world: texts, things and bars."""
    number = 0
    for seed in range(100_000):
        wide = make_wide(seed, split, (SIDE, SIDE), families=("title", "lookup"))
        if wide.scene.layout in LAYOUTS:
            held = [one.box for one in wide.scene.elements]
            pixels = partial(np.array, wide.pixels)
            yield Picture(number, (SIDE, SIDE), pixels, unasked(boxes=shares(held, (SIDE, SIDE))))
            number += 1
        if number == PAGES:
            return


def whole_pages(first: int, titles: bool) -> Iterator[Picture]:
    """Papers, web pages and slides: all that is on them, or their titles alone."""
    for number in range(PAGES):
        kind = list(SIZES)[number % len(SIZES)]
        page = whole_page(first + number, kind)
        held = page.titles if titles else [*page.titles, *page.lines, *page.figures]
        yield Picture(number, SIZES[kind], partial(np.array, page.pixels), unasked(boxes=shares(held, SIZES[kind])))


def dense_pages(first: int, what: str) -> Iterator[Picture]:
    """Newspapers, reports and leaflets: their "titles" or "headings"."""
    for number in range(PAGES):
        kind = list(DENSE)[number % len(DENSE)]
        page = dense_page(first + number, kind)
        yield Picture(
            number, DENSE[kind], partial(np.array, page.pixels), unasked(boxes=shares(getattr(page, what), DENSE[kind]))
        )


def measured(gaze: Path, split: str) -> list[dict[str, Any]]:
    """Rows of every choice on every kind of pictures."""
    bench = EvidenceBench(FieldOptions(model="mini", selectors=("look_twice",), device="cpu", bar=False))
    methods = [Method(spec, HOW, keep) for keep in KEEPS for spec in bench.selectors]
    first, drawn = (0, "train") if split == "train" else (10_000, "seen")
    kinds = {
        "photographs": photographs(gaze, split),
        "drawn pages": drawn_pages(drawn),
        "whole pages": whole_pages(first, False),
        "titles of whole pages": whole_pages(first, True),
        "titles of dense pages": dense_pages(first, "titles"),
        "headings of dense pages": dense_pages(first, "headings"),
    }
    rows = []
    for name, several in kinds.items():
        pictures = list(several)
        with tempfile.TemporaryDirectory() as folder:
            samples = Samples(Path(folder) / "samples.jsonl", bench.about(name, None), bench.stamps)
            bench.fill(pictures, methods, samples, bar=False)
        ids = [one for one, _, _ in ids_of(pictures)]
        records = {method: [samples.records[method.key][one] for one in ids] for method in methods}
        rows += [row_of(method, records, {"dataset": name}) for method in methods]
        for row in rows[-len(methods) :]:
            print(name, described(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gaze", type=Path, required=True, help="folder with photos/ and fixations.json")
    parser.add_argument("--split", choices=("train", "validation"), default="validation")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    command = "python -m studies.saliency.choice --gaze FOLDER --out results/gaze.json"
    write_json(a.out, {"command": command, "split": a.split, HOW: measured(a.gaze, a.split)}, indent=1)


if __name__ == "__main__":
    main()
