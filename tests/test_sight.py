"""Sight beside the textures: the stem, the glance, and how cells deliberate with the question."""

from dataclasses import replace

import pytest
import torch
from PIL import Image
from tiny import processor, stock

from arr_coc import ARRCOCQwen
from arr_coc.config import GLANCE, SIGHTS, ARRCOCConfig
from arr_coc.knowing import ParticipatoryScorer
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.vision import Geometry, glance
from arr_coc.records import QuestionTokens, TexturePyramid
from arr_coc.sight import Sight, sight_width
from arr_coc.texture import texture_pyramid
from arr_coc.timing import Stopwatch

HALF = torch.full((3,), 0.5)


@pytest.mark.parametrize(
    ("grid", "small"),
    [
        ((16, 16), (8, 8)),
        ((32, 32), (8, 8)),
        ((64, 64), (16, 16)),
        ((128, 128), (16, 16)),
        ((4, 4), (4, 4)),
        ((32, 8), (16, 4)),
        ((1, 40), (1, 40)),
    ],
)
def test_a_glance_is_a_quarter_of_the_side_and_has_64_to_256_cells_where_there_are_that_many(grid, small):
    assert GLANCE.grid(grid) == small


def test_a_glance_is_the_stock_vits_last_hidden_state():
    model = stock()
    image = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    seen = glance(model, image, (4, 4), Geometry())  # no more than 256 px: the image itself
    pixels = (image[0] - 0.5) / 0.5
    rows = pixels.view(3, 4, 2, 16, 4, 2, 16).permute(1, 4, 2, 5, 0, 3, 6)
    rows = torch.stack([rows, rows], dim=5).reshape(64, -1)
    hidden = model.model.visual(rows, grid_thw=torch.tensor([[1, 8, 8]]), return_dict=True).last_hidden_state
    hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
    # Four patches of a cell lie side by side in the stock order: put them back on the image's grid of 8 x 8.
    patches = hidden.view(4, 4, 2, 2, -1).permute(4, 0, 2, 1, 3).reshape(1, -1, 8, 8)
    expected = torch.nn.functional.interpolate(patches, size=(4, 4), mode="bilinear", antialias=True)
    assert torch.allclose(seen, expected, atol=1e-5)


def test_glances_of_a_batch_equal_those_alone():
    model = stock()
    images = torch.rand(3, 3, 96, 160, generator=torch.Generator().manual_seed(1))
    together = glance(model, images, (3, 5), Geometry())
    alone = torch.cat([glance(model, image[None], (3, 5), Geometry()) for image in images])
    assert together.shape == (3, model.config.vision_config.hidden_size, 3, 5)
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("sight", SIGHTS)
def test_each_sight_adds_its_channels_and_learns(sight):
    module = Sight(sight, 13, 6, 9, 10 if sight in ("glance", "look") else 0)
    pyramid = texture_pyramid(torch.rand(2, 3, 96, 64), (3, 2))
    seen = module(pyramid, torch.randn(2, 10, 3, 2))
    assert seen.shape == (2, {"textures": 13, "stem": 19, "glance": 28, "look": 28}[sight], 3, 2)
    assert seen.shape[1] == sight_width(sight, 13, 6, 9)
    if sight != "textures":
        seen.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in module.parameters())


def test_textures_are_shown_as_a_small_copy_has_them():
    checks = torch.zeros(1, 3, 128, 128)
    checks[..., 0:32, 32:64] = checks[..., 32:64, 0:32] = 1.0  # cells of the first four differ, their mean does not
    pyramid = texture_pyramid(checks, 4)
    seen = Sight("textures", 13, 0, 0, 0)(pyramid)[0, 0]
    assert pyramid.cell_BCHW[0, 0, :2, :2].tolist() == [[0, 1], [1, 0]]
    assert seen[0, 0] == 0.5
    assert seen[0, 1] == seen[1, 0]


def test_a_glance_that_is_missing_is_asked_for():
    layer = ARRCOCLayer(8, sight="glance", glance_dim=4)
    with pytest.raises(ValueError, match="pass glance="):
        layer(None, torch.randn(1, 3, 8), torch.rand(1, 3, 64, 64))
    assert layer(None, torch.randn(1, 3, 8), torch.rand(1, 3, 64, 64), glance=torch.randn(1, 4, 2, 2)).kept.shape == (
        1,
        2,
        2,
    )


