"""The bench without the command line's libraries, for machines that lack them, and the rows our figures rest on.

python -m studies.speed.bench --model shape:qwen3-vl-2b --promised --fit --out results/speed-gpu.json
python -m studies.speed.bench --model shape:qwen3-vl-2b --looks --break-even --out results/speed-look-twice.json
python -m studies.speed.bench --model shape:qwen3-vl-2b --sides 1024 2048 --batches 1 --kept 200

A table goes to stderr, one JSON document to stdout as its last line.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from arr_coc.evaluation.bench.cases import CHOOSERS, ENCODINGS, MODES, Case
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


LOOKS = (
    ("sparse", "stem"),
    ("sparse", "look_twice"),
    ("foveated", "look_twice"),
)  # ways to serve with a part of the tokens: encoding, chooser
SIZES = ((1024, 1), (1024, 8), (2048, 1), (2048, 4), (4096, 1))  # px of a side, batch
AUTOMATIC = {256: 16, 512: 64, 768: 128, 1024: 200, 1536: 400, 2048: 200}  # px of a side -> about what "auto" keeps


def looks_cases(kept: int = 200) -> list[Case]:
    """Looking twice beside looking once, all tokens over graphs, and plain transformers."""
    cases = []
    for side, batch in SIZES:
        times = 2 if side > 2048 else 10  # a second each
        cases += [Case(side, batch, kept, "dense", "graphs", repeats=times)]
        cases += [Case(side, batch, kept, encoding, "graphs", chooser) for encoding, chooser in LOOKS]
        cases += [Case(side, batch, kept, "dense", "eager", repeats=5)] if side <= 2048 else []
    return cases


def break_even_cases() -> list[Case]:
    """From which size on a part of the tokens is faster than all of them, eager and over graphs."""
    cases = []
    for side, kept in AUTOMATIC.items():
        for mode, times in (("eager", 5), ("graphs", 10)):
            cases += [Case(side, 1, kept, "dense", mode, repeats=times)]
            cases += [Case(side, 1, kept, encoding, mode, chooser, repeats=times) for encoding, chooser in LOOKS[:2]]
    return cases


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.speed.bench", description=__doc__)
    parser.add_argument("--model", default="mini", help="mini, a folder, a hub id, or shape:qwen3-vl-2b")
    parser.add_argument("--sides", type=int, nargs="+", default=[1024], help="px of square images")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--kept", type=int, nargs="+", default=[200], help="visual tokens kept of each image")
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS[:3]), choices=ENCODINGS)
    parser.add_argument("--modes", nargs="+", default=list(MODES[:2]), choices=MODES)
    parser.add_argument("--sights", nargs="+", default=["stem"], choices=CHOOSERS)
    parser.add_argument("--text", type=int, default=50, help="text tokens")
    parser.add_argument("--decode", type=int, default=0, help="tokens after the first whose time is taken, at batch 1")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--promised", action="store_true", help="the rows that the project's figures rest on, instead")
    parser.add_argument("--looks", action="store_true", help="rows about looking twice, instead")
    parser.add_argument("--break-even", action="store_true", help="rows from small images to large ones, instead")
    parser.add_argument("--most-side", type=int, default=4096, help="leaves larger images out of these rows, px")
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
    cases = promised_cases() if options.promised else []
    cases += looks_cases() if options.looks else []
    cases += break_even_cases() if options.break_even else []
    cases = [case for case in dict.fromkeys(cases) if case.side <= options.most_side]
    made = bench(options, lambda line: print(line, file=sys.stderr, flush=True), cases)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
