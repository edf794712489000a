"""The methods of the field: worked examples, one suite over all, what each is for, and all of them inside Qwen3-VL.

Worked examples have at most 8 cells; their selections were computed by hand, as the comments show.
"""

import math
import tempfile
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.qwen3_vl.modeling_qwen3_vl import eager_attention_forward

from arr_coc import ARRCOCConfig, ARRCOCQwen
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import language as insides_language
from arr_coc.qwen import vision as encoding
from arr_coc.qwen.language import last_attention
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.request import Hints, evidence_mask
from arr_coc.qwen.vision import patch_features, received_attention
from arr_coc.records import QuestionTokens
from arr_coc.selectors import SELECTORS, FieldSelector, View, make_selector
from arr_coc.selectors.controls import even_cells, grid_cells, near_grid, pool_regions, pool_weights, shuffled_rank
from arr_coc.selectors.field import base as field
from arr_coc.selectors.field.base import stretch, unit
from arr_coc.selectors.field.cdpruner import dpp_order
from arr_coc.selectors.field.divprune import max_min_order
from arr_coc.selectors.field.mmtok import cell_rows, covering_order, word_rows
from arr_coc.timing import Stopwatch
from studies.rival.selector import RivalScorer, RivalSelector, mmr_order, save_rival

DIM = 16
FIELD = sorted(set(SELECTORS) - {"arr_coc", "look_twice", "training_free"})
EXACT = sorted(set(FIELD) - {"downsampling"})
CONFIG = ARRCOCConfig(hidden_dim=DIM)
LAYER = ARRCOCLayer.from_config(CONFIG)


@lru_cache
def untrained_rival() -> str:
    torch.manual_seed(0)
    return str(save_rival(Path(tempfile.mkdtemp()), RivalScorer(DIM, 8), {}))


def make(name, **options):
    if name == "rival":
        options = {"path": untrained_rival(), **options}
    return make_selector(name, CONFIG, LAYER, **options)


def wrapped(stock, name):
    if name != "rival":
        return tiny.wrapped(stock, selector=name)
    torch.manual_seed(0)
    width = stock.config.text_config.hidden_size
    return tiny.wrapped(stock, selector=RivalSelector(ARRCOCConfig(hidden_dim=width), RivalScorer(width, 8).eval()))


def choose(selector, view, *budgets):
    return selector.choose(selector.judge(view, Stopwatch()), torch.tensor(budgets))


def kept(name, view, k, **options) -> list[int]:
    return choose(make(name, **options), view, k).keep_BHW[0].flatten().nonzero().flatten().tolist()


def words(*rows) -> QuestionTokens:
    return QuestionTokens.of(torch.tensor(rows, dtype=torch.float32).unsqueeze(0))


def small_view(grid=(2, 4), question=None, **tensors) -> View:
    question = question or words([1.0, 0.0])
    given_ = {name: torch.as_tensor(value, dtype=torch.float32).unsqueeze(0) for name, value in tensors.items()}
    return View(grid, question, None, **{"visual_BND": None, **given_})


def angles(*degrees) -> torch.Tensor:
    turns = torch.tensor(degrees) * math.pi / 180
    return torch.stack([turns.cos(), turns.sin()], -1)


# ---------------------------------------------------------------- worked examples


def test_random_by_hand():
    # Seed 7, image 3: the generator's shuffle of 8 cells is 4, 5, 3, 2, 6, 0, 7, 1. Three cells are its first three.
    assert shuffled_rank(7, 3, 8).argsort().tolist() == [4, 5, 3, 2, 6, 0, 7, 1]
    assert kept("random", replace(small_view(), number_B=torch.tensor([3])), 3, seed=7) == [3, 4, 5]


def test_even_grid_by_hand():
    # k = 3 in 2 x 4: 1 x 3 has 3 cells (cost |ln((1/3) / (2/4))| = 0.41); 2 x 1 has 2 (4 ln(3/2) + ln 4 = 3.0).
    # Row round(1/2 * 2/1 - 1/2) = round(0.5) = 1; columns round(i * 4/3 + 1/6), i = 0, 1, 2: 0, round(1.5) = 2, 3.
    assert kept("even_grid", small_view(), 3) == [4, 6, 7]
    # k = 5: 2 x 2 (2 x 3 has 6), rows 0, 1, columns 1, 3: cells 1, 3, 5, 7. All left are 1 away: the lowest is 0.
    assert kept("even_grid", small_view(), 5) == [0, 1, 3, 5, 7]


def test_pooling_by_hand():
    # k = 2 in 2 x 4: 1 x 2 regions of 2 x 2 cells: {0, 1, 4, 5} and {2, 3, 6, 7}; middles in row 1, columns 1 and 3.
    # Token n is 10 n: means 25 and 45.
    middles, weights = pool_weights(2, 2, 4)
    assert middles.tolist() == [5, 7]
    assert (weights @ (10.0 * torch.arange(8)).unsqueeze(1)).flatten().tolist() == [25.0, 45.0]
    # k = 3: the nearest grid is 1 x 3; the band of two rows is cut at columns 0, 1, 2: {0, 4}, {1, 5}, {2, 3, 6, 7}.
    middles, weights = pool_weights(3, 2, 4)
    assert middles.tolist() == [4, 5, 7]
    assert (weights @ (10.0 * torch.arange(8)).unsqueeze(1)).flatten().tolist() == [20.0, 30.0, 45.0]


def test_downsampling_by_hand():
    # k = 2 in 2 x 4: 1 x 2 has the same shape.
    # k = 5: 2 x 3 costs 4 ln(6/5) + ln(8/6) = 1.02, 2 x 2 costs 4 ln(5/4) + ln 2 = 1.59.
    taken = choose(make("downsampling"), small_view(), 2)
    assert taken.grids == [(1, 2)]
    assert taken.keep_BHW.flatten().nonzero().flatten().tolist() == [5, 7]
    assert choose(make("downsampling"), small_view(), 5).grids == [(2, 3)]


