"""Loads hostile folders and asks the models that load, one by one, and says what became of each.

`python tests/attacks/loading.py NUMBER...` prints one JSON object per folder: what was done to it, the exit code of
`arr-coc ask`, what it said, how long it took, whether code of the folder ran, and whether all weights are finite. The
good folder comes first and last.
"""

import contextlib
import io
import json
import logging
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import tiny
import torch
from attacks import folders

from arr_coc.cli.run import run
from arr_coc.qwen import ARRCOCQwen

MOST_BYTES = 8 * 2**30


def judged(good: Path, folder: Path, number: int, picture: Path) -> dict[str, Any]:
    """One folder: loaded and asked as a command does it. The one numbered -1 is good."""
    name = folders.make(good, folder, number)
    out, err = io.StringIO(), io.StringIO()
    loaded: list[ARRCOCQwen] = []
    plain = ARRCOCQwen.eval
    ARRCOCQwen.eval = lambda self: loaded.append(self) or plain(self)  # type: ignore[method-assign,assignment]
    started, spent = time.perf_counter(), time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(["ask", str(picture), "what is this?", "--model", str(folder), "--max-new-tokens", "2", "-q"])
    finally:
        ARRCOCQwen.eval = plain  # type: ignore[method-assign]
    seconds, cpu = time.perf_counter() - started, time.process_time() - spent
    finite = all(bool(torch.isfinite(one).all()) for model in loaded for one in model.parameters())
    ran = (folder / folders.RAN).exists()
    told = {
        "seconds": seconds,
        "cpu": cpu,
        "answer": out.getvalue(),
        "said": err.getvalue(),
        "ran": ran,
        "loaded": bool(loaded),
        "finite": finite,
    }
    return {"number": number, "name": name, "code": code, **told}


def main(numbers: list[int]) -> None:
    logging.disable(logging.WARNING)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))  # who asks for more is told so, and fails here
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        good, picture = folders.good_folder(home / "good"), home / "good.png"
        tiny.picture(64, 64).save(picture)
        for number in (-1, *numbers, -1):  # the first loads what all need, and the last must answer as it did
            print(json.dumps(judged(good, home / str(number), number, picture)), flush=True)
            shutil.rmtree(home / str(number), ignore_errors=True)


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:]])