@pytest.mark.parametrize(("sight", "width"), [("glance", 0), ("stem", 7), ("look", 0)])
def test_a_glance_and_only_a_glance_has_a_width(sight, width):
    with pytest.raises(ValueError, match="the ViT's width"):
        ARRCOCConfig(hidden_dim=8, sight=sight, glance_dim=width)


@pytest.mark.parametrize(("sight", "heads"), [("look", 0), ("glance", 7)])
def test_a_look_and_only_a_look_has_heads(sight, heads):
    with pytest.raises(ValueError, match="look alone has heads"):
        ARRCOCConfig(hidden_dim=8, sight=sight, glance_dim=4, look_dim=heads)


@pytest.mark.parametrize("encoding", ["dense", "sparse"])
def test_a_model_looks_before_it_chooses(encoding):
    model = stock()
    config = ARRCOCConfig(
        hidden_dim=model.config.text_config.hidden_size,
        sight="glance",
        glance_dim=model.config.vision_config.hidden_size,
        encoding=encoding,
    )
    torch.manual_seed(0)
    asked = ARRCOCQwen(model, config, processor=processor(), selector="arr_coc").eval()
    picture = Image.effect_noise((160, 96), 60).convert("RGB")
    answer = asked.ask(picture, "What is it?", keep=4, max_new_tokens=2)
    assert answer.tokens_kept == 4
    assert "glance" in answer.timings_ms
    # What the glance saw matters: without it the map is another one.
    with torch.no_grad():
        asked.layer.sight.glance.weight.zero_()
    again = asked.ask(picture, "What is it?", keep=4, max_new_tokens=2)
    assert not torch.equal(answer.selection[0].relevance, again.selection[0].relevance)


def scorer_and_map() -> tuple[ParticipatoryScorer, TexturePyramid]:
    torch.manual_seed(0)
    scorer = ParticipatoryScorer(12, 13)
    pyramid = texture_pyramid(torch.rand(1, 3, 96, 128), (3, 4))
    return scorer, replace(pyramid, seen_BGHW=pyramid.cell_BCHW)


def test_padding_and_order_of_the_question_do_not_matter():
    scorer, pyramid = scorer_and_map()
    tokens = torch.randn(1, 5, 12)
    plain = scorer(pyramid, QuestionTokens.of(tokens))
    padded = QuestionTokens.of(torch.cat([tokens, torch.randn(1, 3, 12)], 1), torch.tensor([[True] * 5 + [False] * 3]))
    assert torch.allclose(scorer(pyramid, padded), plain, atol=1e-6)
    assert torch.allclose(scorer(pyramid, QuestionTokens.of(tokens[:, [4, 2, 0, 1, 3]])), plain, atol=1e-6)


def test_a_cell_hears_of_cells_far_away():
    scorer, pyramid = scorer_and_map()
    question = QuestionTokens.of(torch.randn(1, 5, 12))
    before = scorer(pyramid, question)
    changed = pyramid.seen_BGHW.clone()
    changed[..., 0, 0] = 1 - changed[..., 0, 0]  # the first cell alone
    after = scorer(replace(pyramid, seen_BGHW=changed), question)
    assert (after[0, 2, 3] - before[0, 2, 3]).abs() > 1e-6


def test_one_row_per_question_is_the_same_as_one_image_per_question():
    torch.manual_seed(0)
    layer = ARRCOCLayer(12)
    images = torch.rand(2, 3, 64, 96)
    question = QuestionTokens.of(torch.randn(3, 4, 12))
    watch = Stopwatch(images.device)
    rows = torch.tensor([1, 0, 1])
    shared = layer.weigh(layer.see(images, (2, 3), None, watch).rows(rows), question, watch)
    each = layer.weigh(layer.see(images[rows], (2, 3), None, watch), question, watch)
    assert torch.allclose(shared.balance.relevance_BHW, each.balance.relevance_BHW, atol=1e-6)
