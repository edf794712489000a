"""The policy and the three tensions: each has an effect that can be seen."""

import pytest
import torch

from arr_coc.attending import TokenAllocator
from arr_coc.balancing import LEAST_SCORE, AdaptiveTensionBalancer, map_statistics, overlooked, product
from arr_coc.knowing import inside_bits
from arr_coc.records import BARE, LOUD
from arr_coc.texture import texture_pyramid

DIM = 24


@pytest.fixture
def balancer() -> AdaptiveTensionBalancer:
    torch.manual_seed(0)
    return AdaptiveTensionBalancer(DIM)


def maps(seed: int = 0, batch: int = 1) -> torch.Tensor:
    return torch.rand(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def asked(seed: int = 0, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, DIM, generator=torch.Generator().manual_seed(seed))


def test_shapes_and_ranges(balancer):
    balance = balancer(maps(batch=3), asked(batch=3))
    assert balance.relevance_BHW.shape == (3, 8, 8)
    assert (balance.weights_BS > 0).all()
    for values in (balance.relevance_BHW, balance.tensions_BT):
        assert values.min() >= 0
        assert values.max() <= 1
    assert balance.weights_BS.shape == balance.tensions_BT.shape == (3, 3)


def test_the_policy_reads_the_question_and_the_maps(balancer):
    base = balancer(maps(), asked()).weights_BS
    assert not torch.equal(base, balancer(maps(), asked(1)).weights_BS)
    assert not torch.equal(base, balancer(maps() * 0.1, asked()).weights_BS)


def test_every_parameter_of_the_policy_learns(balancer):
    balance = balancer(maps(), asked())
    (balance.relevance_BHW.square().sum() + balance.tensions_BT.square().sum()).backward()
    for name, parameter in balancer.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


def test_relevance_is_a_product_of_powers_of_odds():
    scores = maps() * 0.8 + 0.1
    odds = (scores / (1 - scores)).log() * (1 - 2 * LEAST_SCORE)  # the floor pulls them in, a little
    assert torch.allclose(product(scores, torch.tensor([[1.0, 0, 0]])), scores[:, 0], atol=2e-3)
    expected = (2 * odds[:, 1] + 0.5 * odds[:, 2]).sigmoid()
    assert torch.allclose(product(scores, torch.tensor([[0, 2.0, 0.5]])), expected, atol=1e-2)
    assert (product(scores, torch.zeros(1, 3)) == 0.5).all()


def test_a_map_of_one_half_changes_nothing_and_an_empty_cell_needs_surer_others():
    scores = torch.full((1, 3, 1, 4), 0.9)
    scores[0, 1] = 0.5
    scores[0, 0, 0, 0], scores[0, 2, 0, 1] = 0.0, 0.0
    scores[0, 0, 0, 2] = 0.5
    both, _, alone, agreed = (product(scores, torch.ones(1, 3))[0, 0, place] for place in (0, 1, 2, 3))
    assert both < 0.02
    assert product(scores, torch.ones(1, 3))[0, 0, 1] == pytest.approx(float(both))
    assert alone == pytest.approx(0.9, abs=2e-3)
    assert agreed > 0.98, "ways that agree are surer together than each alone"


def test_a_veto_has_a_way_back():
    scores = torch.zeros(1, 3, 1, 1, requires_grad=True)
    product(scores, torch.ones(1, 3)).log().sum().backward()
    assert (scores.grad > 1).all()


def test_maps_that_agree_are_told_from_those_that_do_not():
    scores = maps()
    scores[:, 1] = scores[:, 0] * 0.5
    pairs = map_statistics(scores)[0, -3:]
    assert pairs[0] == pytest.approx(1.0, abs=1e-4)
    assert pairs[1:].abs().max() < 0.5


def test_the_rest_of_a_budget_is_claimed_by_what_is_quiet_and_holds_something():
    image = torch.full((1, 3, 288, 288), 0.8)
    noise = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0)) - 0.5
    image[..., 0:32, 0:32] += 0.4 * noise  # what is sought: quiet
    image[..., 128:160, 0:32] += 0.4 * noise  # another like it
    image[..., 128:160, 128:160] = torch.tensor([0.9, 0.1, 0.1]).view(3, 1, 1)  # loud by its colour
    image[..., 0:32, 256:288] += 1.6 * noise  # loud by its detail
    pyramid = texture_pyramid(image.clamp(0, 1), 9)
    relevance = torch.full((1, 9, 9), 1e-4)
    relevance[0, 0, 0] = 0.9
    told, bare = inside_bits(pyramid, pyramid.names).mean(1), torch.zeros(1, 9, 9, dtype=torch.bool)
    bare[0, 8, :2] = bare[0, 5, 5] = True
    claims = overlooked(pyramid, relevance, told, bare)[0]
    assert claims[4, 0] > 0.1
    assert claims[8, 8] == 0, "blank"
    assert (claims[3:5, 3:5] == LOUD).all(), "loud, and what lies beside it"
    assert claims[0, 8] == LOUD
    assert (claims[bare[0]] == BARE).all(), "bare paper, loud or not"
    relevance[0, 0, 0], relevance[0, 4, 4] = 0, 0.9
    assert overlooked(pyramid, relevance, told, bare)[0, 4, 4] >= 0, "nothing is louder than itself"


