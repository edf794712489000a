"""What `arr-coc tune` found out about a model: a small JSON that loading finds again, and that looking twice is set by.

It lies beside the model, or in the user's cache where that folder is not to be written to. It counts for the very
weights that it was made with: any other, a damaged one or one of another version is passed over with one line.
"""

import inspect
import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any

from arr_coc.config import ARRCOCConfig
from arr_coc.files import fingerprint
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.adapting import ADAPTED, has_adapted
from arr_coc.qwen.loading import EMBEDDED, find_adapter, local_folder, resolve
from arr_coc.selectors import SELECTORS, Selector

logger = logging.getLogger(__name__)

TUNING_FILE = "arr_coc_tuning.json"
TUNING_VERSION = 1
WEIGHTS = "model*.safetensors"
TUNED = "look_twice"  # the selector whose settings are tuned

Settings = dict[str, Any]


def default_settings() -> Settings:
    """Every setting of looking twice, as it is without tuning; those that are of clips alone are not tuned."""
    parameters = list(inspect.signature(SELECTORS[TUNED]).parameters.values())[2:]
    return {one.name: one.default for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY}


def weights_key(source: str | Path, **hub: Any) -> str:
    """What a model is known by: digits of the hash of its weights, with those that stage 2 taught it.

    Reads all of them: about a second for each gigabyte.
    """
    base = find_adapter(source)[0]
    folder = local_folder(base, **hub)
    if folder is None:
        raise ValueError(f"{base}: its weights are not in the cache of the hub; load it once")
    if not any(folder.glob(WEIGHTS)):
        raise ValueError(f"{folder.name}: no {WEIGHTS} in its folder; nothing can be tuned for a model without")
    adapted = Path(resolve(source)) / ADAPTED
    more = fingerprint(adapted, "*.safetensors") if has_adapted(adapted) else ""
    return fingerprint(folder, WEIGHTS) + more


def place_to_write(source: str | Path, key: str) -> Path:
    """Beside the model, where that is a folder of the user's own that can be written to; else in the user's cache."""
    folder = Path(resolve(source))
    own = str(source) not in EMBEDDED and folder.is_dir() and os.access(folder, os.W_OK)
    return folder / TUNING_FILE if own else _cached(source, key)


def _cached(source: str | Path, key: str) -> Path:
    """In the cache a model goes by the end of its path or the whole of its id, as a file can be called, and its key."""
    named = re.sub(r"[^\w.]", "_", Path(source).resolve().name if Path(source).is_dir() else str(source))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return cache / "arr-coc" / "tuning" / f"{named}-{key}.json"


def read_tuning(path: Path, key: str) -> Settings:
    """Settings of looking twice; ValueError with the reason where a file is not for this model and version."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        raise ValueError("it cannot be read") from None
    if not isinstance(found, dict) or found.get("format_version") != TUNING_VERSION:
        raise ValueError("it is of another version")
    if found.get("fingerprint") != key:
        raise ValueError("it was made with other weights")
    settings, known = found.get("settings"), default_settings()
    if not isinstance(settings, dict) or set(settings) != set(known):
        raise ValueError("its settings are not those of this version")
    for name, value in settings.items():
        whole = isinstance(known[name], int)
        if type(value) not in ((int,) if whole else (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(f"its setting {name} is no number that could be used")
    return settings


def tuned_selector(
    selector: str | Selector, source: str | Path, config: ARRCOCConfig, layer: ARRCOCLayer | None, **hub: Any
) -> str | Selector:
    """The selector that was asked for: looking twice as it was tuned for this model, all others as they are."""
    if selector != TUNED and not (selector == "auto" and not config.trained):
        return selector
    key, beside, cached = "", Path(resolve(source)) / TUNING_FILE, _cached(source, "*")
    for path in (beside, *sorted(cached.parent.glob(cached.name))):
        if not path.is_file():
            continue
        try:
            key = key or weights_key(source, **hub)
            if path.name != TUNING_FILE and not path.stem.endswith(f"-{key}"):
                continue  # the cache holds models of the same name side by side
            settings = read_tuning(path, key)
            made = SELECTORS[TUNED](config, layer, **settings)
        except ValueError as why:
            logger.warning("the tuning in %s is passed over: %s; run arr-coc tune again", path.name, why)
            continue
        made.tuned = settings
        made.untrained_notice = "no trained adapter: the model looks twice, as arr-coc tune has set it"
        return made
    return selector
