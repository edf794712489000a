"""A model and a selector by the names that were typed."""

import sys
from typing import TYPE_CHECKING, Any

from arr_coc.cli.checks import check_machine, check_model, check_selector
from arr_coc.cli.quick import let_go
from arr_coc.cli.terminal import is_terminal, quieten_libraries

if TYPE_CHECKING:
    from arr_coc.qwen import ARRCOCQwen
    from arr_coc.selectors import Selector


def load(
    model: str,
    selector: str = "auto",
    encoding: str | None = None,
    *,
    seed: int = 0,
    quiet: bool = False,
    device: str | None = None,
    dtype: str = "auto",
    **pixels: Any,
) -> "ARRCOCQwen":
    """Load a model with everything but errors kept off the terminal; bars on a terminal, for models of some size.

    `selector` is NAME or NAME:KEY=VALUE,...; `seed` is for sampling and for the selector "random"; `pixels` are
    min_pixels and max_pixels, None: as the model has them. Names are checked first: what is wrong with them is told
    before torch is imported.
    """
    check_selector(selector, encoding)
    check_machine(device, dtype)
    check_model(model, quiet)
    import torch

    from arr_coc.qwen import ARRCOCQwen
    from arr_coc.qwen.finding import EMBEDDED
    from arr_coc.selectors import make_selector, settings_of

    if device and device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device={device!r}: torch finds no GPU here; leave --device out, or give cpu")
    name, settings = settings_of(selector)
    settings = {"seed": seed, **settings} if name == "random" else settings
    quieten_libraries(bars=model not in EMBEDDED and not quiet and is_terminal(sys.stderr))
    torch.manual_seed(seed)
    loaded = ARRCOCQwen.from_pretrained(model, selector=name, encoding=encoding, device=device, dtype=dtype, **pixels)
    if settings:
        settings = {**loaded.selector.tuned, **settings}  # what is typed wins over what was tuned
        loaded.selector = make_selector(name, loaded.arr_coc_config, loaded.layer, **settings).to(loaded.device).eval()
    let_go()
    return loaded


def chosen_selector(loaded: "ARRCOCQwen", spec: str, seed: int) -> "Selector":
    """A selector by its name and settings, which were checked; "auto" is the model's own, which knows clips."""
    if spec == "auto":
        return loaded.selector
    from arr_coc.selectors import read_selector

    spec = f"random:seed={seed}" if spec == "random" else spec
    return read_selector(spec, loaded.arr_coc_config, loaded.layer).to(loaded.device).eval()