def test_fastv_by_hand():
    # Three visual tokens and the last token of the prompt; two heads share one key head, no rotation, scaling 1.
    # The last token's queries are (1, 0) and (0, 1), its key (0, 0); other keys (ln 2, 0), (0, ln 6), (ln 3, ln 3).
    # Head 1: exp of logits 2, 1, 3, 1, sum 7; head 2: 1, 6, 3, 1, sum 11. Mean of both:
    # (2/7 + 1/11) / 2 = 29/154, (1/7 + 6/11) / 2 = 53/154, (3/7 + 3/11) / 2 = 54/154: the first is dropped first.
    ln = math.log
    hidden = torch.tensor(
        [[0, 0, 0, 0, ln(2), 0], [0, 0, 0, 0, 0, ln(6)], [0, 0, 0, 0, ln(3), ln(3)], [1, 0, 0, 1, 0, 0]]
    ).unsqueeze(0)
    attention = SimpleNamespace(
        head_dim=2, num_key_value_groups=2, scaling=1.0, q_norm=nn.Identity(), k_norm=nn.Identity(),
        q_proj=lambda x: x[..., :4], k_proj=lambda x: x[..., 4:],
    )  # fmt: skip
    rotation = torch.ones(1, 4, 2), torch.zeros(1, 4, 2)
    layer = SimpleNamespace(self_attn=attention, input_layernorm=nn.Identity())
    attended = last_attention(layer, hidden, rotation, torch.ones(1, 4, dtype=torch.bool))
    assert torch.allclose(attended[0, :3] * 154, torch.tensor([29.0, 53.0, 54.0]))
    view = small_view((1, 3), attended_BN=attended[0, :3])
    assert kept("fastv", view, 2) == [1, 2]
    assert kept("fastv", view, 1) == [2]


def test_visionzip_by_hand():
    # k = 4, half of it contextual. Dominant: 1 (0.30) and 4 (0.20). Left in order: 0, 2, 3, 5, 6, 7; two targets at
    # places 0 and 3 of these: cells 0 and 5, keys (1, 0) and (0, 1). Cosines with (0, 5): cell 2 (1, 0.1): 1.00, 0.10;
    # cell 3 (0.2, 1): 0.20, 0.98; cell 6 (3, 0): 1, 0; cell 7 (0, -1): 0, -1. So 2, 6, 7 go to 0, and 3 to 5.
    # Token n is 10 n: 0 + (20 + 60 + 70) / 3 = 50; 10; 40; 50 + 30 = 80, at cells 0, 1, 4, 5.
    received = [0.05, 0.30, 0.10, 0.05, 0.20, 0.10, 0.10, 0.10]
    keys = [[1, 0], [9, 9], [1, 0.1], [0.2, 1], [9, 9], [0, 1], [3, 0], [0, -1]]
    taken = choose(make("visionzip", contextual=0.5), small_view(received_BN=received, keys_BNd=keys), 4)
    assert taken.keep_BHW.flatten().nonzero().flatten().tolist() == [0, 1, 4, 5]
    merged = taken.weights[0] @ (10.0 * torch.arange(8)).unsqueeze(1)
    assert torch.allclose(merged.flatten(), torch.tensor([50.0, 10.0, 40.0, 80.0]))


def test_divprune_by_hand():
    # Angles 0, 10, 60, 180, 185, 200 degrees: a greater angle is a greater distance. The nearest neighbours are
    # 10, 10, 50, 5, 5, 15 away: cell 2 first. From it 60, 50, -, 120, 125, 140: cell 5. The nearer of both is then
    # 60, 50, -, 20, 15, -: cell 0. Then -, 10, -, 20, 15, -: cell 3.
    view = small_view((1, 6), visual_BND=angles(0, 10, 60, 180, 185, 200))
    assert kept("divprune", view, 1) == [2]
    assert kept("divprune", view, 3) == [0, 2, 5]
    assert kept("divprune", view, 4) == [0, 2, 3, 5]


def test_cdpruner_by_hand():
    # Cosines with the word (0.6, 0, 0.8): 0.6, 0.6, 0, 0.8, 0.48; stretched to 0.75, 0.75, 0, 1, 0.6. theta 0.5 makes
    # alpha 0.5, so what is left at first is exp(r): 2.12, 2.12, 1, 2.72, 1.82. Cell 3 is picked, orthogonal to all.
    # Cell 0 (tie with 1) is next: nothing is left of cell 1, its equal; of cell 4, cosine 0.8, 1.82 * 0.36 = 0.66.
    # Then cell 2 (1 against 0.66), though cell 1 is far more relevant.
    tokens = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.8, 0.6, 0]]
    view = small_view((1, 5), words([0.6, 0, 0.8]), visual_BND=tokens)
    assert kept("cdpruner", view, 1) == [3]
    assert kept("cdpruner", view, 2) == [0, 3]
    assert kept("cdpruner", view, 3) == [0, 2, 3]
    # theta 0: all begin with 1, so cell 0; then 0, 1, 1, 0.36 are left of 1, 2, 3, 4: cell 2.
    assert kept("cdpruner", view, 2, theta=0.0) == [0, 2]


