"""Makes the pictures of the project's front page anew, from the bundled model and the bundled image.

python -m studies.figures.headline [FOLDER]     (docs/pictures if left out)
"""

import sys
from importlib.resources import files
from pathlib import Path

from arr_coc.images.reader import read_image
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.viewing import headed, questions_row, scorer_panels, tokens_told
from arr_coc.viewing.saving import save_picture

QUESTIONS = ("What colour is the hand?", "Which word is blue?", "Describe the scene.")
FOLDER = Path("docs/pictures")


def make(folder: Path) -> list[Path]:
    """Write questions.png and scorers.png; on the CPU they come out the same every time."""
    model = ARRCOCQwen.from_pretrained("mini", device="cpu")
    image = read_image(Path(str(files("arr_coc") / "assets" / "sample.png")))
    entries = [(question, model.ask(image, question, keep="auto")) for question in QUESTIONS]
    question, answer = entries[1]
    scorers = scorer_panels(image, answer.selection[0])
    pictures = {
        "questions.png": questions_row(image, entries),
        "scorers.png": headed(scorers, question, answer.text, tokens_told(answer.tokens_kept, answer.tokens_total)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        save_picture(picture, folder / name)
    return [folder / name for name in pictures]


if __name__ == "__main__":
    for path in make(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER):
        print(path)
