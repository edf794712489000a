"""Each channel is real: it answers what the others do not, and the pyramid keeps its contract."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import varied

from arr_coc.config import CHANNEL_SETS
from arr_coc.texture import canvas_of, generate_texture_array, pyramid_of, texture_pyramid

NAMES = CHANNEL_SETS[13]
SIDE = 512
GRID = (16, 16)  # cells of 32 px
Y, X = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
PATCH = (slice(192, 320), slice(192, 320))
CELLS = (slice(6, 10), slice(6, 10))
ISOLUMINANT = torch.tensor([1.0, -0.299 / 0.587, 0.0]).view(3, 1, 1)


def grey() -> torch.Tensor:
    return torch.full((3, SIDE, SIDE), 0.5)


def grating(along: torch.Tensor) -> torch.Tensor:
    return 0.5 + 0.3 * torch.sin(2 * math.pi * along / 32)


def shifted_grating() -> torch.Tensor:
    """The same stripes, half a period late inside the patch: every local measure but regularity is as before."""
    image = grating(X).repeat(3, 1, 1)
    image[:, *PATCH] = grating(X + 16)[PATCH]
    return image


def coloured_patch() -> torch.Tensor:
    image = grey()
    image[:, *PATCH] += 0.3 * ISOLUMINANT
    return image


def big_squares() -> torch.Tensor:
    return grey() + 0.4 * (((Y // 32 + X // 32) % 2) - 0.5)


def colour_ramp() -> torch.Tensor:
    return grey() + ISOLUMINANT * torch.linspace(-0.3, 0.3, SIDE)


def fine_dots() -> torch.Tensor:
    image = grey()
    image[:, *PATCH] += 0.6 * (((Y + X) % 2)[PATCH] - 0.5)
    return image


# Channel -> an image that it alone of channels 8 to 12 answers, and the same image without what it answers to.
ALONE = {
    "spectral_residual": (shifted_grating, lambda: grating(X).repeat(3, 1, 1)),
    "colour_contrast": (coloured_patch, grey),
    "local_contrast": (big_squares, grey),
    "cluster_ambiguity": (colour_ramp, grey),
    "within_cell_variance": (fine_dots, grey),
}


@pytest.mark.parametrize("channel", ALONE)
def test_an_image_that_only_this_channel_answers(channel):
    with_it, without = (generate_texture_array(make(), GRID)[0, :, *CELLS].mean((1, 2)) for make in ALONE[channel])
    answers = dict(zip(NAMES, (with_it - without).abs().tolist(), strict=True))
    assert answers[channel] > 0.1
    assert all(answers[other] < 0.02 for other in ALONE if other != channel), answers


def test_no_two_of_the_image_channels_say_the_same():
    textures = torch.cat([generate_texture_array(varied(seed), (12, 12)) for seed in range(50)])
    correlation = torch.corrcoef(textures[:, 5:13].transpose(0, 1).flatten(1)) - torch.eye(8)
    assert correlation.abs().max() < 0.95


# Mean squares of every channel, as the adapter that ships was trained with them: finest level, middle, cells.
TRAINED_WITH = (
    (0.3054, 0.243, 0.3445, 0.3421, 0.3406, 0.0102, 0.0168, 0.0135, 0.0094, 0.0578, 0.0565, 0.7711, 0.0945),
    (0.2836, 0.229, 0.2727, 0.3519, 0.3485, 0.0083, 0.0138, 0.0118, 0.0087, 0.0536, 0.0565, 0.7615, 0.1245),
    (0.2552, 0.2236, 0.2227, 0.375, 0.3667, 0.0074, 0.0123, 0.0111, 0.0068, 0.0516, 0.0564, 0.7576, 0.1411),
)


def test_the_13_are_what_the_adapter_was_trained_with_whatever_else_is_registered():
    y, x = torch.meshgrid(torch.arange(160), torch.arange(192), indexing="ij")
    image = torch.stack([(3 * x + 5 * y) % 256, (x * y // 7) % 256, ((x // 24 + y // 20) % 2) * 200 + 20])
    canvas = canvas_of(image.to(torch.uint8), (5, 6))
    pyramid = pyramid_of(canvas)
    for level, wanted in zip(pyramid.levels, TRAINED_WITH, strict=False):
        assert torch.allclose(level[0].square().mean((1, 2)), torch.tensor(wanted), atol=1e-4)
    assert pyramid.spread_B == pytest.approx(0.0887, abs=1e-4)
    alone = [pyramid_of(canvas, (name,)) for name in NAMES]  # bit for bit, each measured by itself
    for place, one in enumerate(alone):
        for level, own in zip(pyramid.levels[:3], one.levels[:3], strict=True):
            assert torch.equal(level[:, place], own[:, 0])


def test_edges_have_a_direction():
    across = grey()
    across[:, :, 250:] = 0.9
    sobel_x, sobel_y, magnitude = generate_texture_array(across, GRID)[0, 5:8].amax((1, 2))
    assert sobel_x > 0.05
    assert sobel_y < 1e-6
    assert magnitude > 0.05


def test_shape_range_position_and_colour():
    image = torch.rand(2, 3, 512, 512)
    textures = generate_texture_array(image, grid_size=32)
    assert textures.shape == (2, 13, 32, 32)
    assert torch.allclose(textures[:, :3], F.adaptive_avg_pool2d(image, 32), atol=1e-5)
    assert (textures[:, 3, 0] == 0).all()
    assert (textures[:, 3, -1] == 1).all()
    assert (textures[:, 4, :, 0] == 0).all()
    assert (textures[:, 4, :, -1] == 1).all()


def test_the_pyramid_averages_from_fine_to_coarse():
    pyramid = texture_pyramid(varied(3), (6, 9))
    own = [NAMES.index(name) for name in ("y", "x", "within_cell_variance")]
    rest = [index for index in range(13) if index not in own]
    assert pyramid.fine_BChw.shape[-2:] == (24, 36)
    assert torch.allclose(F.avg_pool2d(pyramid.fine_BChw, 2)[:, rest], pyramid.middle_BChw[:, rest], atol=1e-6)
    assert torch.allclose(F.avg_pool2d(pyramid.middle_BChw, 2)[:, rest], pyramid.cell_BCHW[:, rest], atol=1e-6)


@given(
    height=st.integers(1, 70), width=st.integers(1, 70), rows=st.integers(1, 9), columns=st.integers(1, 9),
    level=st.sampled_from([0.0, 0.5, 1.0]), noise=st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_image_on_any_grid_is_finite_and_in_range(height, width, rows, columns, level, noise):
    image = torch.rand(2, 3, height, width) if noise else torch.full((2, 3, height, width), level)
    textures = generate_texture_array(image, (rows, columns))
    assert textures.shape == (2, 13, rows, columns)
    assert textures.isfinite().all()
    assert textures.min() >= 0
    assert textures.max() <= 1


def test_a_batch_equals_its_rows():
    images = torch.stack([varied(seed) for seed in range(3)])
    together = generate_texture_array(images, (8, 8))
    for row in range(3):
        assert torch.allclose(together[row], generate_texture_array(images[row], (8, 8))[0], atol=1e-5)


def test_bytes_and_floats_agree_and_no_graph_is_held():
    image = varied(1)
    as_float = (image.float() / 255).requires_grad_()
    textures = generate_texture_array(as_float, 8)
    assert torch.equal(textures, generate_texture_array(image, 8))
    assert not textures.requires_grad


@pytest.mark.parametrize(
    ("image", "grid"),
    [(torch.rand(2, 4, 8, 8), 2), (torch.rand(8, 8), 2), (torch.zeros(3, 0, 8), 2), (torch.rand(3, 8, 8), 0)],
)
def test_what_is_no_image_is_refused(image, grid):
    with pytest.raises(ValueError, match="expected"):
        generate_texture_array(image, grid)
    with pytest.raises(ValueError, match="registered sets"):
        generate_texture_array(torch.rand(3, 8, 8), 2, channels=12)


def test_detail_lies_evenly_in_noise_and_unevenly_around_one_thing():
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(3, 256, 256, generator=generator)
    one_thing = torch.full((3, 256, 256), 0.5)
    one_thing[:, 64:192, 64:192] = noise[:, 64:192, 64:192]
    flat = torch.full((3, 256, 256), 0.5)
    spread = texture_pyramid(torch.stack([noise, one_thing, flat]), (8, 8)).spread_B
    assert spread[0] < 0.1
    assert 1.5 < spread[1] < torch.inf
    assert spread[2] == torch.inf
