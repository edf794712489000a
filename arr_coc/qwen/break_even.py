"""From how many visual tokens on choosing pays. Below, keep="auto" keeps every token, and the output says so.

`break_even.json` holds the numbers: `measured` by a part of the device's name, `default` by its type. A dial other than
"auto" asks for a number, and gets it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

import torch

from arr_coc.config import Keep
from arr_coc.qwen.answers import ImageSelection


@lru_cache(maxsize=8)
def break_even_tokens(device: torch.device, known: int | None = None) -> int:
    """The number that is `known`, else that of a device: 0 where choosing always pays."""
    if known is not None:
        return known
    table = json.loads((files("arr_coc.qwen") / "break_even.json").read_text())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    for part, tokens in table["measured"].items():
        if part in name:
            return int(tokens)
    return int(table["default"].get(device.type, 0))


def keep_small_whole(keeps: Sequence[Keep], tokens: Sequence[int], least: int) -> tuple[list[Keep], list[bool]]:
    """The dials with "auto" as 1.0 for rows of fewer than `least` visual tokens, and which rows these are."""
    small = [keep == "auto" and 0 < count < least for keep, count in zip(keeps, tokens, strict=True)]
    return [1.0 if whole else keep for keep, whole in zip(keeps, small, strict=True)], small


def say_small(images: list[list[ImageSelection]], small: Sequence[bool], least: int) -> None:
    """Put the reason into the selections of those rows."""
    reason = f"under {least} visual tokens choosing does not pay on this device, so every token was kept"
    for row, whole in enumerate(small):
        if whole:
            images[row] = [replace(image, strategy="keep_all", reason=reason) for image in images[row]]
