"""The pack of the wide world: fonts cut to the letters that are drawn, and photographs for grounds.

    python -m studies.wide.collect --out carry/wide --photos DIR --split DIR/../fixations.json

The fonts are those of `faces.py`, as installed from the Debian packages that it names. The pack travels with a
training run and is never part of the repository: set ARR_COC_WIDE to its folder.
"""

import argparse
import json
import string
from importlib import import_module
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from studies.wide.faces import ICON_FILES, PACKAGES, TEXT_FILES, installed
from studies.wide.grounds import PHOTOS
from studies.wide.icons import SETS

SIDE = 256  # px of a photograph's shorter side, at most
QUALITY = 55
MOST_BYTES = 2_900_000
LETTERS = string.ascii_letters + string.digits + " " + string.punctuation


def cut_font(source: Path, target: Path, characters: set[int]) -> None:
    """A font file with only some characters (code points)."""
    subset = import_module("fontTools.subset")  # needed here alone, and it has no types

    options = subset.Options(
        layout_features=[], name_IDs=["*"], notdef_outline=True, hinting=True, ignore_missing_unicodes=True
    )
    font = subset.load_font(str(source), options)
    chooser = subset.Subsetter(options)
    chooser.populate(unicodes=characters)
    chooser.subset(font)
    subset.save_font(font, str(target), options)


def pack_fonts(folder: Path) -> int:
    """Write every font of the wide world that is installed; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    icons: dict[str, set[int]] = {name: set() for name in ICON_FILES}
    for drawn in SETS.values():
        for font, code in drawn.values():
            icons.setdefault(font, set()).add(code)
    wanted = [(file, set(map(ord, LETTERS))) for file in TEXT_FILES.values()]
    wanted += [(file, icons[name]) for name, file in ICON_FILES.items()]
    missing = [file for file, _ in wanted if file not in installed()]
    if missing:
        raise ValueError(f"not installed: {', '.join(missing)}; install the Debian packages {' '.join(PACKAGES)}")
    for file, characters in wanted:
        cut_font(installed()[file], folder / file, characters)
    return len(wanted)


def pack_photos(photos: Path, split: Path, target: Path) -> int:
    """JPEG files of the training part of `split`, as many as fit into one file of under 3 MB; returns how many."""
    names = sorted(json.loads(split.read_text())["train"])
    order = np.random.default_rng(0).permutation(len(names))
    kept: dict[str, np.ndarray] = {}
    room = MOST_BYTES
    for number in order.tolist():
        picture = Image.open(photos / names[number]).convert("RGB")
        picture.thumbnail((SIDE * 4 // 3, SIDE))
        held = BytesIO()
        picture.save(held, "JPEG", quality=QUALITY)
        if (room := room - held.tell() - 300) < 0:
            break
        kept[Path(names[number]).stem] = np.frombuffer(held.getvalue(), np.uint8)
    np.savez(target, allow_pickle=False, **kept)
    return len(kept)


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Pack fonts and photographs for the wide world.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--photos", type=Path, help="folder of photographs; none: the pack has no photographs")
    parser.add_argument("--split", type=Path, help="JSON file that names the photographs of training")
    a = parser.parse_args()
    if bool(a.photos) != bool(a.split):
        parser.error("--photos and --split: give both or neither")
    print(f"{pack_fonts(a.out / 'fonts')} fonts")
    if a.photos:
        print(f"{pack_photos(a.photos, a.split, a.out / PHOTOS)} photographs")


if __name__ == "__main__":
    main()
