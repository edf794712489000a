"""Files that are whole or absent: one way to write them, one way to read what was written."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

GENERATOR = "arr-coc"  # what files that were made here say of their maker
COLUMNS = "index,y,x,kept,relevance"  # how a table of cells begins


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A place beside `path` to write at; on leaving, what is there is on the disk, and moved to `path`.

    Whoever reads sees the old file or the new one, never half. Where anything fails, nothing is left of it, and errors
    of the disk name `path`. Of several such places, those that were opened last are moved first.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: a folder or a device; give the name of a file")
    place = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield place
        with place.open("rb") as file:
            os.fsync(file.fileno())
        place.replace(path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(place)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):  # it is not there, or the disk takes no changes at all
            place.unlink()


PIECES = 64  # of a file of weights, evenly spread, that tell it from another


def write_whole(path: Path, content: str | bytes) -> None:
    """A file, whole or absent."""
    with whole_file(path) as place:
        place.write_bytes(content.encode() if isinstance(content, str) else content)


def append_whole(path: Path, text: str) -> None:
    """Add to a file, all of it or nothing."""
    with path.open("ab", buffering=0) as file:
        before, left = file.tell(), memoryview(text.encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            file.truncate(before)
            raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """A JSON file, whole or absent."""
    write_whole(path, json.dumps(value, indent=indent) + "\n")


def read_json_object(path: Path | None, then: str = "move it away to start anew") -> dict[str, Any]:
    """What was written before; nothing where there is no file yet. `then` says what to do about a broken one."""
    if path is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); {then}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object; {then}")
    return found


def fingerprint(folder: Path, pattern: str) -> str:
    """The first 16 digits of the SHA-256 of all files that match, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()[:16]


def quick_fingerprint(folder: Path, pattern: str) -> str:
    """As `fingerprint`, of the sizes, the first megabyte (names and shapes) and 64 pieces of each file: a few ms."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob(pattern)):
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            for piece in range(PIECES):
                file.seek(size * piece // PIECES)
                digest.update(file.read(1 << 12))
    return digest.hexdigest()[:16]


def is_ours(path: Path) -> bool:
    """Whether a file was written here before: by the mark of its kind."""
    if path.suffix == ".png":
        from PIL import Image

        try:
            with Image.open(path, formats=("PNG",)) as picture:
                return bool(picture.info.get("Software") == GENERATOR)
        except (OSError, ValueError, SyntaxError):
            return False
    with path.open("rb") as file:
        start = file.read(1024).decode("utf-8", "replace")
    return start.startswith(COLUMNS) if path.suffix == ".csv" else f'content="{GENERATOR}"' in start


def refuse_others(paths: Iterable[Path], force: bool) -> None:
    """Refuse to write over files that were not written here."""
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path}: is a folder, and a file of that name is to be written; give another --out")
        if path.exists() and not force and not is_ours(path):
            raise ValueError(f"{path}: there is such a file that arr-coc did not make; give another --out, or --force")
