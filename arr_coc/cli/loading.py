"""A model and a selector by the names that were typed."""

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli import typed
from arr_coc.cli.terminal import is_terminal, note, quieten_libraries

if TYPE_CHECKING:
    from arr_coc.qwen import ARRCOCQwen
    from arr_coc.selectors import Selector


def load(
    model: str, selector: str = "auto", encoding: str | None = None, *, seed: int = 0, quiet: bool = False
) -> "ARRCOCQwen":
    """Load a model with everything but errors kept off the terminal; bars on a terminal, for models of some size.

    `selector` is NAME or NAME:KEY=VALUE,...; `seed` is for sampling and for the selector "random".
    """
    import torch

    from arr_coc.qwen import ARRCOCQwen
    from arr_coc.qwen.loading import EMBEDDED, ModelNotFound
    from arr_coc.selectors import make_selector, settings_of

    name, settings = settings_of(selector)
    refuse_plain(name)
    settings = check_settings(name, {"seed": seed, **settings} if name == "random" else settings)
    elsewhere = model not in EMBEDDED and not Path(model).exists()
    quieten_libraries(bars=model not in EMBEDDED and not quiet and is_terminal(sys.stderr))
    if elsewhere and not quiet and not typed.is_offline() and model.count("/") == 1:
        note(f"looking for {model} in the cache and on the hub (--offline: in the cache alone)")
    torch.manual_seed(seed)
    try:
        loaded = ARRCOCQwen.from_pretrained(model, selector=name, encoding=encoding)
    except ModelNotFound:
        if elsewhere and typed.is_offline() and model.count("/") == 1:
            way = "go online once (without --offline), or give mini or a folder with a Qwen3-VL"
            raise ModelNotFound(f"no model {model!r} in the cache, and the hub is off: {way}") from None
        raise
    if settings:
        settings = {**loaded.selector.tuned, **settings}  # what is typed wins over what was tuned
        loaded.selector = make_selector(name, loaded.arr_coc_config, loaded.layer, **settings).to(loaded.device).eval()
    refuse_told(selector, loaded.selector)
    return loaded


def chosen_selector(loaded: "ARRCOCQwen", spec: str, seed: int) -> "Selector":
    """A selector by its name and settings."""
    from arr_coc.selectors import read_selector, settings_of

    refuse_plain(settings_of(spec)[0])
    spec = f"random:seed={seed}" if spec == "random" else spec
    selector = read_selector(spec, loaded.arr_coc_config, loaded.layer).to(loaded.device).eval()
    refuse_told(spec, selector)
    return selector


def refuse_plain(name: str) -> None:
    """The model itself is no selector, though it stands beside them in comparisons."""
    from arr_coc.selectors import PLAIN

    if name == PLAIN:
        raise ValueError("selector 'plain' chooses nothing: give --keep 1.0 for the plain model")


def refuse_told(spec: str, selector: "Selector") -> None:
    """One that must be told where the answer is cannot be used on a question."""
    if selector.reads_evidence:
        raise ValueError(
            f"selector {spec!r} must be told where the answer is, which a question does not say: leave it out, or run "
            "`arr-coc eval`, whose scenes know it"
        )


def check_settings(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of a selector as they are, if each that should be a number is one."""
    from arr_coc.selectors import SELECTORS

    known = inspect.signature(SELECTORS[name]).parameters if name in SELECTORS else {}
    for key, value in settings.items():
        wanted = known[key].annotation if key in known else None
        if wanted in (int, float) and not isinstance(value, (int, wanted)):
            raise ValueError(f"selector {name}: {key}={value} is no {wanted.__name__}; write such as {name}:{key}=1")
    return settings
