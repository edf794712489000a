"""Pictures and a clip of the wide world for the page's examples: arr_coc/assets/gallery.json and its files.

    python -m studies.wide.gallery

Test scenes, none on a photograph, each with one of its questions, the right answer and its evidence (boxes in px; of
the clip, none is told).
"""

import json
from pathlib import Path
from typing import Any

from PIL import Image

from arr_coc.files import write_whole
from studies.wide.clips import CLIP_FORMS, make_clip
from studies.wide.making import make_wide

OUT = Path(__file__).parents[2] / "arr_coc" / "assets"
CHOSEN = ((109, 4), (110, 0), (114, 2), (123, 0), (106, 4), (112, 3))  # seed, number of the question
CLIP, CLIP_FORM = (5008, 3), CLIP_FORMS[1]
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
    clip, file = make_clip(CLIP[0], "seen", CLIP_FORM), f"gallery-{len(rows) + 1}.webp"
    first, *rest = map(Image.fromarray, clip.pictures)
    seen: dict[str, Any] = {"duration": round(1000 / CLIP_FORM.fps), "loop": 0, "quality": QUALITY, "method": 6}
    first.save(OUT / file, save_all=True, append_images=rest, **seen)
    asked = clip.questions[CLIP[1]]
    rows.append({"file": file, "question": asked.text, "answer": asked.answer, "evidence": []})
    lines = ",\n ".join(map(json.dumps, rows))
    write_whole(OUT / "gallery.json", f'{{"examples": [\n {lines}\n]}}\n')


if __name__ == "__main__":
    main()
