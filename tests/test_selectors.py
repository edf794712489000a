"""Selectors behind one interface: a common suite, then what each is for."""

from dataclasses import fields, replace

import pytest
import torch

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import QuestionTokens
from arr_coc.selectors import SELECTORS, View, make_selector
from arr_coc.selectors.training_free import word_match
from arr_coc.timing import Stopwatch
from studies.rival.selector import RivalScorer, save_rival

DIM = 32
GRID = (6, 8)


def view(batch: int = 3, seed: int = 0) -> View:
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator)  # noqa: E731
    question = QuestionTokens.of(rand(batch, 5, DIM) - 0.5, torch.arange(5).expand(batch, 5) < 4)
    return View(
        GRID,
        question,
        rand(batch, 3, 192, 256),
        rand(batch, 48, DIM) - 0.5,
        number_B=torch.arange(batch),
        evidence_BHW=rand(batch, *GRID) > 0.8,
        patches_BNX=rand(batch, 48, 24) - 0.5,
        received_BN=rand(batch, 48),
        keys_BNd=rand(batch, 48, 8) - 0.5,
        attended_BN=rand(batch, 48),
    )


def row_of(whole: View, row: int) -> View:
    one = slice(row, row + 1)
    tensors = {field.name: getattr(whole, field.name) for field in fields(View)}
    cut = {name: value[one] for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    return replace(whole, question=QuestionTokens(whole.question.tokens_BLD[one], whole.question.mask_BL[one]), **cut)


# Downsampling keeps about k cells, not exactly k (tests/test_field_selectors.py).
@pytest.fixture(params=sorted(set(SELECTORS) - {"downsampling"}))
def selector(request, tmp_path):
    torch.manual_seed(0)
    config = ARRCOCConfig(hidden_dim=DIM)
    settings = {}
    if request.param == "rival":  # has no weights of its own until it is trained
        settings["path"] = str(save_rival(tmp_path, RivalScorer(DIM, 8), {}))
    return make_selector(request.param, config, ARRCOCLayer.from_config(config), **settings).eval()


@torch.no_grad()
def test_common_suite(selector):
    whole, budgets = view(), torch.tensor([1, 17, 48])
    judgement = selector.judge(whole, Stopwatch())
    kept = selector.choose(judgement, budgets).keep_BHW
    assert kept.flatten(1).sum(-1).tolist() == budgets.tolist(), "exact k, and all of k = N"
    assert torch.equal(kept, selector.choose(selector.judge(whole, Stopwatch()), budgets).keep_BHW), "deterministic"
    automatic = selector.automatic_budget(judgement)
    assert ((automatic >= 3) & (automatic <= 19)).all()
    for row in range(3):
        alone = selector.choose(selector.judge(row_of(whole, row), Stopwatch()), budgets[row : row + 1]).keep_BHW
        assert torch.equal(alone[0], kept[row]), "batch equals single"
    assert list(judgement.maps)
    assert len(judgement.maps) == judgement.balance.weights_BS.shape[1]


def test_names():
    config = ARRCOCConfig(hidden_dim=DIM)
    layer = ARRCOCLayer.from_config(config)
    assert make_selector("auto", config, layer).name == "look_twice"
    assert make_selector("auto", ARRCOCConfig(hidden_dim=DIM, trained=True), layer).name == "arr_coc"
    with pytest.raises(ValueError, match="training_free"):
        make_selector("magic", config, layer)


@pytest.mark.parametrize("word", [0, 2, 3])
def test_training_free_keeps_the_region_that_matches_a_word(word):
    """A 2 x 3 region of visual tokens is made to match one word of the question; the other words match nothing."""
    whole = view(batch=1, seed=word)
    tokens, region = whole.visual_BND.clone(), [19, 20, 21, 27, 28, 29]
    tokens[0, region] = 3 * whole.question.tokens_BLD[0, word] + 0.2 * tokens[0, region]
    config = ARRCOCConfig(hidden_dim=DIM)
    selector = make_selector("training_free", config, ARRCOCLayer.from_config(config))
    matching = View(GRID, whole.question, whole.image_B3hw, tokens)
    kept = selector.choose(selector.judge(matching, Stopwatch()), torch.tensor([12])).keep_BHW.flatten()
    assert kept[region].all()
    assert kept.sum() == 12


def test_training_free_ignores_the_size_of_tokens_and_masked_words():
    whole = view(batch=1)
    base = word_match(whole.visual_BND, whole.question)
    assert torch.allclose(base, word_match(whole.visual_BND * 7, whole.question), atol=1e-4)
    changed = whole.question.tokens_BLD.clone()
    changed[:, 4] = 99.0
    assert torch.equal(base, word_match(whole.visual_BND, QuestionTokens(changed, whole.question.mask_BL)))


def test_a_word_that_matches_everywhere_says_nothing():
    """One word fits all tokens strongly, another fits a few a little better than the rest: the few decide."""
    everywhere, here = torch.zeros(DIM), torch.zeros(DIM)
    everywhere[0], here[1] = 1.0, 1.0
    tokens = 5 * everywhere.expand(1, 48, DIM) + 0.3 * view(1).visual_BND
    tokens[0, [7, 8]] += 2 * here
    match = word_match(tokens, QuestionTokens.of(torch.stack([everywhere, here]).unsqueeze(0)))
    assert set(match[0].topk(2).indices.tolist()) == {7, 8}


def test_a_shared_budget_goes_to_the_image_that_matches():
    whole = view(batch=2)
    tokens, question = whole.visual_BND.clone(), QuestionTokens(
        whole.question.tokens_BLD[:1].expand(2, -1, -1), whole.question.mask_BL[:1].expand(2, -1)
    )  # fmt: skip
    tokens[0, :10] = 3 * question.tokens_BLD[0, 1]
    config = ARRCOCConfig(hidden_dim=DIM)
    selector = make_selector("training_free", config, ARRCOCLayer.from_config(config))
    mass = selector.judge(View(GRID, question, None, tokens), Stopwatch()).mass_B
    assert mass[0] > 2 * mass[1]


def test_training_free_without_a_question_covers_evenly():
    whole = view(batch=1)
    silent = View(GRID, QuestionTokens(whole.question.tokens_BLD, whole.question.mask_BL & False), *(
        whole.image_B3hw, whole.visual_BND))  # fmt: skip
    config = ARRCOCConfig(hidden_dim=DIM)
    selector = make_selector("training_free", config, ARRCOCLayer.from_config(config))
    allocation = selector.choose(selector.judge(silent, Stopwatch()), torch.tensor([12]))
    assert allocation.strategy(0)[0] == "even_grid"
