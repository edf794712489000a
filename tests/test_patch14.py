"""A Qwen3-VL-shaped model with patches of 14 px, so cells of 28: the whole suite of equality again, and every path.

Geometry comes from the model. Nothing here but the sizes differs from tests/test_qwen_equality.py.
"""

import pytest
import test_fovea
import test_qwen_equality
import tiny
import torch

from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.vision import Geometry, cut, patchify, unpatchify

ONE, TWO, LATER = test_qwen_equality.ONE, test_qwen_equality.TWO, test_qwen_equality.LATER


@pytest.fixture(autouse=True)
def _patches_of_14_px(monkeypatch):
    monkeypatch.setattr(tiny, "PATCH", 14)


# Every test of that file is a test of this one as well, under the fixture above; of the first, one kernel is enough.
WHOLE = "test_all_kept_is_the_untouched_model_bit_for_bit"
globals().update(
    {name: test for name, test in vars(test_qwen_equality).items() if name.startswith("test_") and name != WHOLE}
)

# And of foveated encoding, what depends on the sizes.
test_a_foveated_sequence_by_hand = test_fovea.test_it_is_the_untouched_model_on_a_sequence_put_together_by_hand
test_foveated_rows_alone_and_together = test_fovea.test_a_row_of_a_batch_equals_the_row_alone


@pytest.mark.parametrize("how", ["dense", "sparse", "foveated"])
@pytest.mark.parametrize("batch", test_qwen_equality.BATCHES)
def test_all_kept_is_the_untouched_model_bit_for_bit(batch, how):
    getattr(test_qwen_equality, WHOLE)(batch, how, "sdpa", False)


def test_the_model_says_how_large_a_cell_is():
    ours = tiny.wrapped(tiny.stock())
    assert (ours.geometry.patch, ours.geometry.cell) == (14, 28)
    assert tiny.inputs(ONE)["image_grid_thw"].tolist() == [[1, 8, 10]]
    assert tiny.inputs(ONE)["pixel_values"].shape == (80, 3 * 2 * 14 * 14)


def test_patches_of_14_px_are_cut_as_the_processor_cuts_them():
    geometry = Geometry.of(tiny.config().vision_config, tiny.processor())
    rows = tiny.inputs(ONE)["pixel_values"]
    image = unpatchify(rows, (4, 5), geometry)
    assert image.shape == (3, 112, 140)
    assert torch.allclose(patchify(image[None], geometry)[0], rows, atol=1e-6)
    assert cut(image[None], geometry).shape == (1, 20, 4, 3 * 14 * 14)


@pytest.mark.parametrize("how", ["dense", "sparse"])
@pytest.mark.parametrize("selector", ["arr_coc", "look_twice", "training_free"])
def test_the_recorded_path_gives_the_tokens_of_the_eager_one(how, selector):
    if (how, selector) == ("sparse", "training_free"):
        how = "dense"
    ours = test_qwen_equality.set_encoding(tiny.wrapped(tiny.stock(), selector=selector), how)
    for conversations, keep in (([ONE], 6), ([ONE, TWO, LATER], 0.4), ([TWO], "auto")):
        inputs = tiny.inputs(*conversations)
        made = {}
        for fast in (False, True):
            ours.fast = fast
            made[fast] = ours.generate(**inputs, keep=keep, max_new_tokens=6, do_sample=False)
        assert ours.fast_runner is not None
        assert torch.equal(made[False], made[True])


def test_a_glance_and_several_images_of_other_sizes():
    layer = {"sight": "glance", "glance_dim": tiny.config().vision_config.hidden_size}
    from arr_coc.config import ARRCOCConfig

    ours = tiny.wrapped(tiny.stock(), config=ARRCOCConfig(hidden_dim=32, **layer), selector="arr_coc")
    talk = Conversation([tiny.picture(384, 320, 4), tiny.picture(96, 160, 5)], "which one?")
    (images,) = ours.prepare(**{k: v for k, v in tiny.inputs(talk).items() if k != "mm_token_type_ids"}, keep=24).images
    assert [image.grid for image in images] == [(10, 12), (5, 3)]
    assert sum(image.tokens_kept for image in images) == 24