def test_mmtok_by_hand():
    # The word is token 3's: it alone covers it, by 1 (the others have cosine 0: exp(-50)). Cells 0 and 1 are alike
    # before the merger, 2 and 3 differ from all: exp(1 / 0.2) = 148.4, so rows of 0 and 1 are
    # (148.4, 148.4, 1, 1) / 298.8 = (0.497, 0.497, 0.003, 0.003), of 2 (1, 1, 148.4, 1) / 151.4 =
    # (0.007, 0.007, 0.980, 0.007), of 3 likewise; all times 0.5 / 4. Gains at first: 0.126, 0.126, 0.124, 1.124: 3.
    # Then 0.125 * 2 * 0.493 = 0.1233 for 0 and 1, 0.125 * 0.974 = 0.1217 for 2: cell 0. Then 0 for 1, 0.1217 for 2.
    tokens = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    patches = [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    word_113 = torch.tensor([[[0, 0, 2.0]]])
    rows = torch.cat([cell_rows(torch.tensor([patches])), word_rows(torch.tensor([tokens]), word_113, [1])], 1)
    assert torch.allclose(rows.sum(1), torch.tensor([0.1258, 0.1258, 0.1242, 1.1242]), atol=1e-4)
    assert covering_order(rows, 4).tolist() == [[3, 0, 2, 1]]
    view = small_view((1, 4), words([0, 0, 2.0]), visual_BND=tokens, patches_BNX=patches)
    assert kept("mmtok", view, 2) == [0, 3]


def test_oracle_by_hand():
    # The box covers columns 1 and 2 of the upper row: cells 1 and 2. The even order of a 2 x 4 grid begins in the
    # middle (row 1, column 2) and halves the distances: cells 6, 4, 1, 3, 7, 5, 0, 2. So 1 before 2, then 6, then 4.
    view = replace(small_view(), evidence_BHW=evidence_mask([(0.25, 0.0, 0.75, 0.5)], (2, 4)).unsqueeze(0))
    assert [kept("oracle", view, k) for k in (1, 2, 3, 4)] == [[1], [1, 2], [1, 2, 6], [1, 2, 4, 6]]


# ---------------------------------------------------------------- one suite over all


GRID = (6, 8)


def full_view(batch: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> View:
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    return View(
        GRID,
        QuestionTokens.of(rand(batch, 5, DIM) - 0.5, torch.arange(5) < torch.tensor([[4], [0], [5]])[:batch]),
        torch.rand(batch, 3, 32 * GRID[0], 32 * GRID[1], generator=torch.Generator().manual_seed(seed)),
        (rand(batch, 48, DIM) - 0.5).to(dtype),
        number_B=torch.arange(batch),
        evidence_BHW=rand(batch, *GRID) > 0.8,
        patches_BNX=rand(batch, 48, 24) - 0.5,
        received_BN=rand(batch, 48),
        keys_BNd=rand(batch, 48, 8) - 0.5,
        attended_BN=rand(batch, 48),
    )  # fmt: skip


@pytest.mark.parametrize("name", FIELD)
def test_every_method_says_what_it_pays_and_why(name):
    selector = make(name)
    assert isinstance(selector, FieldSelector)
    assert selector.name == name
    assert "ViT" in selector.pays
    assert "LM" in selector.pays
    assert choose(selector, full_view(), 9, 9, 48).strategy(0) == (name, selector.reason)
    assert choose(selector, full_view(), 9, 9, 48).strategy(2)[0] == "keep_all"


@pytest.mark.parametrize("name", EXACT)
def test_exactly_k_whatever_k(name):
    selector = make(name)
    for k in (1, 2, 7, 31, 47, 48, 60):
        taken = choose(selector, full_view(), k, k, k)
        assert taken.keep_BHW.flatten(1).sum(-1).tolist() == [min(k, 48)] * 3
        for row, weights in enumerate(taken.weights or []):
            assert weights.shape == (min(k, 48), 48)
            own = weights[torch.arange(len(weights)), taken.keep_BHW[row].flatten().nonzero().flatten()]
            assert (own > 0).all(), "a token holds the cell that it stands for"


@pytest.mark.parametrize("name", [name for name in EXACT if name in ("pooling", "visionzip")])
def test_merging_all_cells_merges_nothing(name):
    for weights in choose(make(name), full_view(), 48, 48, 48).weights:
        assert torch.equal(weights, torch.eye(48))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EXACT)
def test_half_precision_is_scored_in_fp32(name, dtype):
    half = full_view(dtype=dtype)
    selector = make(name)
    judgement = selector.judge(half, Stopwatch())
    assert judgement.scores_BN.dtype == torch.float32
    exact = choose(selector, replace(half, visual_BND=half.visual_BND.float()), 9, 9, 9)
    assert torch.equal(selector.choose(judgement, torch.tensor([9, 9, 9])).keep_BHW, exact.keep_BHW)


@pytest.mark.parametrize("name", ["divprune", "cdpruner", "mmtok", "visionzip", "fastv"])
def test_scores_that_are_not_finite_keep_everything_of_that_image(name):
    view = full_view()
    for tensor in (view.visual_BND, view.received_BN, view.attended_BN):
        tensor[1] = float("nan")
    taken = choose(make(name), view, 9, 9, 9)
    assert taken.keep_BHW.flatten(1).sum(-1).tolist() == [9, 48, 9]
    assert "not finite" in taken.strategy(1)[1]


def test_settings_are_checked():
    with pytest.raises(ValueError, match="has no setting 'sed': it has seed"):
        make("random", sed=1)
    with pytest.raises(ValueError, match="has no setting 'seed': it has none"):
        make("divprune", seed=1)
    for name, options in (
        ("cdpruner", {"theta": 1.5}), ("visionzip", {"contextual": 1.0}), ("fastv", {"after": 0}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(options))):
            make(name, **options)


# ---------------------------------------------------------------- what each is for


def test_random_depends_on_the_seed_and_the_number_alone():
    view = full_view()
    drawn = lambda view, **options: choose(make("random", **options), view, 9, 9, 9).keep_BHW  # noqa: E731
    first = drawn(view)
    assert torch.equal(first, drawn(replace(full_view(seed=5), number_B=view.number_B)))
    assert not torch.equal(first[0], first[1]), "images differ"
    assert not torch.equal(first, drawn(view, seed=1))
    swapped = drawn(replace(view, number_B=torch.tensor([1, 0, 2])))
    assert torch.equal(swapped[0], first[1])
    assert torch.equal(swapped[1], first[0])
    more = choose(make("random"), view, 20, 20, 20).keep_BHW
    assert (more & first).sum() == first.sum(), "a larger budget keeps what a smaller one did"
    assert torch.stack([drawn(view, seed=seed) for seed in range(60)]).float().mean((0, 1)).std() < 0.06, "evenly"


@given(st.integers(1, 12), st.integers(1, 12), st.data())
@settings(max_examples=60, deadline=None)
def test_layouts_are_exact_and_stay_in_the_grid(height, width, data):
    k = data.draw(st.integers(1, height * width))
    even = even_cells(k, height, width)
    assert len(set(even)) == k
    assert sorted(even) == list(even)
    assert 0 <= even[0] <= even[-1] < height * width
    small = near_grid(k, height, width)
    assert small[0] <= height
    assert small[1] <= width
    assert len(set(grid_cells(small, height, width))) == small[0] * small[1]
    regions = pool_regions(k, height, width)
    covered = [
        r * width + c for top, bottom, left, right in regions for r in range(top, bottom) for c in range(left, right)
    ]
    assert len(regions) == k
    assert sorted(covered) == list(range(height * width)), "regions tile the grid"
    middles, _ = pool_weights(k, height, width)
    assert (middles.diff() > 0).all(), "in order, all different"
    assert near_grid(height * width, height, width) == (height, width)


def test_an_even_grid_leaves_no_cell_far_from_a_kept_one():
    for k in (4, 13, 26, 64, 102):
        chosen = torch.tensor(even_cells(k, 16, 16))
        at = lambda cells: torch.stack([cells // 16, cells % 16], -1).float()  # noqa: E731
        farthest = torch.cdist(at(torch.arange(256)), at(chosen)).amin(-1).max()
        assert farthest <= 1.2 * math.sqrt(256 / k), "a cell of the coarse grid at most"


@pytest.mark.parametrize(("k", "count"), [(64, 64), (26, 25), (15, 16), (128, 132), (400, 400), (256, 256)])
def test_downsampling_comes_near_k_and_keeps_the_shape(k, count):
    side = 32 if k > 200 else 16
    height, width = near_grid(k, side, side)
    assert height * width == count
    assert max(height, width) / min(height, width) < 1.15
    assert near_grid(64, 8, 32) == (4, 16), "a wide image stays wide"


def test_pooling_of_a_constant_image_is_constant():
    features = SimpleNamespace(
        pooler_output=(torch.full((48, DIM), 0.3),),
        deepstack_features=[(torch.full((48, DIM), level),) for level in (1.7, -2.0)],
    )
    for k in (5, 12, 17):
        middles, weights = pool_weights(k, *GRID)
        merged = encoding.merge(SimpleNamespace(**vars(features)), [weights], [middles])
        assert torch.allclose(merged.pooler_output[0], torch.full((k, DIM), 0.3))
        for level, value in zip(merged.deepstack_features, (1.7, -2.0), strict=True):
            assert torch.allclose(level[0], torch.full((k, DIM), value))


def test_divprune_picks_no_two_identical_cells_while_a_different_one_is_left():
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(12, 64, generator=generator)
    of_cell = torch.randint(0, 12, (96,), generator=generator)
    of_cell[:12] = torch.arange(12)
    scale = 0.5 + torch.rand(96, 1, generator=generator)
    view = small_view((8, 12), visual_BND=kinds[of_cell] * scale)
    for k in (3, 8, 12):
        assert len(set(of_cell[kept("divprune", view, k)].tolist())) == k
    assert len(kept("divprune", view, 50)) == 50, "equal cells fill up in the end, each once"


def test_divprune_equals_the_plain_definition():
    tokens = full_view().visual_BND[0]
    distance = 1 - unit(tokens) @ unit(tokens).T
    chosen = [int((distance + 9 * torch.eye(48)).amin(-1).argmax())]
    while len(chosen) < 20:
        nearest = distance[:, chosen].amin(-1)
        nearest[chosen] = -1
        chosen.append(int(nearest.argmax()))
    assert kept("divprune", small_view(GRID, visual_BND=tokens), 20) == sorted(chosen)


def test_cdpruner_without_relevance_is_pure_diversity():
    """theta = 0: the question does not matter, and every pick makes the determinant of the cosines the largest."""
    view = full_view()
    diverse = choose(make("cdpruner", theta=0.0), view, 9, 9, 9).keep_BHW
    other = replace(view, question=QuestionTokens.of(torch.randn(3, 4, DIM)))
    assert torch.equal(diverse, choose(make("cdpruner", theta=0.0), other, 9, 9, 9).keep_BHW)
    assert not torch.equal(diverse, choose(make("cdpruner", theta=0.8), other, 9, 9, 9).keep_BHW)
    tokens = unit(view.visual_BND[0])
    similar = (tokens @ tokens.T).double()
    chosen: list[int] = []
    for _ in range(9):
        volumes = [
            -1.0 if cell in chosen else torch.linalg.det(similar[[*chosen, cell]][:, [*chosen, cell]]).item()
            for cell in range(48)
        ]
        best = max(volumes)
        chosen.append(next(cell for cell in range(48) if volumes[cell] > best - 1e-9))
    assert dpp_order(tokens.unsqueeze(0), torch.ones(1, 48), 9).tolist() == [chosen]


def test_cdpruner_prefers_what_suits_the_question():
    view = full_view()
    relevant = choose(make("cdpruner", theta=0.95), view, 9, 9, 9).keep_BHW[0].flatten()
    diverse = choose(make("cdpruner", theta=0.0), view, 9, 9, 9).keep_BHW[0].flatten()
    scores = make("cdpruner").judge(view, Stopwatch()).scores_BN[0]
    assert scores[relevant].mean() > scores[diverse].mean() + 0.05


def test_cdpruner_goes_on_when_tokens_are_more_than_their_dimensions():
    tokens = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    view = small_view((10, 20), words([1.0] * 8), visual_BND=tokens)
    assert len(kept("cdpruner", view, 150)) == 150


def test_visionzip_without_contextual_tokens_is_attention_alone():
    view = full_view()
    taken = choose(make("visionzip", contextual=0.0), view, 9, 9, 9)
    for row in range(3):
        most = view.received_BN[row].topk(9).indices.sort().values
        assert torch.equal(taken.keep_BHW[row].flatten().nonzero().flatten(), most)
        assert taken.weights[row].sum() == 9


def test_visionzip_shares_its_budget_as_the_paper_does_and_every_cell_is_used():
    view = full_view()
    weights = choose(make("visionzip"), view, 32, 32, 32).weights[0]
    merged = (weights > 0).sum(-1) > 1
    assert (weights.sum(-1) > 1.5).sum() <= 5, "10 of 64 tokens are contextual"
    assert merged.any()
    assert ((weights > 0).sum(0) == 1).all(), "each cell is in one token"


def test_mmtok_covers_the_word_first_and_copes_without_a_question():
    view = full_view()
    tokens = view.visual_BND.clone()
    tokens[0, 11] = view.question.tokens_BLD[0, 2]
    assert choose(make("mmtok"), replace(view, visual_BND=tokens), 5, 5, 5).keep_BHW[0].flatten()[11]
    assert not view.question.asked_B[1]
    assert covering_order(cell_rows(view.patches_BNX[1:2]), 5)[0].sort().values.tolist() == (
        choose(make("mmtok"), view, 5, 5, 5).keep_BHW[1].flatten().nonzero().flatten().tolist()
    )


def test_the_oracle_keeps_all_evidence_that_fits():
    view = full_view()
    evidence = view.evidence_BHW.flatten(1)
    counts = evidence.sum(-1).tolist()
    taken = choose(make("oracle"), view, *[count + 5 for count in counts]).keep_BHW.flatten(1)
    assert (taken & evidence).sum(-1).tolist() == counts
    few = choose(make("oracle"), view, 3, 3, 3).keep_BHW.flatten(1)
    assert (few & evidence).sum(-1).tolist() == [3, 3, 3]


def test_evidence_boxes_become_the_cells_that_they_touch():
    cells = lambda *boxes: evidence_mask(boxes, (3, 15)).nonzero().tolist()  # noqa: E731
    assert cells((64 / 480, 0, 128 / 480, 1 / 3)) == [[0, 2], [0, 3]], "ends on the edge of a cell are exclusive"
    assert cells((0.99, 0.99, 1, 1)) == [[2, 14]]
    assert cells() == []
    with pytest.raises(ValueError, match="shares of the image"):
        cells((10, 10, 40, 40))


# ---------------------------------------------------------------- all rows of a batch at once


def max_min_alone(cosine_NN, first, k):
    """DivPrune's order by its definition, as the others below: one image, one pick at a time."""
    distance = torch.where(1 - cosine_NN < 1e-6, 0.0, 1 - cosine_NN)
    picks = [int(first)]
    while len(picks) < k:
        nearest = distance[picks].amin(0)
        nearest[picks] = -math.inf
        picks.append(int(nearest.argmax()))
    return picks


def dpp_alone(cosine_NN, quality_N, k):
    kernel, left, taken, picks = quality_N[:, None] * quality_N * cosine_NN, quality_N.square(), [], []
    for _ in range(k):
        picks.append(int(left.argmax()))
        row = kernel[picks[-1]]
        if taken:
            before = torch.stack(taken)
            row = row - (before[:, picks[-1:]] * before).sum(0)
        bound = left.clamp(min=0).sqrt()
        taken.append((row / bound[picks[-1]].clamp(min=1e-5)).clamp(-bound, bound))
        left = left - taken[-1].square()
        left[picks[-1]] = -math.inf
    return picks


def covering_alone(cover_CN, k):
    picks = []
    while len(picks) < k:
        best = cover_CN[:, picks].amax(1, keepdim=True) if picks else torch.zeros(len(cover_CN), 1)
        gain = (cover_CN - best).clamp(min=0).sum(0)
        gain[picks] = -math.inf
        picks.append(int(gain.argmax()))
    return picks


def mmr_alone(scores_N, cosine_NN, k, diversity):
    picks = []
    while len(picks) < k:
        like = cosine_NN[picks].amax(0).clamp(min=0) if picks else torch.zeros_like(scores_N)
        worth = (1 - diversity) * scores_N - diversity * like
        worth[picks] = -math.inf
        picks.append(int(worth.argmax()))
    return picks


def merged_alone(keys_Nd, dominant, contextual):
    """VisionZip's kept cells and the cells that each is made of."""
    left = [cell for cell in range(len(keys_Nd)) if cell not in dominant]
    targets = [left[number * len(left) // contextual] for number in range(contextual)]
    kept_cells = sorted(dominant + targets)
    weights = torch.eye(len(keys_Nd))[kept_cells]
    others = [cell for cell in left if cell not in targets] if targets else []
    nearest = (keys_Nd @ keys_Nd[targets].T)[others].argmax(-1).tolist() if others else []
    for cell, target in zip(others, nearest, strict=True):
        weights[kept_cells.index(targets[target]), cell] = 1 / nearest.count(target)
    return kept_cells, weights


GREEDY = ["divprune", "cdpruner", "mmtok", "rival", "visionzip"]


def greedy_selector(name):
    return make(name, diversity=0.4) if name == "rival" else make(name)


def alone(name, view, scores_N, k):
    """The kept cells of a view of one image, and what they are made of where they are merged."""
    tokens, patches = unit(view.visual_BND[0]), unit(view.patches_BNX[0])
    if name == "divprune":
        return max_min_alone(tokens @ tokens.T, scores_N.argmax(), k), None
    if name == "cdpruner":
        quality_N = (0.5 * (stretch(scores_N.unsqueeze(0))[0] + 1e-6)).exp()
        return dpp_alone(tokens @ tokens.T, quality_N, k), None
    if name == "rival":
        return mmr_alone(scores_N, tokens @ tokens.T, k, 0.4), None
    if name == "mmtok":
        asked = unit(view.question.tokens_BLD[0][view.question.mask_BL[0]])
        cells_NN = (patches @ patches.T / 0.2).softmax(-1) * (0.5 / len(patches))
        words_LN = (asked @ tokens.T / 0.02).softmax(-1) / max(1, len(asked))
        return covering_alone(torch.cat([cells_NN, words_LN, torch.zeros(-len(asked) % 16, len(tokens))]), k), None
    contextual = min(k - 1, int(k * 10 / 64 + 0.5))
    dominant = scores_N.sort(descending=True, stable=True).indices[: k - contextual].tolist()
    return merged_alone(unit(view.keys_BNd[0]), dominant, contextual)


def many_view(seed: int, images: int, grid: tuple[int, int], kinds: int) -> View:
    """Images whose cells are of so many kinds, so that most of them have an equal, with questions of 0 to 20 words."""
    generator, cells = torch.Generator().manual_seed(seed), grid[0] * grid[1]
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    kind_BN = torch.randint(kinds, (images, cells), generator=generator)
    pick = lambda values: torch.stack([one[kind] for one, kind in zip(values, kind_BN, strict=True)])  # noqa: E731
    mask = torch.arange(20) < torch.randint(21, (images, 1), generator=generator)
    return View(
        grid,
        QuestionTokens.of(rand(images, 20, DIM) - 0.5, mask.flip(1) if seed % 2 else mask),
        None,
        pick(rand(images, kinds, DIM) - 0.4),
        patches_BNX=pick(rand(images, kinds, 24) - 0.5),
        received_BN=pick(rand(images, kinds).mul(4).round()),
        keys_BNd=pick(rand(images, kinds, 8) - 0.5),
    )


def image_of(view: View, row: int) -> View:
    own = {f.name: getattr(view, f.name) for f in fields(View) if f.name not in ("grid", "question")}
    question = QuestionTokens(view.question.tokens_BLD[row : row + 1], view.question.mask_BL[row : row + 1])
    cut = {name: value[row : row + 1] for name, value in own.items() if value is not None}
    return replace(view, question=question, **cut)


@pytest.mark.parametrize("name", GREEDY)
@given(st.integers(0, 9999), st.tuples(st.integers(1, 5), st.integers(1, 8)), st.integers(1, 30), st.data())
@settings(max_examples=25, deadline=None)
def test_a_batch_of_mixed_budgets_picks_as_each_image_alone_by_definition(name, seed, grid, kinds, data):
    cells = grid[0] * grid[1]
    budgets = data.draw(st.lists(st.integers(1, cells), min_size=1, max_size=6))
    view, selector = many_view(seed, len(budgets), grid, kinds), greedy_selector(name)
    with patch.dict(field.HELD, cpu=data.draw(st.sampled_from([1, 2**15, 2**17, 2**30]))):
        judgement = selector.judge(view, Stopwatch())
        taken = selector.choose(judgement, torch.tensor(budgets))
    for row, k in enumerate(budgets):
        single = image_of(view, row)
        scores_1N = selector.judge(single, Stopwatch()).scores_BN
        if name == "rival":  # its network rounds by the batch
            assert scores_1N.allclose(judgement.scores_BN[row], atol=1e-6)
            scores_1N = judgement.scores_BN[row : row + 1]
        assert torch.equal(scores_1N[0], judgement.scores_BN[row])
        again = selector.pick(single, scores_1N, torch.tensor([k]))
        assert torch.equal(taken.keep_BHW[row].flatten(), again.keep_BN[0]), "neither other rows nor parts matter"
        cells_kept, weights = alone(name, single, scores_1N[0], k)
        assert taken.keep_BHW[row].flatten().nonzero().flatten().tolist() == sorted(cells_kept)
        assert weights is None or torch.equal(taken.weights[row], weights)


@pytest.mark.parametrize("name", ["divprune", "cdpruner", "mmtok", "rival"])
def test_more_picks_begin_with_the_fewer_and_ties_go_to_the_lower_index(name):
    order = {
        "divprune": lambda tokens, k: max_min_order(tokens, torch.zeros(2, dtype=torch.long), k),
        "cdpruner": lambda tokens, k: dpp_order(tokens, torch.ones(2, 9), k),
        "mmtok": lambda tokens, k: covering_order(tokens.mT, k),
        "rival": lambda tokens, k: mmr_order(torch.ones(2, 9), tokens, k, 0.5),
    }[name]
    # Three kinds of cells at right angles, three cells of each: 0 to 2, 3 to 5 and 6 to 8, then the same upside down.
    tokens = torch.eye(3).repeat_interleave(3, 0)
    whole = order(torch.stack([tokens, tokens.flip(0)]), 9)
    assert whole.tolist() == [[0, 3, 6, 1, 2, 4, 5, 7, 8]] * 2
    for k in range(1, 9):
        assert torch.equal(order(torch.stack([tokens, tokens.flip(0)]), k), whole[:, :k])


class Counted(TorchDispatchMode):
    """Counts the operations that would be launched on a GPU: all but views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "launches"), [("divprune", 3), ("rival", 4), ("mmtok", 8), ("cdpruner", 16)])
def test_a_pick_costs_the_same_launches_for_any_number_of_images(name, launches):
    def count(images, k):
        view, selector = many_view(0, images, (4, 8), 40), greedy_selector(name)
        view = replace(view, question=QuestionTokens.of(view.question.tokens_BLD))
        judgement = selector.judge(view, Stopwatch())
        with Counted() as counted, patch.dict(field.HELD, cpu=2**30):
            selector.choose(judgement, torch.full((images,), k))
        return counted.count

    for images in (1, 7):
        assert count(images, 30) - count(images, 10) == 20 * launches


# ---------------------------------------------------------------- inside Qwen3-VL


ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(128, 64, 3)], "and now?", history=[("look at it first", "a thing")])
BOXES = {id(ONE): [[(0.0, 0.0, 0.4, 0.5)]], id(TWO): [[(0.3, 0.3, 1.0, 1.0)], []], id(LATER): [[(0.0, 0.0, 1.0, 0.5)]]}
NEW = 6


def told(*conversations) -> dict[str, object]:
    """Inputs of conversations, with the evidence of their images."""
    evidence = [boxes for conversation in conversations for boxes in BOXES[id(conversation)]]
    return {**tiny.inputs(*conversations), "hints": Hints(evidence=evidence)}


def prepare(ours, inputs, **options):
    return ours.prepare(**{name: value for name, value in inputs.items() if name != "mm_token_type_ids"}, **options)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-5 * other.abs().max())


@pytest.fixture(scope="module")
def stock():
    return tiny.stock()


@pytest.mark.parametrize("name", FIELD)
@torch.no_grad()
def test_all_kept_is_the_untouched_model_bit_for_bit(stock, name):
    ours, inputs = wrapped(stock, name), told(ONE, TWO)
    plain = tiny.stock_inputs(tiny.inputs(ONE, TWO))
    assert torch.equal(ours(**inputs, keep=1.0).logits, stock(**plain).logits)
    assert torch.equal(ours.generate(**inputs, keep=1.0, max_new_tokens=4), stock.generate(**plain, max_new_tokens=4))


@pytest.mark.parametrize("name", FIELD)
@torch.no_grad()
def test_a_row_of_a_batch_equals_the_row_alone(stock, name):
    """Different grids, several images, a row that keeps all: the same cells, logits and new tokens as alone."""
    ours, rows, keeps = wrapped(stock, name), (ONE, TWO, LATER), [0.4, 7, 1.0]
    together = ours(**told(*rows), keep=keeps, output_arr_coc_info=True)
    mask = together.arr_coc.attention_mask.bool()
    new = ours.generate(**told(*rows), keep=keeps, max_new_tokens=NEW)[:, -NEW:]
    assert [sum(image.tokens_kept for image in images) for images in together.arr_coc.images] == [8, 7, 8]
    for row, keep in enumerate(keeps):
        alone = ours(**told(rows[row]), keep=keep, output_arr_coc_info=True)
        for image, single in zip(together.arr_coc.images[row], alone.arr_coc.images[0], strict=True):
            assert torch.equal(image.kept, single.kept)
            assert (image.kept.diff() > 0).all()
        assert close(together.logits[row][mask[row]], alone.logits[0])
        assert torch.equal(new[row], ours.generate(**told(rows[row]), keep=keep, max_new_tokens=NEW)[0, -NEW:])
    assert torch.equal(together.logits, ours(**told(*rows), keep=keeps).logits), "deterministic"


@torch.no_grad()
def test_every_method_runs_in_bfloat16():
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # its bfloat16 products need instructions that not every CPU has
    try:
        stock = tiny.stock().to(torch.bfloat16)
        for name in FIELD:
            output = wrapped(stock, name)(**told(ONE), keep=6, output_arr_coc_info=True)
            assert output.arr_coc.images[0][0].strategy == name
            assert output.arr_coc.images[0][0].tokens_kept == 6
            assert output.logits.dtype == torch.bfloat16
            assert output.logits.isfinite().all()
    finally:
        torch.backends.mkldnn.enabled = before


@pytest.mark.parametrize("name", EXACT)
def test_several_images_share_one_budget(stock, name):
    prepared = prepare(wrapped(stock, name), told(TWO), keep=9)
    assert sum(image.tokens_kept for image in prepared.images[0]) == 9
    assert all(image.tokens_kept >= 1 for image in prepared.images[0])
    if name == "oracle":
        assert [image.tokens_kept for image in prepared.images[0]] == [8, 1], "the evidence is in the first"


@pytest.mark.parametrize("name", ["pooling", "visionzip"])
@torch.no_grad()
def test_every_deepstack_level_is_merged_with_the_same_weights(stock, name):
    ours, inputs = wrapped(stock, name), tiny.inputs(ONE)
    merged = prepare(ours, inputs, keep=8).features["image"]
    dense = encoding.encode_dense(stock, inputs["pixel_values"], inputs["image_grid_thw"], last_input=True)
    received, keys = received_attention(stock, dense, inputs["image_grid_thw"])
    view = small_view((4, 5), received_BN=received[0], keys_BNd=keys[0])
    weights = choose(make(name), view, 8).weights[0]
    assert (weights > 0).sum() > 8, "something is merged"
    assert torch.allclose(merged.pooler_output[0], weights @ dense.pooler_output[0], atol=1e-5)
    for level, before in zip(merged.deepstack_features, dense.deepstack_features, strict=True):
        assert torch.allclose(level[0], weights @ before[0], atol=1e-5)


@torch.no_grad()
def test_visionzip_reads_the_attention_that_the_vit_has():
    """Weights shown by eager attention in the last block, against those made from queries and keys."""
    stock, inputs, shown = tiny.stock("eager"), tiny.inputs(TWO), []

    def attend(module, query, key, value, attention_mask=None, **kwargs):
        shown.append((eager_attention_forward(module, query, key, value, None, **kwargs)[1], key))
        return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register("shown_for_test", attend)
    stock.model.visual.config._attn_implementation = "shown_for_test"
    features = encoding.encode_dense(stock, inputs["pixel_values"], inputs["image_grid_thw"], last_input=True)
    received, keys = received_attention(stock, features, inputs["image_grid_thw"])
    for image, (weights_1HPP, key_1HPd) in enumerate(shown[-2:]):
        assert torch.allclose(received[image], weights_1HPP[0].mean((0, 1)).view(-1, 4).mean(-1), atol=1e-6)
        assert torch.allclose(keys[image], key_1HPd[0].mean(0).view(-1, 4, 16).mean(1), atol=1e-5)
        assert received[image].sum() == pytest.approx(0.25)
    assert torch.equal(patch_features(stock, features)[1], features.last_hidden_state[36:].view(8, 4, 32).mean(1)), (
        "nine cells of the first image, then eight"
    )


def hide_after(layers: int, dropped_BL: torch.Tensor) -> None:
    """An eager attention that hides some columns from everyone, from a decoder layer on."""

    def attend(module, query, key, value, attention_mask, **kwargs):
        if getattr(module, "layer_idx", -1) >= layers:
            hidden = torch.zeros(key.shape[0], key.shape[2])
            hidden[:, : dropped_BL.shape[1]] = torch.where(dropped_BL, torch.finfo(torch.float32).min / 2, 0.0)
            attention_mask = hidden[:, None, None] + (0 if attention_mask is None else attention_mask)
        return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)

    AttentionInterface.register("hidden_for_test", attend)
    AttentionMaskInterface.register("hidden_for_test", eager_mask)


@torch.no_grad()
def test_fastv_drops_the_least_attended_after_its_layer():
    """Against the untouched model: its attention at the layer says who goes; hiding those from there on is the same.

    New tokens too: they see the dropped ones in the first layers, and not in the later ones.
    """
    stock, layers = tiny.stock("eager"), 3
    ours, inputs = tiny.wrapped(stock, selector="fastv"), tiny.inputs(ONE, LATER)
    output = ours(**inputs, keep=0.4, output_arr_coc_info=True)
    plain = tiny.stock_inputs(inputs)
    attention = stock(**plain, output_attentions=True).attentions[layers][:, :, -1].mean(1)
    is_image = inputs["mm_token_type_ids"].bool()
    for row, images in enumerate(output.arr_coc.images):
        scores = attention[row][is_image[row]]
        assert torch.equal(images[0].kept, scores.topk(images[0].tokens_kept).indices.sort().values)
    columns = output.arr_coc.compact.columns
    left = torch.zeros_like(is_image)
    for row in range(2):
        left[row, columns[row][columns[row] >= 0]] = True
    hide_after(layers, is_image & ~left)
    ours_new = ours.generate(**inputs, keep=0.4, max_new_tokens=12)[:, -12:]
    stock.model.language_model.config._attn_implementation = "hidden_for_test"
    full = stock(**plain).logits
    real = columns >= 0
    wanted = full.gather(1, columns.clamp(min=0).unsqueeze(-1).expand(-1, -1, full.shape[-1]))
    assert close(output.logits[real], wanted[real])
    hidden_new = stock.generate(**plain, max_new_tokens=12)[:, -12:]
    stock.model.language_model.config._attn_implementation = "eager"
    assert tiny.varies(ours_new)
    assert torch.equal(ours_new, hidden_new)
    assert not torch.equal(ours_new, stock.generate(**plain, max_new_tokens=12)[:, -12:])


class Squares(TorchDispatchMode):
    """Notes the most rows of any tensor `[rows, heads, length, length]` that is made: attention weights and masks."""

    def __init__(self, length):
        super().__init__()
        self.length, self.rows = length, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.ndim == 4 and made.shape[2:] == (self.length, self.length):
            self.rows = max(self.rows, made.shape[0])
        return made


def states_of(begun):
    """All that the first layers made, row and column first."""
    return [begun.hidden_BLD, begun.attended_BL, *(one.transpose(1, 2) for one in (*begun.keys, *begun.values))]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_fastv_begins_in_parts_as_at_once(attention, monkeypatch):
    """Rows of different lengths and image sizes: what the first layers hold, and who is kept."""
    stock, rows = tiny.stock(attention), (ONE, TWO, LATER, ONE)
    ours, inputs = tiny.wrapped(stock, selector="fastv"), tiny.inputs(*rows)
    length, heads = inputs["input_ids"].shape[1], stock.config.text_config.num_attention_heads
    whole = prepare(ours, inputs, keep=0.4)
    for most in (1, 3):
        monkeypatch.setattr(insides_language, "HELD", most * heads * length**2 * 4)
        with Squares(length) as squares:
            parts = prepare(ours, inputs, keep=0.4)
        assert squares.rows == most
        for one, other in zip(parts.images, whole.images, strict=True):
            assert [image.kept.tolist() for image in one] == [image.kept.tolist() for image in other]
        mine, theirs = parts.begun, whole.begun
        assert torch.equal(mine.mask_BL, theirs.mask_BL)
        for one, other in zip(states_of(mine), states_of(theirs), strict=True):
            assert one.shape == other.shape
            assert close(one[mine.mask_BL], other[mine.mask_BL])
    new = ours.generate(**inputs, keep=0.4, max_new_tokens=NEW)
    monkeypatch.undo()
    assert torch.equal(new, ours.generate(**inputs, keep=0.4, max_new_tokens=NEW))


@torch.no_grad()
def test_fastv_goes_on_from_its_cache_and_with_beams():
    stock = tiny.stock()
    ours, inputs = tiny.wrapped(stock, selector="fastv"), tiny.inputs(ONE, TWO)
    wanted = ours.generate(**inputs, keep=0.4, max_new_tokens=5)[:, -5:]
    assert torch.equal(tiny.by_hand(ours, inputs, 0.4, 5), wanted)
    beams = ours.generate(**inputs, keep=0.4, max_new_tokens=4, num_beams=3)
    for row, conversation in enumerate((ONE, TWO)):
        alone = ours.generate(**tiny.inputs(conversation), keep=0.4, max_new_tokens=4, num_beams=3)
        assert torch.equal(beams[row, -4:], alone[0, -4:])
    assert torch.equal(ours.generate(**inputs, keep=0.4, max_new_tokens=5, use_cache=False)[:, -5:], wanted)
    assert stock.model.language_model is ours.model.model.language_model
    assert stock.model.rope_deltas is None


@torch.no_grad()
def test_fastv_in_a_mixture_of_experts_and_with_labels():
    ours = tiny.wrapped(tiny.stock(moe=True), selector="fastv")
    inputs = tiny.inputs(ONE)
    output = ours(**inputs, keep=0.4, labels=inputs["input_ids"])
    assert output.loss.isfinite()
    assert output.logits.shape[1] == inputs["input_ids"].shape[1] - 12


@torch.no_grad()
def test_downsampling_is_the_plain_model_on_a_small_image(stock):
    """The same prompt, positions and logits as from the processor, made to accept so small an image."""
    ours, inputs = tiny.wrapped(stock, selector="downsampling"), tiny.inputs(ONE)
    output = ours(**inputs, keep=6, output_arr_coc_info=True)
    (seen,) = output.arr_coc.images[0]
    assert (seen.tokens_total, seen.tokens_kept) == (20, 6), "not silently off"
    small = tiny.picture().resize((96, 64), Image.Resampling.BICUBIC)
    processor = tiny.processor()
    before = processor.image_processor.size
    processor.image_processor.size = {"shortest_edge": 32 * 32, "longest_edge": 512 * 512}
    try:
        plain = tiny.stock_inputs(tiny.inputs(Conversation([small], ONE.question)))
    finally:
        processor.image_processor.size = before
    assert plain["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert torch.equal(output.arr_coc.compact.input_ids, plain["input_ids"])
    wanted, _ = stock.model.get_rope_index(plain["input_ids"], plain["mm_token_type_ids"], plain["image_grid_thw"])
    assert torch.equal(output.arr_coc.compact.position_ids[1:], wanted), "positions of the small grid"
    image = encoding.unpatchify(inputs["pixel_values"], (4, 5), ours.geometry)
    shrunk = torch.nn.functional.interpolate(image[None], size=(64, 96), mode="bicubic", antialias=True)[0].clamp(0, 1)
    patches = encoding.patchify(shrunk[None], ours.geometry)[0]
    assert (patches - plain["pixel_values"]).abs().max() < 0.03, "the resize is the processor's, but for rounding"
    assert torch.allclose(output.logits, stock(**{**plain, "pixel_values": patches}).logits, atol=1e-5)
    new = ours.generate(**inputs, keep=6, max_new_tokens=4)
    assert torch.equal(new[0, : inputs["input_ids"].shape[1]], inputs["input_ids"][0]), "the caller's own prompt"
    columns = output.arr_coc.compact.columns[0]
    assert torch.equal(inputs["input_ids"][0, columns], plain["input_ids"][0])


@torch.no_grad()
def test_downsampling_goes_under_the_processors_least_size(stock):
    ours = tiny.wrapped(stock, selector="downsampling")
    assert prepare(ours, tiny.inputs(ONE), keep=2).images[0][0].tokens_kept == 2
    prepared = prepare(ours, tiny.inputs(ONE), keep=6, original_image=ONE.images)
    assert prepared.images[0][0].strategy == "downsampling"
    assert {"resize", "vision"} <= set(prepared.stopwatch.milliseconds())


def test_a_picture_and_its_patches_are_the_same():
    geometry = encoding.Geometry.of(tiny.config().vision_config)
    rows = tiny.inputs(ONE)["pixel_values"]
    image = encoding.unpatchify(rows, (4, 5), geometry)
    assert torch.allclose(encoding.patchify(image[None], geometry)[0], rows, atol=1e-6)


def test_what_cannot_be_is_refused_with_a_way_out(stock):
    refused = {
        "sparse": ("divprune", {"encoding": "sparse"}, {}),
        "weighted": ("random", {"encoding": "weighted"}, {}),
        "weighted'": ("downsampling", {"encoding": "weighted"}, {}),
        "position_policy": ("fastv", {"position_policy": "compact"}, {}),
        "evidence=": ("oracle", {}, {}),
        "evidence is for 2 images": ("oracle", {}, {"hints": Hints(evidence=[[], []])}),
        "after 4": (make_selector("fastv", CONFIG, LAYER, after=4), {}, {}),
    }
    for message, (selector, options, more) in refused.items():
        ours = tiny.wrapped(stock, selector=selector)
        ours.arr_coc_config = replace(ours.arr_coc_config, **options)
        with pytest.raises(ValueError, match=message):
            prepare(ours, tiny.inputs(ONE), keep=0.5, **more)


def test_random_numbers_of_images_come_from_the_caller(stock):
    ours = tiny.wrapped(stock, selector="random")
    drawn = [
        prepare(ours, tiny.inputs(ONE), keep=6, hints=Hints(image_numbers=[n])).images[0][0].kept.tolist()
        for n in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    both = prepare(ours, tiny.inputs(Conversation([ONE.images[0]] * 2, "same?")), keep=12).images[0]
    assert both[0].kept.tolist() != both[1].kept.tolist(), "images of one sample are drawn apart"


def test_by_name_with_mini():
    first = ARRCOCQwen.from_pretrained("mini", selector="divprune", device="cpu")
    picture = tiny.picture(192, 160)
    assert first.ask(picture, "What colour is it?", keep=0.2, max_new_tokens=3).tokens_kept == 6
    for name in sorted(set(FIELD) - {"divprune", "oracle", "rival"}):
        ours = ARRCOCQwen(first.model, first.arr_coc_config, first.layer, first.processor, selector=name).eval()
        answer = ours.ask(picture, "What colour is it?", keep=0.2, max_new_tokens=3)
        assert (answer.tokens_kept, answer.tokens_total) == (6, 30), name
        assert answer.selection[0].strategy == name
