"""Files that are whole or absent: one way to write them, one way to read what was written."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file beside its place and move it there: whoever reads it sees the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """A JSON file, whole or absent."""
    write_whole(path, json.dumps(value, indent=indent) + "\n")


def read_json_object(path: Path | None) -> dict[str, Any]:
    """What was written before; nothing where there is no file yet."""
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); move it away to start anew") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object; move it away to start anew")
    return found


def fingerprint(folder: Path, pattern: str) -> str:
    """The first 16 digits of the SHA-256 of all files that match, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:16]
