"""The bench without the command line's libraries, for machines that lack them, and the rows our figures rest on.

python -m studies.speed.bench --model shape:qwen3-vl-2b --promised --fit --out results/speed-gpu.json
python -m studies.speed.bench --model shape:qwen3-vl-2b --sides 1024 2048 --batches 1 --kept 200

A table goes to stderr, one JSON document to stdout as its last line.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from arr_coc.evaluation.bench.cases import ENCODINGS, MODES, Case
from arr_coc.evaluation.bench.main import bench


def promised_cases(kept: int = 200, decode: int = 32) -> list[Case]:
    """The rows that the project's figures rest on, the most telling first, so that a run that is cut off has them."""
    cases = []
    for side, batch in ((1024, 1), (1024, 8), (2048, 1), (2048, 4)):
        steps = decode if (side, batch) == (1024, 1) else 0
        cases += [Case(side, batch, kept, "dense", "graphs", decode=steps)]
        cases += [Case(side, batch, kept, "sparse", "graphs", sight, decode=steps) for sight in ("stem", "glance")]
        cases += [Case(side, batch, kept, "sparse", "compiled")] if side == 1024 else []
        cases += [Case(side, batch, kept, "dense", "eager", decode=steps, repeats=5)] if batch == 1 else []
        cases += [Case(side, batch, kept, "after-vit", "graphs")]
    cases += [Case(1024, 1, kept, "sparse", "eager"), Case(2048, 1, kept, "sparse", "eager")]
    cases += [Case(1024, 1, other, way, "graphs") for other in (64, 400) for way in ("sparse", "after-vit")]
    # How it grows: the sides between and beyond.
    cases += [Case(side, 1, kept, "sparse", "graphs") for side in (512, 768, 4096)]
    cases += [Case(side, 1, kept, "dense", "graphs", repeats=3 if side > 2048 else 10) for side in (512, 768, 4096)]
    return cases


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.speed.bench", description=__doc__)
    parser.add_argument("--model", default="mini", help="mini, a folder, a hub id, or shape:qwen3-vl-2b")
    parser.add_argument("--sides", type=int, nargs="+", default=[1024], help="px of square images")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--kept", type=int, nargs="+", default=[200], help="visual tokens kept of each image")
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS), choices=ENCODINGS)
    parser.add_argument("--modes", nargs="+", default=list(MODES[:2]), choices=MODES)
    parser.add_argument("--sights", nargs="+", default=["stem"], choices=["textures", "stem", "glance"])
    parser.add_argument("--text", type=int, default=50, help="text tokens")
    parser.add_argument("--decode", type=int, default=0, help="tokens after the first whose time is taken, at batch 1")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--promised", action="store_true", help="the rows that the project's figures rest on, instead")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument(
        "--out", type=Path, help="file for the results; out/speed-gpu.json or out/speed-cpu.json if left out"
    )
    parser.add_argument("--append", action="store_true", help="keep the rows that are in the file already")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write pictures there")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write a trace of the last case there")
    parser.add_argument("--fit", action="store_true", help="say what fits cards of 16, 24 and 32 GB")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    cases = promised_cases() if options.promised else ()
    made = bench(options, lambda line: print(line, file=sys.stderr, flush=True), cases)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
