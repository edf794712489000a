"""From how many visual tokens on choosing pays. Below, keep="auto" keeps every token, and the output says so.

`break_even.json` holds the numbers: `measured` by a part of the device's name, `default` by its type; for each, over
recordings and eager, with one look at an image and with two. A dial other than "auto" asks for a number, and gets it.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files

import torch

from arr_coc.config import Keep
from arr_coc.qwen.answers import ImageSelection


@lru_cache(maxsize=32)
def break_even_tokens(device: torch.device, recorded: bool, looks: int, known: int | None = None) -> int:
    """The number that is `known`, else that of a device, a path and 1 or 2 `looks`: 0 where choosing always pays."""
    if known is not None:
        return known
    path, times = "recorded" if recorded else "eager", "one look" if looks == 1 else "two looks"
    table = json.loads((files("arr_coc.qwen") / "break_even.json").read_text())
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    for part, tokens in table["measured"].items():
        if part in name:
            return int(tokens[path][times])
    known_type = table["default"].get(device.type)
    return 0 if known_type is None else int(known_type[path][times])


def keep_small_whole(keeps: Sequence[Keep], tokens: Sequence[int], least: int) -> tuple[list[Keep], list[str]]:
    """The dials with "auto" as 1.0 for rows of fewer than `least` visual tokens, and why; "" for all other rows."""
    reason = f"under {least} visual tokens choosing does not pay on this device, so every token was kept"
    small = [keep == "auto" and 0 < count < least for keep, count in zip(keeps, tokens, strict=True)]
    dials = [1.0 if whole else keep for keep, whole in zip(keeps, small, strict=True)]
    return dials, [reason if whole else "" for whole in small]


def say_small(images: list[list[ImageSelection]], why: Sequence[str]) -> None:
    """Put the reason into the selections of those rows."""
    for row, reason in enumerate(why):
        if reason:
            images[row] = [replace(image, strategy="keep_all", reason=reason) for image in images[row]]
