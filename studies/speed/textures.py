"""What the texture array costs: time, operations that a GPU launches, arithmetic; of 13 channels, 40, and saliency.

python -m studies.speed.textures --out results/speed-textures.json

On a GPU also as one recorded graph, which is how they run where images are served.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from arr_coc.texture import canvas_of, pyramid_of
from arr_coc.texture.channels import Canvas
from arr_coc.texture.saliency import SaliencyNetwork, saliency

SIDES = (512, 1024, 2048)
CELL = 32
GLANCE = 1024  # width of the ViT of Qwen3-VL-2B


class Launches(TorchDispatchMode):
    """Counts operations that compute or copy something: views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def milliseconds(work: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median time of a run, after two that are not counted; CPU time on a CPU, which a busy machine can tell too."""
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times = []
    for _ in range(repeats + 2):
        begun = clock()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(1000 * (clock() - begun))
    return round(statistics.median(times[2:]), 3)


def recorded(work: Callable[[], Any]) -> Callable[[], None]:
    """The same work as one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def works(canvas: Canvas, image: Tensor, grid: int) -> dict[str, Callable[[], Any]]:
    """What is measured; pooling the image to the canvas is a part of its own, the same for every set."""
    return {
        "canvas": lambda: canvas_of(image, grid),
        "13 channels": lambda: pyramid_of(canvas, 13),
        "40 channels": lambda: pyramid_of(canvas, 40),
        "saliency": lambda: saliency(canvas),
    }


@torch.no_grad()
def measured(side: int, device: torch.device, repeats: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    grid = side // CELL
    image, before = (torch.rand(1, 3, side, side, generator=generator).to(device) for _ in range(2))
    glance = torch.rand(1, GLANCE, grid // 2, grid // 2, generator=generator).to(device)
    looks = torch.rand(1, 3, grid, grid, generator=generator).to(device)
    canvas = canvas_of(image, grid, glance, before, looks)
    rows = []
    for name, work in works(canvas, image, grid).items():
        work()  # tables and weights are there from now on
        with Launches() as launches:
            work()
        with FlopCounterMode(display=False) as flops:
            work()
        row = {"work": name, "side": side, "ms": milliseconds(work, device, repeats)}
        row |= {"launches": launches.count, "mflop": round(flops.get_total_flops() / 1e6, 1)}
        if device.type == "cuda" and name != "canvas":  # pooling reads weights of the luma from the host
            row["recorded_ms"] = milliseconds(recorded(work), device, repeats)
        rows.append(row)
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES, help="px of square images")
    parser.add_argument("--repeats", type=int, default=20)
    a = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    rows = [row for side in a.sides for row in measured(side, device, a.repeats)]
    told = {
        "command": "python -m studies.speed.textures --out results/speed-textures.json",
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU time, {torch.get_num_threads()} thread",
        "torch": torch.__version__,
        "saliency_parameters": sum(one.numel() for one in SaliencyNetwork().parameters()),
    }
    a.out.write_text(json.dumps({**told, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