def test_weak_saliency_lowers_the_perspectival_exponent(balancer):
    strong, weak = maps(), maps()
    strong[:, 1], weak[:, 1] = 0.2, 0.2
    strong[:, 1, 3, 3], weak[:, 1, 3, 3] = 0.9, 0.22
    assert balancer(weak, asked()).weights_BS[0, 1] < 0.5 * balancer(strong, asked()).weights_BS[0, 1]


def test_statistics_of_a_single_cell_are_finite():
    assert map_statistics(torch.rand(2, 3, 1, 1)).isfinite().all()


def two_blobs() -> torch.Tensor:
    """A strong wide blob and a weaker one far away."""
    relevance = torch.full((1, 16, 16), 0.05)
    relevance[0, 2:6, 2:6] = torch.linspace(0.8, 0.95, 16).view(4, 4)
    relevance[0, 11:14, 11:14] = torch.linspace(0.5, 0.6, 9).view(3, 3)
    return relevance


def kept(tensions: tuple[float, float, float], k: int) -> torch.Tensor:
    return TokenAllocator()(two_blobs(), torch.tensor([tensions]), torch.tensor([k])).keep_BHW[0]


def test_particularize_sets_the_budget():
    few, many = (TokenAllocator(1, 256).automatic(two_blobs(), torch.tensor([t])).item() for t in (0.0, 1.0))
    assert few < many


def test_explore_spends_its_share_on_even_coverage():
    focused, exploring = kept((0.5, 0.0, 0.0), 16), kept((0.5, 0.5, 0.0), 16)
    quarters = lambda mask: mask.view(2, 8, 2, 8).sum((1, 3))  # noqa: E731
    assert (quarters(focused) == 0).sum() == 3
    assert (quarters(exploring) >= 2).all()
    assert exploring.sum() == focused.sum() == 16


def test_diversify_suppresses_the_neighbours_of_what_is_kept():
    assert kept((0.5, 0.0, 0.0), 8)[11:14, 11:14].sum() == 0
    assert kept((0.5, 0.0, 1.0), 8)[11:14, 11:14].sum() > 0


def test_a_plateau_of_equals_is_thinned_out():
    plateau = torch.full((1, 16, 16), 0.1)
    plateau[0, 4:12, 4:12] = 0.9
    keep = lambda diversify: TokenAllocator()(  # noqa: E731
        plateau, torch.tensor([[0.5, 0.0, diversify]]), torch.tensor([10])
    ).keep_BHW[0, 4:12, 4:12].float()  # fmt: skip
    neighbours = lambda mask: float((mask[:, 1:] * mask[:, :-1]).sum() + (mask[1:] * mask[:-1]).sum())  # noqa: E731
    assert keep(1.0).sum() == keep(0.0).sum() == 10
    assert neighbours(keep(1.0)) < neighbours(keep(0.0)) / 2
