"""Images without structure, and what is learned from them."""

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from arr_coc.config import ARRCOCConfig
from arr_coc.qwen.loading import resolve
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import SceneBatches, make_encoder
from arr_coc_scenes.voids import VOIDS as KINDS
from arr_coc_scenes.voids import draw_void


@pytest.mark.parametrize("size", [(64, 64), (96, 160)])
def test_voids_have_the_size_and_follow_the_seed(size):
    drawn = [draw_void(np.random.default_rng(seed), *size) for seed in range(12)]
    assert all(image.shape == (size[1], size[0], 3) and image.dtype == np.uint8 for image in drawn)
    assert np.array_equal(drawn[3], draw_void(np.random.default_rng(3), *size))
    assert len({image.tobytes() for image in drawn}) == len(drawn)
    assert len(KINDS) == 3


def test_minis_adapter_has_learned_from_voids():
    assert ARRCOCConfig.load(Path(resolve("mini"))).voids


def test_nothing_is_there_to_be_found_in_a_void():
    encode = make_encoder(AutoTokenizer.from_pretrained(resolve("mini")))
    config = SelectorTrainConfig(cells_per_batch=2048, questions=4, sizes=((256, 256, 1.0),), void_share=0.5, workers=0)
    (group,) = SceneBatches(config, encode)[0]
    (plain,) = SceneBatches(SelectorTrainConfig(cells_per_batch=2048, questions=4, sizes=config.sizes), encode)[0]
    empty_R = group.targets_RHW.sum((1, 2)) == 0
    assert empty_R.float().mean() > (plain.targets_RHW.sum((1, 2)) == 0).float().mean() + 0.2
    assert group.known_R.all()  # that nothing is there is known
