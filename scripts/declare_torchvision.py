"""Lets torchvision be imported beside a CPU torch: run once with an environment's own Python.

What the package index has as torchvision is a CUDA build: its operators cannot be loaded beside a CPU torch, and the
import then ends at two of them that it wants to describe. They are declared at its beginning, which is all that vLLM
needs of it on a CPU: images are resized by torch's own operators.
"""

from importlib.util import find_spec
from pathlib import Path

DECLARED = """import torch as _torch
for _name in ("nms", "qnms"):  # declared by arr-coc: without their C++ their schemas are missing
    if not hasattr(_torch.ops.torchvision, _name):
        _torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

found = find_spec("torchvision")
assert found, "torchvision is not installed here"
start = Path(str(found.origin))
if DECLARED not in start.read_text():
    start.write_text(DECLARED + start.read_text())
