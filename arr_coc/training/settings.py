"""Settings of a training run: a frozen dataclass, read from a JSON file and checked."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from arr_coc.config import CELL

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], path: Path | None, **overrides: Any) -> Settings:
    """Settings of the dataclass `kind` from a JSON file (None: its defaults), with `overrides` that are not None."""
    try:
        given = json.loads(path.read_text()) if path else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected a JSON object of settings")
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(given) - known):
        raise ValueError(f"{path}: unknown settings {unknown}; known are {sorted(known)}")
    given |= {name: value for name, value in overrides.items() if value is not None}
    return kind(**{name: _frozen(value) for name, value in given.items()})


def check_kind(name: str, value: Any, default: Any) -> None:
    """A setting has the kind of its default; a whole number may stand for any number."""
    kinds: tuple[type, ...] = (int, float) if type(default) is float else (type(default),)
    if type(value) not in kinds:
        raise ValueError(f"{name}: {value!r} is a {type(value).__name__}, expected {type(default).__name__}")


def is_size(size: Any) -> bool:
    """Whether this is (width, height, share): px in whole cells, and a share of 0 or more."""
    if not isinstance(size, tuple) or len(size) != 3 or not all(isinstance(number, int | float) for number in size):
        return False
    width, height, share = size
    return width >= CELL and height >= CELL and width % CELL == height % CELL == 0 and share >= 0


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
