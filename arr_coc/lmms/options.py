"""What the user of lmms-eval sets: options of the model, and of each request's generation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from arr_coc.config import Keep, check_keep

MAX_NEW_TOKENS = 128  # of a request that does not say
SAMPLING = ("temperature", "top_p", "top_k")


@dataclass(frozen=True, slots=True)
class Options:
    """--model_args, --batch_size and --device of a run."""

    pretrained: str = "mini"
    keep: Keep = "auto"  # the fraction KEPT, or a number of tokens, or "auto"
    selector: str = "auto"  # NAME or NAME:KEY=VALUE
    encoding: str | None = None
    dtype: str = "auto"
    device: str | None = None
    batch_size: int = 1


def read_options(given: Mapping[str, Any]) -> Options:
    """Checked options from keywords as lmms-eval hands them over."""
    known = [field.name for field in fields(Options)]
    wanted = {name: value for name, value in given.items() if value is not None and name != "max_batch_size"}
    for name in wanted:
        if name not in known:
            raise ValueError(f"arr_coc has no option {name!r}: it has {', '.join(known)}")
    check_keep(wanted.get("keep", "auto"))
    size = str(wanted.get("batch_size", 1))
    if not size.isdecimal() or int(size) < 1:
        raise ValueError(f"batch_size {size!r}: give a number of requests such as 8; it is not found by itself")
    return Options(**{**wanted, "batch_size": int(size)})


def read_generation(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(keywords for generate, texts at which an answer ends) of a request. Greedy unless a temperature is given."""
    until = given.get("until") or []
    sampled = float(given.get("temperature") or 0) > 0
    keywords: dict[str, Any] = {"max_new_tokens": int(given.get("max_new_tokens") or MAX_NEW_TOKENS)}
    keywords["do_sample"] = sampled
    for name in ("num_beams", *(SAMPLING if sampled else ())):
        if given.get(name) is not None:
            keywords[name] = given[name]
    return keywords, [until] if isinstance(until, str) else list(until)


def cut_at(text: str, until: Sequence[str]) -> str:
    """The text before the first of the texts at which it ends."""
    places = [text.find(end) for end in until if end]
    return text[: min([place for place in places if place >= 0], default=len(text))]
