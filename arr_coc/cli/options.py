"""Options that several verbs share, said once. Importing this loads no torch."""

import os
import sys
from typing import Annotated

import typer

OFFLINE = "HF_HUB_OFFLINE"  # the hub's own switch


def go_offline(wanted: bool) -> bool:
    """Forbid the hub. It reads its switch when it is imported: the switch is set first, or set where it was read."""
    if wanted:
        os.environ[OFFLINE] = "1"
        read = sys.modules.get("huggingface_hub.constants")
        if read is not None:
            read.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    return wanted


def is_offline() -> bool:
    return os.environ.get(OFFLINE, "").lower() in ("1", "on", "yes", "true")


Model = Annotated[str, typer.Option(metavar="NAME", help="mini, a folder with a Qwen3-VL, or a hub id.")]
KeepDial = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help='Part KEPT: a fraction such as 0.25, a number of tokens such as 256, or "auto". '
        "If left out: auto where a selector is trained, else 1.0.",
    ),
]
SelectorName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="How tokens are chosen: auto, arr_coc, training_free, even_grid, random, ...; settings as NAME:KEY=VALUE.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        metavar="HOW",
        help="auto, dense (choose after the ViT), sparse (before it) or weighted. If left out: as the model says.",
    ),
]
MaxNewTokens = Annotated[int, typer.Option(min=1, max=4096, metavar="N", help="Length of the answer at most, tokens.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, metavar="N", help="Of sampling, and of the selector random.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but errors on stderr.")]
Offline = Annotated[
    bool, typer.Option("--offline", callback=go_offline, is_eager=True, help="Never reach for the hub: cache only.")
]
