"""Which methods are compared: a selector with its settings, an encoding, and a budget.

divprune                 by name
random:seed=2            with settings, as `make_selector` takes them
plain                    the unmodified model with every token: no choice, keep 1.0
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arr_coc.config import Keep, check_keep
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import PLAIN, Selector, read_selector, settings_of

REFERENCE, ORACLE = "arr_coc", "oracle"
TRAINED = frozenset({REFERENCE, "rival"})  # all others are training-free
ENCODINGS = ("sparse", "foveated", "dense")
FIELD = (
    *(REFERENCE, "look_twice", "training_free", "random:seed=0", "random:seed=1", "random:seed=2"),
    *("even_grid", "pooling", "downsampling", "fastv", "visionzip", "divprune", "cdpruner", "mmtok", ORACLE),
)


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the table."""

    selector: str  # as it was asked for, settings included
    encoding: str
    keep: Keep  # a fraction KEPT, or a number of tokens

    @property
    def key(self) -> str:
        """Names the row in the file of samples."""
        return f"{self.selector} {self.encoding} {self.keep}"

    @property
    def name(self) -> str:
        return self.selector.partition(":")[0]

    @property
    def trained(self) -> bool:
        """Whether anything of the choice was learned from boxes."""
        return self.name in TRAINED


def build(owner: ARRCOCQwen, specs: Iterable[str]) -> dict[str, Selector]:
    """The selectors by the texts that ask for them, on the model's device; "plain" needs none."""
    named = (spec for spec in specs if settings_of(spec)[0] != PLAIN)
    return {spec: read_selector(spec, owner.arr_coc_config, owner.layer).to(owner.device).eval() for spec in named}


def stamp_of(selector: Selector) -> str:
    """Of all that a selector weighs with, learned or set, and of what it was tuned to."""
    digest = hashlib.sha256(repr(sorted(selector.tuned.items())).encode())
    for name, tensor in (*selector.named_parameters(), *selector.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def plan(selectors: dict[str, Selector], keeps: Sequence[Keep], encodings: Sequence[str], plain: bool) -> list[Method]:
    """Every selector with every encoding that it can work with and every budget; the plain model once.

    Those that choose before the ViT come first: while they run, nothing of the dense ones is held in memory.
    """
    for encoding in encodings:
        if encoding not in ENCODINGS:
            raise ValueError(f"encoding {encoding!r}: expected one of {', '.join(ENCODINGS)}")
    for keep in keeps:
        check_keep(keep)
        if isinstance(keep, str) or keep == 1.0:
            raise ValueError(f"keep {keep!r}: give fractions KEPT below 1 or numbers of tokens, equal for all methods")
    methods = [
        Method(spec, encoding, keep)
        for encoding in ENCODINGS
        if encoding in encodings
        for spec, selector in selectors.items()
        if encoding == "dense" or not (selector.reads_tokens or selector.resizes)
        for keep in keeps
    ]
    for spec in selectors:
        if not any(method.selector == spec for method in methods):
            raise ValueError(f"selector {spec!r} works after the ViT: add --encoding dense")
    return methods + ([Method(PLAIN, "dense", 1.0)] if plain else [])
