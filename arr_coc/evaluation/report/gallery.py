"""Losses as pictures: the scene with the places of the answer, and what ARR-COC let the model see of it."""

import io
from collections.abc import Callable, Mapping, Sequence

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from arr_coc.evaluation.field.data import Query
from arr_coc.evaluation.field.run import unpack_cells
from arr_coc.evaluation.report.blocks import Card, Cards, Picture
from arr_coc.evaluation.report.losses import Loss
from arr_coc.evaluation.report.rows import ORACLE, budget_label, place_label

SIDE = 448  # px of a picture
LINE, EDGE = (255, 176, 0), (0, 0, 0)  # boxes: amber between black lines stands out on light, dark and grey
QUALITY = 84
MOST_NAMES = 5  # of methods that got it right

Overlay = Callable[[Image.Image, Tensor], Image.Image]


def gallery(losses: Sequence[Loss], names: Mapping[tuple[str, str], str], overlay: Overlay) -> Cards:
    """A card per loss; `overlay` dims the cells of an image that a mask `[H, W]` leaves out."""
    return Cards(tuple(_card(number, loss, names, overlay) for number, loss in enumerate(losses, start=1)))


def _card(number: int, loss: Loss, names: Mapping[tuple[str, str], str], overlay: Overlay) -> Card:
    scene = Image.fromarray(loss.picture.read())
    kept_HW = kept_mask(loss)
    shown = (("scene", scene), ("kept", overlay(scene, kept_HW)))
    pictures = tuple(
        Picture(f"failure-{number:02d}-{name}.jpg", _about(name, loss), jpeg(outlined(small(picture), loss.query)))
        for name, picture in shown
    )
    entry = loss.entry
    budget = budget_label(entry.keep, entry.total)
    return Card(
        f"{number}. {loss.query.family.replace('_', ' ')}: {loss.kind}", pictures, _lines(loss, names, budget, kept_HW)
    )


def _lines(
    loss: Loss, names: Mapping[tuple[str, str], str], budget: str, kept_HW: Tensor
) -> tuple[tuple[str, str], ...]:
    winners = sorted(loss.winners, key=lambda way: way[0].partition(":")[0] == ORACLE)  # the oracle last
    said = "; ".join(names[way] for way in winners[:MOST_NAMES])
    more = f" and {len(winners) - MOST_NAMES} more" if len(winners) > MOST_NAMES else ""
    share = (
        "there is none: the thing asked for is not in the image" if loss.share is None else f"{100 * loss.share:.0f} %"
    )
    return (
        ("question", loss.record["text"]),
        ("right", loss.record["expected"]),
        ("given", loss.record["answer"] or "(nothing)"),
        ("tokens", f"{budget}, {place_label(loss.entry.place)}; {int((~kept_HW).sum())} cells dropped"),
        ("evidence kept", share),
        ("answered by", said + more),
        ("question id", loss.record["question"]),
    )


def kept_mask(loss: Loss) -> Tensor:
    """The cells that went on, as the run noted them, `[H, W]`."""
    height, width = loss.record["grid"]
    kept_N = torch.zeros(height * width, dtype=torch.bool)
    kept_N[unpack_cells(loss.record["cells"])] = True
    return kept_N.view(height, width)


def small(picture: Image.Image) -> Image.Image:
    """No side longer than SIDE."""
    scale = SIDE / max(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    return picture.resize(size, Image.Resampling.LANCZOS) if scale < 1 else picture


def outlined(picture: Image.Image, query: Query) -> Image.Image:
    """The boxes of the answer, drawn just outside of them."""
    drawn = picture.copy()
    draw = ImageDraw.Draw(drawn)
    for left, top, right, bottom in query.boxes or ():
        box = (left * drawn.width, top * drawn.height, right * drawn.width, bottom * drawn.height)
        for gap, colour in ((4, EDGE), (3, LINE), (2, LINE), (1, EDGE)):
            draw.rectangle((box[0] - gap, box[1] - gap, box[2] + gap, box[3] + gap), outline=colour)
    return drawn


def jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    return buffer.getvalue()


def _about(name: str, loss: Loss) -> str:
    what = "the scene" if name == "scene" else "what was kept; dropped cells are dark and grey"
    return f"{what}, the places of the answer outlined: {loss.record['text']}"
