"""Which model is meant, and whether it can be had at all: without torch, so that a mistake is told at once."""

import os
import sys
import threading
from importlib.resources import files
from pathlib import Path

EMBEDDED = ("mini",)  # models inside the package
OFFLINE = "HF_HUB_OFFLINE"  # the hub's own switch
PATIENCE = 6.0  # seconds until a hub that does not answer counts as out of reach
CONFIGS = ("config.json", "arr_coc_config.json")  # of a model, and of an adapter that names its model


class ModelNotFound(ValueError):
    """There is no such model here; the message says how to get one."""


def resolve(source: str | Path) -> str:
    """A name of an embedded model -> its folder; any other id or folder as it is."""
    return str(files("arr_coc") / "models" / str(source)) if str(source) in EMBEDDED else str(source)


def could_be_on_a_hub(source: str) -> bool:
    return source.count("/") == 1 and not source.startswith((".", "/", "~")) and not source.endswith("/")


def not_found(shown: str) -> ModelNotFound:
    ways = f"{' or '.join(EMBEDDED)}, a folder with a Qwen3-VL, or a hub id such as Qwen/Qwen3-VL-2B-Instruct"
    return ModelNotFound(f"no model {shown!r} with safetensors weights: give {ways} (reachable or cached)")


def go_offline() -> None:
    """Forbid the hub. It reads its switch when it is imported: the switch is set first, or set where it was read."""
    os.environ[OFFLINE] = "1"
    read = sys.modules.get("huggingface_hub.constants")
    if read is not None:
        read.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def is_offline() -> bool:
    return os.environ.get(OFFLINE, "").lower() in ("1", "on", "yes", "true")


def check_there(source: str) -> str:
    """Refuse a name that cannot be loaded: no such folder, or on a hub that is off or out of reach and not cached.

    Returns what a person should know: that the hub is asked, or why the cache is taken alone.
    """
    folder = Path(resolve(source))
    if folder.is_dir() and any((folder / name).is_file() for name in CONFIGS):
        return ""
    if folder.exists() or not could_be_on_a_hub(source):
        raise not_found(source)
    from huggingface_hub import try_to_load_from_cache

    is_cached = any(isinstance(try_to_load_from_cache(source, name), str) for name in CONFIGS)
    if is_offline():
        if is_cached:
            return ""
        way = "go online once (without --offline), or give mini or a folder with a Qwen3-VL"
        raise ModelNotFound(f"no model {source!r} in the cache, and the hub is off: {way}")
    why = why_out_of_reach()
    if why and not is_cached:
        way = "check the network, or give mini or a folder with a Qwen3-VL"
        raise ModelNotFound(f"no model {source!r} in the cache, and the hub cannot be reached ({why}): {way}")
    if why:
        go_offline()
        return f"the hub cannot be reached ({why}): {source} is taken from the cache"
    return f"looking for {source} in the cache and on the hub (--offline: in the cache alone)"


def why_out_of_reach() -> str:
    """Why the hub does not answer, in a few words; nothing where it does, whatever it answers."""
    import urllib.error
    import urllib.request

    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    said: list[str] = []

    def knock() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=PATIENCE).close()
            said.append("")
        except urllib.error.HTTPError:
            said.append("")  # it answers
        except (OSError, ValueError) as error:
            said.append(str(getattr(error, "reason", error) or type(error).__name__))

    asking = threading.Thread(target=knock, daemon=True)  # names are looked up without any limit of time
    asking.start()
    asking.join(PATIENCE)
    return said[0] if said else f"{address} does not answer within {PATIENCE:.0f} s"
