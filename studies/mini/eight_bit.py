"""Weights in 8 bits, for checkpoints that training goes on from: a whole number per value and a scale per row.

python -m studies.mini.eight_bit pack WEIGHTS_FOLDER studies/mini/checkpoints/stock.safetensors.xz
python -m studies.mini.eight_bit unpack studies/mini/checkpoints/stock.safetensors.xz OUT_FOLDER

`pack` reads the bfloat16 shards of a folder and its dense head, if it has one; `unpack` writes both again. A value is
off by at most half a step, 1/254 of the largest of its row: training starts a new learning-rate cycle from it anyway.
The file is a safetensors file in xz: a sixth smaller, and a tree has to travel.
"""

import argparse
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from arr_coc.files import write_whole
from studies.mini.shards import INDEX, save_shards

STEPS, SCALE, HEAD = 127, ".scale", "dense_head.safetensors"
HEAD_PREFIX = "dense_head:"


def to_eight_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """int8 and fp16 scales of what has two dimensions or more; vectors stay as they are, in bfloat16."""
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2:
            packed[name] = tensor.to(torch.bfloat16)
            continue
        rows = tensor.float().flatten(1)
        scale = (rows.abs().amax(1, keepdim=True) / STEPS).clamp(min=1e-8).half()
        packed[name] = (rows / scale.float()).round().clamp(-STEPS, STEPS).to(torch.int8).view(tensor.shape)
        packed[name + SCALE] = scale.squeeze(1)
    return packed


def from_eight_bits(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `to_eight_bits` was given, rounded, in fp32."""
    whole: dict[str, Tensor] = {}
    for name, tensor in packed.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in packed:
            continue
        scale = packed.get(name + SCALE)
        if scale is None:
            whole[name] = tensor.float()
        else:
            whole[name] = (tensor.float().flatten(1) * scale.float().unsqueeze(1)).view(tensor.shape)
    return whole


def pack(folder: Path, file: Path) -> None:
    """The weights of a folder, and its dense head, as one file."""
    shards = sorted(folder.glob("model-*.safetensors"))
    if not shards:
        raise ValueError(f"{folder} holds no {INDEX}: give a folder that `python -m studies.mini.train` wrote")
    tensors = {name: tensor for shard in shards for name, tensor in load_file(str(shard)).items()}
    if (folder / HEAD).is_file():
        tensors |= {HEAD_PREFIX + name: tensor for name, tensor in load_file(str(folder / HEAD)).items()}
    write_whole(file, lzma.compress(save(to_eight_bits(tensors), metadata={"format": "pt"}), preset=9))


def unpack(file: Path, folder: Path) -> None:
    """Shards and dense head as training reads them."""
    whole = from_eight_bits(load(lzma.decompress(file.read_bytes())))
    head = {name.removeprefix(HEAD_PREFIX): whole.pop(name) for name in list(whole) if name.startswith(HEAD_PREFIX)}
    folder.mkdir(parents=True, exist_ok=True)
    save_shards(whole, folder)
    if head:
        save_file(head, str(folder / HEAD))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    asked = parser.parse_args(argv)
    (pack if asked.what == "pack" else unpack)(asked.source, asked.target)


if __name__ == "__main__":
    main()
