"""Mistakes in what was typed, told before torch is imported: a model, a selector, a device that there is not.

What selectors there are and how they are set is written down here once more: asking the selectors would import torch.
"""

import sys
from collections.abc import Iterable, Sequence

from arr_coc.cli.terminal import notes
from arr_coc.config import ENCODINGS, settings_of

SELECTORS: dict[str, dict[str, type]] = {
    **{"auto": {}, "arr_coc": {"light": int}, "cdpruner": {"theta": float}, "divprune": {}, "downsampling": {}},
    "fastv": {"after": int},
    "look_twice": {
        **{"least": int, "most": int, "depth": float},
        **{"information": float, "perspectival": float, "steepness": float},
        **{"reach": int, "decay": float, "repeated": float, "enough": float, "motion": float},
    },
    **{"mmtok": {}, "oracle": {}, "pooling": {}, "random": {"seed": int}, "training_free": {}},
    **{"variance": {}, "centre": {}, "even_grid": {}},
    "visionzip": {"contextual": float},
}
"""Settings of each selector, by name, and whether they are whole numbers."""
BEFORE_VIT = ("sparse", "foveated")
AFTER_VIT = ("cdpruner", "divprune", "fastv", "mmtok", "visionzip")  # they read what the ViT made of all cells
PLAIN = "plain"  # the model itself
DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps")  # a number may follow, as in cuda:1


def check_model(model: str, quiet: bool = True) -> None:
    """Refuse a model that cannot be had, and say where it is looked for."""
    from arr_coc.qwen.finding import check_there

    notes(filter(None, [check_there(model)]), quiet)


def check_selectors(specs: Iterable[str], encoding: str | None = None) -> None:
    for spec in specs:
        check_selector(spec, encoding)


def check_selector(spec: str, encoding: str | None = None) -> None:
    """Refuse a name, a setting or an encoding that does not fit; `spec` is NAME or NAME:KEY=VALUE,..."""
    if encoding is not None:
        check_choice("encoding", encoding, ENCODINGS)
    name, settings = settings_of(spec)
    if name == PLAIN:
        raise ValueError("selector 'plain' chooses nothing: give --keep 1.0 for the plain model")
    if name == "oracle":
        raise ValueError(
            f"selector {spec!r} must be told where the answer is, which a question does not say: leave it out, or run "
            "`arr-coc eval`, whose scenes know it"
        )
    registry = sys.modules.get("arr_coc.selectors")
    if name not in SELECTORS and registry is not None and name in registry.SELECTORS:
        return  # somebody's own, registered before the command was run
    check_choice("selector", name, SELECTORS)
    if encoding in BEFORE_VIT and name in AFTER_VIT:
        instead = "use encoding='dense', or selector='look_twice'"
        raise ValueError(
            f"encoding={encoding!r} chooses before the ViT, but selector {name!r} reads its output: {instead}"
        )
    known = SELECTORS[name]
    for key, value in settings.items():
        if key not in known:
            raise ValueError(f"selector {name!r} has no setting {key!r}: it has {', '.join(known) or 'none'}")
        if not isinstance(value, (int, known[key])):
            kind = known[key].__name__
            raise ValueError(f"selector {name}: {key}={value} is no {kind}; write such as {name}:{key}=1")


def check_choice(what: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}={value!r}: expected one of {', '.join(allowed)}")


def check_machine(device: str | None, dtype: str) -> None:
    """Refuse a device or a number format of which nobody has heard; whether it is there, torch says later."""
    check_choice("dtype", dtype, DTYPES)
    kind, _, number = (device or "cpu").partition(":")
    if kind not in DEVICES or (":" in (device or "") and not number.isdigit()):
        raise ValueError(f"device={device!r}: expected one of {', '.join(DEVICES)}, or such as cuda:1")


def check_sources(specs: Sequence[str]) -> None:
    """Refuse a form of data that is not known, and files that are not there."""
    from arr_coc.data import parse_source

    for spec in specs:
        kind, places = parse_source(spec)
        for place in places:
            if not place.exists():
                raise ValueError(f"{place}: no such file or folder of {kind} data; check the path")
