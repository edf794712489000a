"""Pictures of the wide world for the page's examples: arr_coc/assets/gallery.json and its pictures.

    python -m studies.wide.gallery

Test scenes, none on a photograph, each with one of its questions, the right answer and its evidence (boxes in px).
"""

import json
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.files import write_whole
from studies.wide.making import make_wide

OUT = Path(__file__).parents[2] / "arr_coc" / "assets"
CHOSEN = ((109, 4), (110, 0), (114, 2), (123, 0), (106, 4), (112, 3))  # seed, number of the question
SIDE, QUALITY = 512, 90


def main() -> None:
    rows: list[dict[str, Any]] = []
    for seed, number in CHOSEN:
        wide = make_wide(seed, "seen", (SIDE, SIDE))
        question = wide.scene.questions[number]
        file = f"gallery-{len(rows) + 1}.jpg"
        Image.fromarray(wide.pixels).save(OUT / file, quality=QUALITY, optimize=True)
        told = {"question": question.text, "answer": question.answer, "evidence": question.evidence}
        rows.append({"file": file, **told})
    lines = ",\n ".join(map(json.dumps, rows))
    write_whole(OUT / "gallery.json", f'{{"examples": [\n {lines}\n]}}\n')


if __name__ == "__main__":
    main()
