"""The three scorers, by one suite, then each for what it is."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from arr_coc.config import SCORERS
from arr_coc.knowing import (
    APART,
    CONTRASTS,
    LOOKED_AT,
    LOWER,
    READ,
    ROUNDS,
    SHARED,
    Deliberation,
    Knowing,
    QuestionPooler,
    at_most,
    beside_blank,
    listening_dtype,
    stands_out,
    with_gaze,
)
from arr_coc.records import QuestionTokens, TexturePyramid
from arr_coc.texture import texture_pyramid as textures

DIM = 24
SEEN, MAPS = 7, 4  # channels of sight, attention maps


def texture_pyramid(image: torch.Tensor, grid: int | tuple[int, int]) -> TexturePyramid:
    """With something seen in a small copy."""
    pyramid = textures(image, grid)
    seen = torch.randn(pyramid.cell_BCHW.shape[0], SEEN, *pyramid.grid, generator=torch.Generator().manual_seed(3))
    return replace(pyramid, seen_BGHW=seen)


def question(seed: int = 0, batch: int = 1, length: int = 5) -> QuestionTokens:
    return QuestionTokens.of(torch.randn(batch, length, DIM, generator=torch.Generator().manual_seed(seed)))


@pytest.fixture
def knowing() -> Knowing:
    torch.manual_seed(0)
    return Knowing(DIM, 13, SEEN, MAPS)


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_gives_a_map_in_range(knowing, name):
    pyramid = texture_pyramid(torch.rand(2, 3, 96, 160), (3, 5))
    scores = getattr(knowing, name)(pyramid, question(batch=2))
    assert scores.shape == (2, 3, 5)
    assert scores.isfinite().all()
    assert scores.min() >= 0
    assert scores.max() <= 1


@pytest.mark.parametrize("name", SCORERS)
def test_every_scorer_learns(knowing, name):
    scorer = getattr(knowing, name)
    asked = replace(question(), looked_BMHW=torch.rand(1, MAPS, 4, 4))
    scorer(texture_pyramid(torch.rand(1, 3, 128, 128), 4), asked).square().sum().backward()
    for key, parameter in scorer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("contrast", [4, 8, 64])
@pytest.mark.parametrize("detail", ["noise", "dots", "stripes", "blocks"])
def test_detail_informs_more_than_flatness(knowing, contrast, detail):
    y, x = torch.meshgrid(torch.arange(128), torch.arange(64), indexing="ij")
    patterns = {
        "noise": torch.rand(128, 64, generator=torch.Generator().manual_seed(0)) - 0.5,
        "dots": ((y + x) % 2) - 0.5,
        "stripes": ((x // 3) % 2) - 0.5,
        "blocks": ((y // 8 + x // 8) % 2) - 0.5,
    }
    image = torch.full((3, 128, 128), 0.5)
    image[:, :, 64:] += patterns[detail] * contrast / 255
    scores = knowing.information(texture_pyramid((image * 255).round().to(torch.uint8), 4))[0]
    assert scores[:, 3].min() > scores[:, 0].max() + 1e-3


def changed(level: torch.Tensor) -> torch.Tensor:
    return (level + torch.rand(level.shape)).clamp(0, 1)


# What each scorer is given: none has what another one has, but that both blind ones know the cells' means.
GIVEN = {
    "fine_BChw": {"information"},
    "middle_BChw": {"perspectival"},
    "cell_BCHW": {"information", "perspectival"},
    "seen_BGHW": {"participatory"},
    "looked_BMHW": {"participatory"},
    "tokens_BLD": {"participatory"},
}


@pytest.mark.parametrize("what", GIVEN)
def test_no_scorer_is_given_what_another_one_has(knowing, what):
    pyramid = texture_pyramid(torch.rand(1, 3, 128, 128), 4)
    asked = replace(question(1), looked_BMHW=torch.rand(1, MAPS, 4, 4))
    before = knowing(pyramid, asked)[0]
    if hasattr(pyramid, what):
        pyramid = replace(pyramid, **{what: changed(getattr(pyramid, what))})
    else:
        asked = replace(asked, **{what: changed(getattr(asked, what))})
    after = knowing(pyramid, asked)[0]
    assert {name for index, name in enumerate(SCORERS) if not torch.equal(before[index], after[index])} == GIVEN[what]


def test_the_learned_saliency_is_for_the_perspectival_scorer():
    torch.manual_seed(0)
    pyramid = textures(torch.rand(1, 3, 128, 128), 4, 40)
    scorer, place = Knowing(DIM, 40, SEEN).perspectival, pyramid.names.index("saliency")
    louder = pyramid.cell_BCHW.clone()
    louder[0, place, 2, 2] = 1.0
    before, after = scorer(pyramid)[0], scorer(replace(pyramid, cell_BCHW=louder))[0]
    assert after[2, 2] > before[2, 2] + 0.1


def test_a_look_that_was_not_taken_is_no_look(knowing):
    pyramid = texture_pyramid(torch.rand(2, 3, 128, 128), 4)
    looked = torch.rand(2, MAPS, 4, 4) * torch.tensor([1.0, 0.0]).view(-1, 1, 1, 1)
    some, none = replace(question(batch=2), looked_BMHW=looked), question(batch=2)
    with_look, without = knowing.participatory(pyramid, some), knowing.participatory(pyramid, none)
    assert not torch.allclose(with_look[0], without[0])
    assert torch.allclose(with_look[1], without[1], atol=1e-6)


def test_untrained_a_cell_that_was_looked_at_is_wanted_more(knowing):
    pyramid, looked = texture_pyramid(torch.rand(1, 3, 128, 128), 4), torch.full((1, MAPS, 4, 4), 0.01)
    looked[..., 1, 2] = 0.4
    asked = replace(question(), looked_BMHW=looked)
    gained = knowing.participatory(pyramid, asked) - knowing.participatory(pyramid, question())
    assert gained[0].flatten().argmax() == 6


def test_a_model_with_other_heads_is_refused(knowing):
    asked = replace(question(), looked_BMHW=torch.rand(1, MAPS + 1, 4, 4))
    with pytest.raises(ValueError, match="5 attention maps, the adapter reads 4"):
        knowing(texture_pyramid(torch.rand(1, 3, 128, 128), 4), asked)


def test_without_a_question_the_participatory_map_speaks_for_nothing(knowing):
    pyramid = texture_pyramid(torch.rand(2, 3, 128, 128), 4)
    mask = torch.tensor([[True, True], [False, False]])
    asked = QuestionTokens.of(torch.randn(2, 2, DIM), mask)
    scores = knowing.participatory(pyramid, asked)
    assert scores[0].std() > 0
    assert (scores[1] == 0.5).all()
    assert (knowing.participatory(pyramid, QuestionTokens.of(torch.zeros(2, 0, DIM))) == 0.5).all()


def test_padding_of_the_question_changes_nothing(knowing):
    pyramid = texture_pyramid(torch.rand(1, 3, 128, 128), 4)
    tokens = torch.randn(1, 3, DIM)
    padded = QuestionTokens.of(torch.cat([tokens, torch.randn(1, 4, DIM)], 1), torch.arange(7).view(1, 7) < 3)
    assert torch.allclose(knowing(pyramid, QuestionTokens.of(tokens)), knowing(pyramid, padded), atol=1e-6)


def test_a_pooled_question_is_one_token(knowing):
    pooled = torch.randn(2, DIM)
    pyramid = texture_pyramid(torch.rand(2, 3, 64, 64), 2)
    assert torch.equal(
        knowing(pyramid, QuestionTokens.of(pooled)), knowing(pyramid, QuestionTokens.of(pooled.unsqueeze(1)))
    )


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_half_precision_is_for_a_gpu_on_which_nothing_learns(own):
    assert listening_dtype(on_gpu=True, learns=False, own=own) == torch.float16
    for on_gpu, learns in ((True, True), (False, True), (False, False)):
        assert listening_dtype(on_gpu, learns, own) == own


@pytest.fixture
def heard(monkeypatch) -> list[torch.dtype]:
    """Dtypes of all that goes into attention, where every tensor says that it is on a GPU."""
    dtypes: list[torch.dtype] = []
    attend = F.scaled_dot_product_attention

    def listen(*inputs, attn_mask=None):
        dtypes.extend(x.dtype for x in (*inputs, attn_mask) if x is not None)
        mask = None if attn_mask is None else attn_mask.float()
        return attend(*(x.float() for x in inputs), attn_mask=mask).to(inputs[0].dtype)

    monkeypatch.setattr(F, "scaled_dot_product_attention", listen)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return dtypes


EVERY_INPUT = ROUNDS * (4 + 3)  # of the question with its mask, and of the other cells


def test_a_training_step_listens_in_full_precision(knowing, heard):
    knowing(texture_pyramid(torch.rand(1, 3, 128, 128), 4), question()).square().mean().backward()
    assert heard == [torch.float32] * EVERY_INPUT


def test_without_learning_it_listens_in_half_precision_and_hears_nearly_the_same(knowing, heard):
    asked = texture_pyramid(torch.rand(1, 3, 128, 128), 4), question()
    exact = knowing(*asked).detach()
    heard.clear()
    with torch.no_grad():
        scores = knowing(*asked)
    assert heard == [torch.float16] * EVERY_INPUT
    assert scores.dtype == torch.float32
    assert torch.allclose(scores, exact, atol=2e-3)
    heard.clear()
    knowing.requires_grad_(False)(*asked)  # frozen: nothing learns, though gradients are on
    assert heard == [torch.float16] * EVERY_INPUT


def test_untrained_what_stands_out_stands_out(knowing):
    image = torch.full((3, 256, 256), 0.4)
    image[:, 96:160, 96:160] = torch.tensor([0.9, 0.1, 0.1]).view(3, 1, 1)
    scores = knowing.perspectival(texture_pyramid(image, 8))[0]
    assert scores[3:5, 3:5].mean() > scores[0].mean() + 0.05


def seen_as(letters: float, gaze: float, contrast: float) -> TexturePyramid:
    """Four rows of four cells, alike all over, and nothing but paper inside them."""
    values = dict.fromkeys(CONTRASTS, contrast) | dict(zip(LOOKED_AT, (gaze, letters), strict=True))
    names = (*values, "within_cell_variance")
    levels = [torch.zeros(1, len(names), side, side) for side in (16, 8, 4)]
    for level in levels:
        level[:, :-1] = torch.tensor(list(values.values())).view(1, -1, 1, 1)
    return TexturePyramid(*levels, names, torch.ones(1))


def test_gaze_and_what_is_read_stand_out_where_there_is_contrast_and_the_first_rows_more():
    rows = 1 - LOWER * torch.tensor([0.125, 0.375, 0.625, 0.875]).view(1, 4, 1)
    expected = 0.5 * (0.1 + (APART + READ * 0.8) * rows).expand(1, 4, 4)
    torch.testing.assert_close(stands_out(seen_as(letters=0.8, gaze=0.1, contrast=0.5)), expected)
    assert (stands_out(seen_as(letters=1.0, gaze=1.0, contrast=0.25)) == 0.25).all()  # at most the contrast
    printed = seen_as(letters=0.8, gaze=0.1, contrast=0.5)
    printed.fine_BChw[:, -1] = 0.2  # no paper anywhere: grass, gravel
    torch.testing.assert_close(stands_out(printed), torch.full((1, 4, 4), 0.05))


def test_blank_ground_is_counted_in_a_cell_and_around_it():
    image = torch.full((3, 160, 256), 0.9)
    image[:, :, :128] = torch.rand(3, 160, 128, generator=torch.Generator().manual_seed(0))
    image += 0.01 * torch.rand(160, 256, generator=torch.Generator().manual_seed(1))  # grain of a photograph of paper
    for channels in (13, 40):
        found = beside_blank(textures(image, (5, 8), with_gaze(channels)))
        torch.testing.assert_close(found, torch.tensor([0, 0, 0, 1 / 3, 2 / 3, 1, 1, 1]).expand(1, 5, 8))


@pytest.mark.parametrize("pooling", ["mean", "last", "learned", "lm"])
def test_poolings_ignore_padding(pooling):
    torch.manual_seed(0)
    pooler = QuestionPooler(DIM, pooling)
    tokens = torch.randn(1, 3, DIM)
    padded = QuestionTokens.of(torch.cat([tokens, torch.randn(1, 2, DIM)], 1), torch.arange(5).view(1, 5) < 3)
    pooled = pooler(QuestionTokens.of(tokens))
    assert torch.allclose(pooled, pooler(padded), atol=1e-6)
    assert pooled.abs().sum() > 0
    nothing = QuestionTokens.of(torch.randn(1, 2, DIM), torch.zeros(1, 2, dtype=torch.bool))
    assert (pooler(nothing) == 0).all()


def test_poolings_by_name():
    tokens = torch.randn(1, 3, DIM)
    assert torch.allclose(QuestionPooler(DIM, "mean")(QuestionTokens.of(tokens)), tokens.mean(1))
    assert torch.equal(QuestionPooler(DIM, "last")(QuestionTokens.of(tokens)), tokens[:, -1])
    with pytest.raises(ValueError, match="pooling"):
        QuestionPooler(DIM, "sum")
    with pytest.raises(ValueError, match="query_embeds"):
        QuestionTokens.of(torch.randn(3))


@pytest.mark.parametrize("grid", [(64, 64), (1, 5000), (5000, 1), (100, 30), (33, 32), (2, 2000)])
def test_of_many_cells_areas_are_heard_and_no_more_than_so_many(grid):
    cells = torch.randn(2, grid[0] * grid[1], 4)
    heard = at_most(cells, grid, 1024)
    assert 512 <= heard.shape[1] <= 1024
    assert torch.allclose(at_most(torch.ones_like(cells), grid, 1024), torch.ones_like(heard))
    if grid == (64, 64):
        whole = cells.transpose(1, 2).unflatten(2, grid)
        assert torch.allclose(heard, F.avg_pool2d(whole, 2).flatten(2).transpose(1, 2), atol=1e-6)


def test_up_to_that_number_every_cell_is_heard(monkeypatch):
    torch.manual_seed(0)
    one_round = Deliberation().eval()
    cells, tokens = torch.randn(1, 1024, SHARED), torch.randn(1, 3, SHARED)
    mask = torch.ones(1, 3, dtype=torch.bool)
    heard = one_round(cells, tokens, mask, (32, 32))
    monkeypatch.setattr("arr_coc.knowing.HEARD", 1 << 30)
    assert torch.equal(heard, one_round(cells, tokens, mask, (32, 32)))
    monkeypatch.setattr("arr_coc.knowing.HEARD", 256)
    assert not torch.equal(heard, one_round(cells, tokens, mask, (32, 32)))
