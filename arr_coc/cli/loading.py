"""A model, a selector and what it is asked about, by what was typed; options that all verbs that answer have."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arr_coc.cli import typed
from arr_coc.cli.checks import check_machine, check_model, check_selector, check_selectors
from arr_coc.cli.quick import let_go
from arr_coc.cli.terminal import is_terminal, quieten_libraries, set_verbosity

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


@dataclass(frozen=True, slots=True)
class Asking:
    """What is typed wherever a model is asked: which, how, on what machine."""

    model: typed.Model = "mini"
    encoding: typed.Encoding = None
    max_new_tokens: typed.MaxNewTokens = 128
    fps: typed.Fps = None
    frames: typed.Frames = None
    device: typed.Device = None
    dtype: typed.Dtype = "auto"
    seed: typed.Seed = 0
    quiet: typed.Quiet = False
    offline: typed.Offline = False

    def open(
        self, images: Sequence[Path], selectors: Sequence[str], selector: str = "auto", **pixels: Any
    ) -> "tuple[ARRCOCQwen, list[Any]]":
        """A model that chooses with `selector`, and the images and clips that it is asked about.

        What is wrong with them, with any of the `selectors` or with the machine is told before the model is loaded.
        """
        check_selectors(selectors, self.encoding)
        check_machine(self.device, self.dtype)
        read = typed.reading(images, self.fps, self.frames)
        machine: dict[str, Any] = {name: getattr(self, name) for name in ("seed", "quiet", "device", "dtype")}
        loaded = load(self.model, selector, self.encoding, **machine, **pixels)
        return loaded, read(loaded)


def asking(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of `Asking`, which it takes as one, `how`, behind its own."""
    own = [one for one in inspect.signature(verb).parameters.values() if one.name != "how"]
    kind = inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(one.name, kind, default=one.default, annotation=one.type) for one in fields(Asking)]

    @wraps(verb)
    def run(**given: Any) -> None:
        how = Asking(**{one.name: given.pop(one.name) for one in shared})
        set_verbosity(how.quiet)
        verb(**given, how=how)

    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    return run
