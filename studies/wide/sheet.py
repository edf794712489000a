"""A sheet of scenes to look at.

python -m studies.wide.sheet --out sheet.png --split train --seed 0
"""

import argparse
from pathlib import Path

from PIL import Image, ImageDraw

from studies.wide.held_out import SPLITS
from studies.wide.making import make_wide


def sheet(split: str, first: int, columns: int, rows: int, side: int, boxes: bool) -> Image.Image:
    """`columns` x `rows` scenes of `side` px, each with its first question and answer below it."""
    whole = Image.new("RGB", (columns * (side + 8), rows * (side + 46)), "white")
    pen = ImageDraw.Draw(whole)
    for number in range(columns * rows):
        wide = make_wide(first + number, split, (side, side))
        question = wide.scene.questions[number % len(wide.scene.questions)]
        picture = Image.fromarray(wide.pixels)
        if boxes:
            frame = ImageDraw.Draw(picture)
            for box in question.evidence:
                frame.rectangle((box[0] - 2, box[1] - 2, box[2] + 1, box[3] + 1), outline=(255, 0, 255))
        x, y = number % columns * (side + 8), number // columns * (side + 46)
        whole.paste(picture, (x, y))
        look = wide.draft.chosen
        pen.text(
            (x + 2, y + side + 2), f"{wide.scene.layout} {look.ground} {look.capture} {first + number}", fill="gray"
        )
        pen.text((x + 2, y + side + 14), question.text[:80], fill="black")
        pen.text((x + 2, y + side + 27), f"= {question.answer[:80]}", fill="black")
    return whole


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Draw a sheet of wide scenes.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default="train", choices=SPLITS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--columns", type=int, default=4)
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--side", type=int, default=384)
    parser.add_argument("--boxes", action="store_true", help="frame the evidence")
    a = parser.parse_args()
    sheet(a.split, a.seed, a.columns, a.rows, a.side, a.boxes).save(a.out)


if __name__ == "__main__":
    main()
