"""The dense head: one linear layer that reads the dense targets off the visual tokens, in training alone.

C classes, D hidden.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from studies.mini.targets import CLASSES, FIRST_LINK

HEAD = "dense_head.safetensors"
RARE, RARER = -4.0, -7.0  # first bias of the classes, and of the links, which few scenes have


def new_head(hidden: int, seed: int) -> nn.Linear:
    """A fresh head. Its bias starts low, for nearly every class is absent from nearly every cell."""
    head = nn.Linear(hidden, CLASSES)
    generator = torch.Generator().manual_seed(seed)
    nn.init.normal_(head.weight, std=0.02, generator=generator)
    nn.init.constant_(head.bias[:FIRST_LINK], RARE)
    nn.init.constant_(head.bias[FIRST_LINK:], RARER)
    return head


def save_head(head: nn.Linear, path: Path) -> None:
    """Write the head in float32."""
    save_file({name: value.cpu() for name, value in head.state_dict().items()}, path)


@torch.no_grad()
def load_head(head: nn.Linear, path: Path) -> None:
    """Read a head of any dtype; one from before the last classes were added fills the first rows."""
    stored = load_file(path)
    weight_CD, bias_C = stored["weight"], stored["bias"]
    known = len(bias_C)
    if known > CLASSES or weight_CD.shape != (known, head.in_features):
        raise ValueError(
            f"{path} holds a head of {tuple(weight_CD.shape)}: this model needs {tuple(head.weight.shape)}"
        )
    head.weight[:known].copy_(weight_CD)
    head.bias[:known].copy_(bias_C)
