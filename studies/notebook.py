"""The tour as a notebook: cells from the text below, run from top to bottom, with what they print and show.

    python -m studies.notebook            writes docs/tour.ipynb anew
    python -m studies.notebook --check    runs the cells; fails where the page has other ones, or other words came out

Cells are plain Python: nothing of Jupyter is needed to make the file, and a test runs it as it stands.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

PAGE = Path(__file__).parent.parent / "docs" / "tour.ipynb"
WIDEST = 640  # px of a picture in the page
CELLS: tuple[tuple[str, str], ...] = (
    (
        "markdown",
        """# A tour of ARR-COC
A question about an image, and only the visual tokens that matter for it. Everything here runs on a CPU with **mini**,
the small Qwen3-VL inside the package; put the id or folder of any Qwen3-VL in its place.""",
    ),
    (
        "code",
        """from importlib.resources import files

from PIL import Image

from arr_coc import ARRCOCQwen
from arr_coc.viewing import heatmap, kept_overlay

picture = Image.open(files("arr_coc") / "assets" / "sample.png").convert("RGB")
picture""",
    ),
    (
        "markdown",
        "## Ask\nThe dial is at `auto`: the policy decides how many of the 256 visual tokens the question needs.",
    ),
    (
        "code",
        """model = ARRCOCQwen.from_pretrained("mini")
answer = model.ask(picture, "What colour is the hand?")
print(answer.text)
print(answer.tokens_kept, "of", answer.tokens_total, "visual tokens")""",
    ),
    ("markdown", "## Where it looked\nKept cells are clear, the others are dimmed: the encoder never saw them."),
    ("code", "kept_overlay(picture, answer.selection[0].mask)"),
    ("markdown", "Another question looks elsewhere."),
    (
        "code",
        """answer = model.ask(picture, "Which word is blue?")
print(answer.text)
kept_overlay(picture, answer.selection[0].mask)""",
    ),
    (
        "markdown",
        "## Why\nThree ways of knowing, one map each, and what the policy made of them. Scores are in 0 to 1.",
    ),
    (
        "code",
        """choice = answer.selection[0]
for name, weight in choice.weights.items():
    print(f"{name:14} weight {weight:.2f}, highest score {float(choice.maps[name].max()):.2f}")
print(choice.reason)
heatmap(picture, choice.relevance, kept_HW=choice.mask, title="relevance for the question")""",
    ),
    (
        "markdown",
        "## The dial\n`keep` is always the part that is KEPT: a fraction, a number of tokens, or `auto`. `keep=1.0` is "
        "the plain model, bit for bit.",
    ),
    (
        "code",
        """for keep in ("auto", 0.1, 0.25, 1.0):
    answer = model.ask(picture, "Which word is blue?", keep=keep)
    sure = f"{answer.confidence:.0%} sure"
    print(f"keep {keep!s:5} {answer.tokens_kept:4} tokens: {answer.text} ({sure})")""",
    ),
    (
        "markdown",
        "## What it does not know\nmini knows drawn scenes. What lies outside is said, and never guessed in silence.",
    ),
    (
        "code",
        """answer = model.ask(picture, "Is there a submarine?")
print(answer.text)
print(*answer.notices, sep="\\n")""",
    ),
    (
        "markdown",
        "## Choosing alone\nWhat would be kept, without an answer: for a front end, or for your own model behind it.",
    ),
    (
        "code",
        """(choice,) = model.choose(picture, "Describe the scene.", keep=64)
print(choice.grid, choice.kept[:8].tolist(), "...")""",
    ),
    (
        "markdown",
        "From here: [your own Qwen3-VL in ten minutes](your-model.md), [how it works](concepts.md), "
        "[over HTTP](serving.md).",
    ),
)


def run_cells(cells: tuple[tuple[str, str], ...]) -> list[list[dict[str, Any]]]:
    """What each cell prints, and the value of its last line, in the form of a notebook; all share one set of names."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run(source, names) if kind == "code" else [] for kind, source in cells]


def _run(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree, value = ast.parse(source), None
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    printed = said.getvalue()
    made: list[dict[str, Any]] = []
    if printed:
        made.append({"output_type": "stream", "name": "stdout", "text": printed.splitlines(keepends=True)})
    if isinstance(value, Image.Image):
        shown, held = value.copy(), io.BytesIO()
        shown.thumbnail((WIDEST, WIDEST))
        shown.convert("RGB").quantize(128).save(held, "PNG", optimize=True)
        data = {"image/png": base64.b64encode(held.getvalue()).decode()}
        made.append({"output_type": "display_data", "metadata": {}, "data": data})
    return made


def notebook(cells: tuple[tuple[str, str], ...], outputs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The file's content, of format 4.5."""
    made = []
    for number, ((kind, source), out) in enumerate(zip(cells, outputs, strict=True)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": out} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": about, "nbformat": 4, "nbformat_minor": 5}


def sources(page: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Kind and text of each cell of a notebook."""
    return tuple((cell["cell_type"], "".join(cell["source"])) for cell in page["cells"])


def printed(page: dict[str, Any]) -> list[str]:
    """What each cell of code printed."""
    streams = ([one for one in cell["outputs"] if "text" in one] for cell in page["cells"] if "outputs" in cell)
    return ["".join(line for one in said for line in one["text"]) for said in streams]


def main(arguments: list[str] | None = None) -> int:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Make the tour.")
    parser.add_argument("--check", action="store_true", help="run it, and write nothing")
    a = parser.parse_args(arguments)
    made = notebook(CELLS, run_cells(CELLS))
    if a.check:
        there = json.loads(PAGE.read_text())
        return int((sources(there), printed(there)) != (CELLS, printed(made)))
    PAGE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
