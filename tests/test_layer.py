"""The four parts in order: shapes, explanation, gradients, and what happens when scores fail."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import varied

from arr_coc import ARRCOCLayer
from arr_coc.attending import CAUTION, budget_bounds
from arr_coc.balancing import cautious
from arr_coc.config import SCORERS, TENSIONS
from arr_coc.records import Balance

DIM = 24


@pytest.fixture(scope="module")
def layer() -> ARRCOCLayer:
    torch.manual_seed(0)
    return ARRCOCLayer(DIM).eval()


def test_between_64_and_400_of_1024(layer):
    images = torch.stack([varied(seed, (512, 512)) for seed in range(4)])
    output = layer(torch.randn(4, 1024, DIM), torch.randn(4, 7, DIM), images)
    counts = output.mask.sum(-1)
    assert ((counts >= 64) & (counts <= 400)).all()
    assert output.tokens.shape == (4, counts.max(), DIM)
    assert ((output.positions >= 0) & (output.positions < 32)).all()
    assert output.budgets.isfinite().all()
    assert torch.equal(output.kept.flatten(1).sum(-1), counts)


def test_tokens_are_those_at_the_positions(layer):
    vision = torch.randn(1, 6 * 10, DIM)
    output = layer(vision, torch.randn(1, DIM), varied(0, (320, 192)), grid=(6, 10), keep=7)
    assert torch.equal(output.tokens[0], vision[0, output.indices[0]])
    assert torch.equal(output.positions[0, :, 0] * 10 + output.positions[0, :, 1], output.indices[0])


def test_the_explanation_is_complete(layer):
    output = layer(None, torch.randn(1, 3, DIM), varied(1, (320, 192)), keep=0.25)
    assert output.tokens is None
    assert output.relevance.shape == (1, 6, 10)
    assert set(output.maps) == set(SCORERS)
    assert output.weights.shape == (1, len(SCORERS))
    assert output.tensions.shape == (1, len(TENSIONS))
    assert set(output.timings_ms) == {"texture", "sight", "knowing", "balancing", "attending"}
    name, reason = output.strategies[0]
    assert name == "relevance"
    assert reason


def test_different_budgets_in_one_batch_equal_single_runs(layer):
    images, questions = torch.stack([varied(seed) for seed in range(4)]), torch.randn(4, 3, DIM)
    keeps = [5, 0.5, "auto", 1.0]
    together = layer(None, questions, images, grid=(12, 12), keep=keeps)
    for row, keep in enumerate(keeps):
        alone = layer(None, questions[row : row + 1], images[row : row + 1], grid=(12, 12), keep=keep)
        assert torch.equal(together.indices[row][together.mask[row]], alone.indices[0])


@given(rows=st.integers(1, 7), columns=st.integers(1, 7), keep=st.sampled_from([2, 3, 999, 0.1, 0.5, 1.0]))
@settings(max_examples=40, deadline=None)
def test_exact_k_on_any_grid(layer, rows, columns, keep):
    cells = rows * columns
    output = layer(
        torch.randn(1, cells, DIM), torch.randn(1, 2, DIM), torch.rand(1, 3, 40, 50), (rows, columns), keep=keep
    )
    assert output.mask.sum() == (max(1, round(keep * cells)) if isinstance(keep, float) else min(cells, keep))
    assert (output.indices[0].diff() > 0).all()


@given(rows=st.integers(1, 40), columns=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_an_automatic_budget_is_within_its_bounds(layer, rows, columns):
    output = layer(None, torch.randn(1, 2, DIM), torch.rand(1, 3, 40, 50), (rows, columns), keep="auto")
    low, high = budget_bounds(rows * columns, 64, 400)
    assert low <= output.mask.sum() <= high


def test_empty_and_padding_only_questions(layer):
    image = varied(2)
    for embeds, mask in ((torch.zeros(1, 0, DIM), None), (torch.randn(1, 3, DIM), torch.zeros(1, 3, dtype=torch.bool))):
        output = layer(None, embeds, image, grid=(12, 12), query_mask=mask, keep=9)
        assert output.mask.sum() == 9
        assert (output.maps["participatory"] == 0.5).all()


def test_scores_that_are_not_finite_keep_all_with_the_reason(caplog):
    broken = ARRCOCLayer(DIM)
    with torch.no_grad():
        broken.knowing.perspectival.bias.fill_(float("nan"))
    with caplog.at_level(logging.WARNING):
        output = broken(torch.randn(1, 144, DIM), torch.randn(1, 3, DIM), varied(0), keep=10)
    assert output.mask.sum() == 144
    assert output.strategies[0][0] == "keep_all"
    assert "not finite" in output.strategies[0][1]
    assert "not finite" in caplog.text


def test_the_straight_through_gate_changes_no_value_and_reaches_every_part():
    torch.manual_seed(0)
    gated, plain = ARRCOCLayer(DIM, straight_through=True), ARRCOCLayer(DIM)
    plain.load_state_dict(gated.state_dict())
    inputs = (torch.randn(2, 144, DIM), torch.randn(2, 4, DIM), torch.stack([varied(0), varied(1)]))
    tokens = gated(*inputs, keep=20).tokens
    assert torch.allclose(tokens, plain(*inputs, keep=20).tokens)
    (tokens * torch.randn_like(tokens)).sum().backward()
    for part in (*(getattr(gated.knowing, name) for name in SCORERS), gated.pool, gated.balancing):
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_without_the_gate_the_answer_does_not_reach_the_scores():
    plain = ARRCOCLayer(DIM)
    vision = torch.randn(1, 144, DIM, requires_grad=True)
    plain(vision, torch.randn(1, 4, DIM), varied(0), keep=20).tokens.sum().backward()
    assert all(parameter.grad is None for parameter in plain.knowing.parameters())


def test_wrong_shapes_are_refused(layer):
    with pytest.raises(ValueError, match=r"grid=\(H, W\)"):
        layer(torch.randn(1, 15, DIM), torch.randn(1, DIM), varied(0), grid=(4, 4))
    with pytest.raises(ValueError, match="keep"):
        layer(None, torch.randn(1, DIM), varied(0), keep=0)


def test_the_grid_follows_the_image_where_the_tokens_allow():
    layer, query = ARRCOCLayer(DIM), torch.randn(1, DIM)
    wide = torch.rand(1, 3, 320, 1280)
    assert layer(torch.randn(1, 400, DIM), query, wide).kept.shape[1:] == (10, 40)
    assert layer(torch.randn(1, 49, DIM), query, wide).kept.shape[1:] == (7, 7)


def test_scores_stay_in_fp32_under_autocast_and_in_a_cast_model():
    torch.manual_seed(0)
    layer, query, image = ARRCOCLayer(DIM), torch.randn(1, 4, DIM), varied(0)
    plain = layer(None, query, image, keep=9)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(None, query, image, keep=9).relevance, plain.relevance)
    cast = layer.to(torch.bfloat16)(None, query.to(torch.bfloat16), image, keep=9)
    assert cast.relevance.dtype == torch.float32
    assert torch.allclose(cast.maps["information"], plain.maps["information"], atol=1e-6)


def test_the_layer_is_small():
    assert sum(parameter.numel() for parameter in ARRCOCLayer(256).parameters()) < 500_000
    assert sum(parameter.numel() for parameter in ARRCOCLayer(2048).parameters()) < 1_000_000


@pytest.mark.parametrize(
    ("spread", "peak", "share"),
    [
        (0.30, 1.0, CAUTION),
        (0.66, 0.5, CAUTION),
        (0.66, 1.0, 0.1),
        (0.75, 0.5, 0.1),
        (torch.inf, 0.5, 0.1),
    ],
)
def test_where_an_image_may_lack_structure_a_map_that_is_sure_decides(spread, peak, share):
    relevance = torch.zeros(1, 4, 4)
    relevance[0, 1, 2] = peak
    balance = Balance(relevance, torch.ones(1, 3), torch.tensor([[0.5, 0.1, 0.2]]))
    changed = cautious(balance, torch.tensor([spread])).tensions_BT
    assert changed.tolist() == [pytest.approx([0.5, share, 0.2])]
    believed = cautious(balance, torch.tensor([spread]), even=0.0).tensions_BT[0, 1]  # where it has learned of noise
    assert believed == pytest.approx(0.1 if peak == 1.0 else share)


def test_only_a_layer_that_has_learned_of_noise_believes_its_map_on_even_detail(layer, monkeypatch):
    """A map that is sure of one cell of an image whose detail lies evenly, as on bricks or in noise."""
    noise = torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    sure = torch.zeros(1, 8, 8)
    sure[0, 3, 4] = 1.0
    given = Balance(sure, torch.ones(1, 3), torch.tensor([[0.5, 0.1, 0.2]]))
    monkeypatch.setattr(layer.balancing, "forward", lambda *maps_and_question: given)
    found = {}
    for voids in (False, True):
        monkeypatch.setattr(layer, "voids", voids)
        found[voids] = layer(None, torch.randn(1, 4, DIM), noise, keep=0.25).tensions[0, 1].item()
    assert found == {False: pytest.approx(CAUTION), True: pytest.approx(0.1)}


def test_an_image_without_structure_is_covered_whatever_the_maps_say(layer):
    noise = torch.rand(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    output = layer(None, torch.randn(1, 4, DIM), noise, keep=0.25)
    assert output.tensions[0, 1] >= 0.5
    assert output.kept[0].view(4, 4, 4, 4).sum((1, 3)).min() >= 1
    scene = torch.full((1, 3, 512, 512), 0.8)
    scene[..., 100:150, 200:260] = noise[..., 100:150, 200:260]
    flat = torch.full((1, 3, 512, 512), 0.3)
    for image in (scene, flat):
        assert layer(None, torch.randn(1, 4, DIM), image, keep=0.25).tensions[0, 1] < 0.5
