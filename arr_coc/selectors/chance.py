"""Random cells: the control that every method must beat."""

import torch
from torch import Tensor

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.selectors.base import Selector, View, register
from arr_coc.selectors.field.base import FieldSelector, count

# A seed and an image's number make one seed of 32 bits: the generator reads no more of it.
STRIDE = 0x9E3779B1


def shuffled_rank(seed: int, number: int, cells: int) -> Tensor:
    """The place of each cell in a shuffle that depends on the seed, the image's number and the number of cells."""
    generator = torch.Generator().manual_seed((seed * STRIDE + number) % 2**32)
    rank_N = torch.empty(cells, dtype=torch.long)
    rank_N[torch.randperm(cells, generator=generator)] = torch.arange(cells)
    return rank_N


class RandomSelector(FieldSelector):
    """k cells drawn without replacement; a smaller budget keeps a part of what a larger one keeps.

    The draw depends on the seed and on the image's number alone, never on the batch or the device.
    """

    name = "random"
    pays = "ViT: the kept windows when sparse, all when dense; LM: the kept tokens; choosing: nothing"
    reason = "cells drawn at random"

    def __init__(self, config: ARRCOCConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.seed = seed

    def score(self, view: View) -> Tensor:
        images, cells = count(view)
        numbers = [0] * images if view.number_B is None else view.number_B.tolist()
        ranks_BN = torch.stack([shuffled_rank(self.seed, number, cells) for number in numbers])
        return (1 - ranks_BN.float() / cells).to(view.question.tokens_BLD.device)


@register("random")
def make(config: ARRCOCConfig, layer: ARRCOCLayer, seed: int = 0) -> Selector:
    return RandomSelector(config, seed)
