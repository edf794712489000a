"""The same image under several questions in a row: what is kept follows the question."""

from collections.abc import Sequence

from PIL import Image

from arr_coc.qwen.answers import Answer
from arr_coc.viewing.outlines import outline
from arr_coc.viewing.overlays import kept_overlay
from arr_coc.viewing.paper import FAINT, SMALL, TEXT, above, beside, fitted, padded, page, text_block

PANEL = 360  # px of the longer side of the image under each question
NARROWEST = 220  # px: text needs that much, however narrow the image


def questions_row(image: Image.Image, entries: Sequence[tuple[str, Answer]]) -> Image.Image:
    """For each question a column: the question, the image with its kept cells clear, the answer, and the tokens.

    The answers are to one image each; of several images, the first is shown.
    """
    if not entries:
        raise ValueError("a row of questions needs at least one (question, answer) pair")
    small = fitted(image, PANEL)
    width = max(small.width, NARROWEST)
    heads = [text_block(question, width, TEXT + 2, bold=True) for question, _ in entries]
    head_height = max(head.height for head in heads)
    columns = []
    for head, (_, answer) in zip(heads, entries, strict=True):
        selection = answer.selection[0]
        picture = kept_overlay(small, selection.mask)
        if selection.tokens_kept < selection.tokens_total:
            picture = outline(picture, selection.mask)
        share = 100 * selection.tokens_kept / selection.tokens_total
        tokens = f"{selection.tokens_kept} of {selection.tokens_total} tokens ({share:.0f} % kept)"
        blocks = [
            padded(head, width, head_height),
            picture,
            text_block(answer.text, width, TEXT + 2),
            text_block(tokens, width, SMALL, ink=FAINT),
        ]
        columns.append(above(blocks, gap=8))
    return page(beside(columns, gap=24))
