"""A sheet of clips or of rows of several images to look at, with their questions.

python -m studies.wide.view_sheet --out sheet.png --kind clips --seed 0
"""

import argparse
from pathlib import Path

from PIL import Image, ImageDraw

from studies.mini.views import ShownViews, ViewQuestion
from studies.wide.clips import CLIP_FORMS, make_clip
from studies.wide.held_out import SPLITS
from studies.wide.several import SEVERAL_FORMS, make_several

_MOST = 8  # pictures of a row that are shown; of a longer clip every second, third, ...


def row_picture(shown: ShownViews, questions: int) -> Image.Image:
    """The pictures side by side, the first question's evidence framed, its questions below."""
    step = -(-len(shown.pictures) // _MOST)
    numbers = range(0, len(shown.pictures), step)
    width = sum(shown.pictures[n].shape[1] + 4 for n in numbers)
    height = max(picture.shape[0] for picture in shown.pictures)
    asked = shown.questions[:questions]
    whole = Image.new("RGB", (max(width, 900), height + 13 * len(asked) + 8), "white")
    left = 0
    for number in numbers:
        whole.paste(_framed(shown, number, asked[0]), (left, 0))
        left += shown.pictures[number].shape[1] + 4
    pen = ImageDraw.Draw(whole)
    for line, question in enumerate(asked):
        pen.text((2, height + 2 + 13 * line), f"{question.text} = {question.answer}  ({question.family})", fill="black")
    return whole


def _framed(shown: ShownViews, number: int, question: ViewQuestion) -> Image.Image:
    picture = Image.fromarray(shown.pictures[number])
    pen = ImageDraw.Draw(picture)
    for x0, y0, x1, y1 in (box for at, box in question.evidence if at == number):
        pen.rectangle((x0 - 2, y0 - 2, x1 + 1, y1 + 1), outline=(255, 0, 255))
    return picture


def sheet(kind: str, split: str, first: int, rows: int, questions: int) -> Image.Image:
    """Rows of one kind, the forms in turn."""
    make, forms = {"clips": (make_clip, CLIP_FORMS), "several": (make_several, SEVERAL_FORMS)}[kind]
    made = [row_picture(make(first + n, split, forms[n % len(forms)]), questions) for n in range(rows)]
    whole = Image.new("RGB", (max(one.width for one in made), sum(one.height + 6 for one in made)), "white")
    top = 0
    for one in made:
        whole.paste(one, (0, top))
        top += one.height + 6
    return whole


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Draw a sheet of clips or of several images.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kind", choices=("clips", "several"), default="clips")
    parser.add_argument("--split", default="train", choices=SPLITS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--questions", type=int, default=6, help="of each row that are printed")
    a = parser.parse_args()
    sheet(a.kind, a.split, a.seed, a.rows, a.questions).save(a.out)


if __name__ == "__main__":
    main()
