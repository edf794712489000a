"""The models of the demo: named on the command line, at most two in memory, one question at a time.

A Qwen3-VL keeps the shift of its text positions on the model itself while it generates, so two generations on one model
would mix. One lock for all models also keeps the times of a comparison honest.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch

from arr_coc.comparing import release_memory
from arr_coc.config import Keep
from arr_coc.images.clips import Fit
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.clips import ClipForm
from arr_coc.selectors import SELECTORS
from arr_coc.timing import hand_over_cores

MOST_LOADED = 2
MOST_PLAYED = 2**23  # pixels of all frames of a clip that are looked at: 32 of 512 x 512
OUTSIDE_HELP = ("oracle", "rival")  # told the answer, or in need of weights of its own: not for a page

Load = Callable[[str], ARRCOCQwen]


def load_model(source: str) -> ARRCOCQwen:
    """A model that chooses on every image: a demo shows the choice even where it saves no time."""
    from transformers.utils import logging as transformers_logging

    logging.getLogger("arr_coc").setLevel(logging.ERROR)  # the page shows the notices itself
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    loaded = ARRCOCQwen.from_pretrained(source, break_even=0)
    hand_over_cores()  # every answer comes from a thread of its own
    return loaded


def choosable_selectors() -> list[str]:
    """Names of the ways to choose that a page may offer beside the model's own."""
    return sorted(set(SELECTORS) - {*OUTSIDE_HELP, "arr_coc"})


class Models:
    """Loads on first use, and lets the least recently used go before a third comes in."""

    def __init__(self, sources: Sequence[str], *, load: Load = load_model, most_loaded: int = MOST_LOADED) -> None:
        self._sources = dict(zip(labels(sources), sources, strict=True))
        self._load, self._most = load, most_loaded
        self._loaded: OrderedDict[str, dict[str, ARRCOCQwen]] = OrderedDict()  # label -> selector -> the same weights
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """What the page calls the models, in the order of the command line."""
        return list(self._sources)

    def keep(self, name: str) -> Keep:
        """A model's own dial, without waiting for the model; "auto" if it is not loaded."""
        views = self._loaded.get(name)
        return "auto" if views is None else views["auto"].keep

    def fit(self, name: str) -> Fit:
        """How large a model sees clips here."""
        with self.use(name) as owner:
            form = ClipForm.of(owner.processor)
        return replace(form, most=max(form.least, min(form.most, MOST_PLAYED))).fit

    @contextmanager
    def use(self, name: str, selector: str = "auto") -> Iterator[ARRCOCQwen]:
        """One of the named models, with a way to choose. Nobody else uses any model for that long."""
        if name not in self._sources:
            raise ValueError("that model was not named when the demo was started: choose one of the list")
        if selector != "auto" and selector not in choosable_selectors():
            raise ValueError("there is no such way to choose: take one of the list")
        with self._lock:
            yield self._view(name, selector)

    def _view(self, name: str, selector: str) -> ARRCOCQwen:
        if name not in self._loaded:
            while len(self._loaded) >= self._most:
                self._loaded.popitem(last=False)
            release_memory()
            self._loaded[name] = {"auto": self._load(self._sources[name])}
        self._loaded.move_to_end(name)
        views = self._loaded[name]
        if selector not in views:
            owner = views["auto"]
            views[selector] = ARRCOCQwen(
                owner.model, owner.arr_coc_config, owner.layer, owner.processor, selector=selector, break_even=0
            ).eval()
        return views[selector]

    def loaded(self) -> dict[str, float]:
        """Megabytes of weights of each model in memory, the least recently used first."""
        return {name: megabytes(views["auto"]) for name, views in list(self._loaded.items())}

    def memory(self) -> str:
        """One line for the page."""
        models = ", ".join(f"{name} ({size:,.0f} MB)" for name, size in self.loaded().items()) or "none yet"
        card = f" · GPU {torch.cuda.memory_allocated() / 1e6:,.0f} MB" if torch.cuda.is_available() else ""
        return f"in memory: {models}, at most {self._most} · whole process {process_megabytes():,.0f} MB{card}"


def labels(sources: Sequence[str]) -> list[str]:
    """Names without folders, for a page that strangers may see; equal ones are numbered."""
    if not sources:
        raise ValueError("no model for the demo: name one, as in --model mini")
    plain = [Path(source).name if Path(source).exists() or source.startswith((".", "/", "~")) else source
             for source in dict.fromkeys(sources)]  # fmt: skip
    if len(plain) < len(sources):
        raise ValueError("a model was named twice: name each once")
    return [name if plain.count(name) == 1 else f"{name} {number}" for number, name in enumerate(plain, start=1)]


def megabytes(model: torch.nn.Module) -> float:
    """Size of the weights; those that two parts share count once."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 1e6


def process_megabytes() -> float:
    """Memory of this process that is really in use."""
    return float(psutil.Process().memory_info().rss / 1e6)
