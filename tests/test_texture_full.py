"""The whole array of 40: each channel says what the others of its group do not, and is zero without its source."""

import logging
import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from no_host_reads import NoHostReads
from pictures import varied

from arr_coc.config import CHANNEL_SETS, CHANNELS, GROUPS, ARRCOCConfig, blind_names, channel_names
from arr_coc.images.clips import Clip
from arr_coc.layer import ARRCOCLayer
from arr_coc.texture import (
    FINE_CHANNELS,
    LEVEL_CHANNELS,
    canvas_of,
    generate_texture_array,
    pyramid_of,
    text,
    texture_pyramid,
)
from arr_coc.texture.channels import Canvas
from arr_coc.texture.full import directions, nearest_distance
from arr_coc.texture.saliency import SIDE as KNOWN
from arr_coc.texture.saliency import SaliencyNetwork, gaze
from studies.wide.making import make_wide

NAMES = CHANNEL_SETS[40]
SIDE = 256
GRID = (8, 8)
Y, X = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
INSIDE = (slice(3, 5), slice(3, 5))  # cells in the middle of a patch of four
ISOLUMINANT = torch.tensor([1.0, -0.299 / 0.587, 0.0]).view(3, 1, 1)


def flat(level=0.5):
    return torch.full((3, SIDE, SIDE), level)


def patch(change, size=128, ground=0.5):
    """A grey image with something added to a square in its middle."""
    image, half = flat(ground), size // 2
    where = (slice(128 - half, 128 + half), slice(128 - half, 128 + half))
    change = change if isinstance(change, float) else change[..., *where]
    image[:, *where] += change
    return image


def dots(strength=0.6):
    return strength * (((Y + X) % 2) - 0.5)


def quarters(middle):
    """Four strong colours, a quarter of the image each, and a small square of another in the middle."""
    image = flat()
    for number, colour in enumerate(([0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.1, 0.9], [0.9, 0.9, 0.9])):
        top, left = number // 2 * 128, number % 2 * 128
        image[:, top : top + 128, left : left + 128] = torch.tensor(colour).view(3, 1, 1)
    image[:, 96:160, 96:160] = torch.tensor(middle).view(3, 1, 1)
    return image


def letters():
    """Short strokes of both ways in lines, black on white."""
    image = flat(0.95)
    rows, columns = torch.where((Y % 16 < 9) & ((X * 7 + Y // 16 * 3) % 11 < 4))
    image[:, rows, columns] = 0.05
    return image


def told(image, **beside):
    """Every channel in the middle cells."""
    values = generate_texture_array(image, GRID, 40, **beside)[0, :, *INSIDE].mean((1, 2))
    return dict(zip(NAMES, values.tolist(), strict=True))


LOOK = torch.ones(8, 8)
# Channel -> two sets of what is given, between which it changes, and the others of its group do not.
ALONE = {
    "red": ({"image": flat() + torch.tensor([0.3, 0, 0]).view(3, 1, 1)}, {"image": flat()}),
    "green": ({"image": flat() + torch.tensor([0, 0.3, 0]).view(3, 1, 1)}, {"image": flat()}),
    "blue": ({"image": flat() + torch.tensor([0, 0, 0.3]).view(3, 1, 1)}, {"image": flat()}),
    "high_pass": ({"image": patch(dots())}, {"image": flat()}),
    "low_pass": ({"image": flat(0.8)}, {"image": flat()}),
    "cluster_ambiguity": ({"image": quarters([0.9, 0.3, 0.1])}, {"image": quarters([0.9, 0.1, 0.1])}),
    "cluster_share": ({"image": patch(0.03, 192)}, {"image": patch(0.03, 64)}),
    "cluster_contrast": ({"image": patch(0.05)}, {"image": patch(0.4)}),
    "brighter": ({"image": flat(0.8), "previous": flat()}, {"image": flat(), "previous": flat()}),
    "darker": ({"image": flat(0.2), "previous": flat()}, {"image": flat(), "previous": flat()}),
    "colour_change": ({"image": flat() + 0.3 * ISOLUMINANT, "previous": flat()}, {"image": flat(), "previous": flat()}),
    "detail_change": ({"image": flat() + dots(), "previous": flat()}, {"image": flat(), "previous": flat()}),
    "looked_last": ({"history": torch.stack([0 * LOOK, LOOK])}, {"history": torch.stack([0 * LOOK, 0 * LOOK])}),
    "looked_before": ({"history": torch.stack([LOOK, 0 * LOOK])}, {"history": torch.stack([0 * LOOK, 0 * LOOK])}),
    "looked_always": (
        {"history": torch.stack([0.5 * LOOK, 0.5 * LOOK, LOOK])}, {"history": torch.stack([0 * LOOK, LOOK, LOOK])},
    ),
}  # fmt: skip


@pytest.mark.parametrize("channel", ALONE)
def test_an_image_that_only_this_channel_of_its_group_answers(channel):
    with_it, without = (told(**{"image": flat(), **beside}) for beside in ALONE[channel])
    group = [name for name in GROUPS[CHANNELS[channel].group] if name != channel]
    assert abs(with_it[channel] - without[channel]) > 0.08
    assert all(abs(with_it[other] - without[other]) < 0.02 for other in group), (with_it, without)


def test_of_a_pair_of_frames_motion_and_change_are_those_between_them():
    """And everything else is that of both frames as one."""
    first, second = patch(0.4, 64), patch(0.4, 64).roll(4, -1)
    pair = torch.stack([first, second]).unsqueeze(0)
    timed = [NAMES.index(name) for name in (*GROUPS["motion"], *GROUPS["temporal"])]
    rest = [number for number in range(40) if number not in timed]
    found = texture_pyramid(pair, GRID, 40).cell_BCHW
    assert torch.equal(found[:, timed], generate_texture_array(second, GRID, 40, previous=first)[:, timed])
    assert torch.equal(found[:, rest], generate_texture_array(pair.mean(1), GRID, 40)[:, rest])
    motion = found[0, NAMES.index("motion")]
    assert motion[*INSIDE].max() > 0.2
    assert motion[0].max() == 0
    assert torch.equal(texture_pyramid(pair, GRID).cell_BCHW, generate_texture_array(pair.mean(1), GRID))
    assert texture_pyramid(pair[:, [0, 0]], GRID, 40).cell_BCHW[:, timed].max() == 0


@pytest.mark.parametrize("strict", [False, True], ids=["remembered", "anew"])
def test_a_patch_that_moves_in_a_clip_answers_in_the_textures_that_are_read(strict, monkeypatch):
    """In the moment in which it moves, and where it is."""
    seen = []

    def spying(*given):
        seen.append(texture_pyramid(*given).cell_BCHW)
        return texture_pyramid(*given)

    monkeypatch.setattr("arr_coc.layer.texture_pyramid", spying)
    stock = tiny.stock()
    config = ARRCOCConfig(hidden_dim=stock.config.text_config.hidden_size, texture_channels=40)
    ours = tiny.wrapped(stock, config=config, selector="arr_coc")
    ours.strict = strict
    frames = torch.full((4, 3, 128, 128), 80, dtype=torch.uint8)
    for number, left in enumerate((32, 32, 32, 40)):
        frames[number, :, 32:64, left : left + 32] = 220
    ours.choose(None, "what moves?", keep=4, video=Clip(frames, (0.0, 0.5, 1.0, 1.5)))
    (found,) = seen
    motion = found[:, NAMES.index("motion")]
    assert motion.shape == (2, 4, 4)
    assert motion[0].max() == 0
    assert motion[1, 1, 1:3].min() > 0.1
    assert motion[1, 2:].max() == 0
    assert found[1, NAMES.index("brighter"), 1, 2] > 0.05


def test_channels_alone_in_their_group_answer_what_they_are_for():
    still, moved = (0.5 + 0.3 * torch.sin(2 * math.pi * (X + shift) / 64).expand(3, -1, -1) for shift in (0, 6))
    assert told(moved, previous=still)["motion"] > 0.3
    assert told(flat(0.8), previous=flat())["motion"] == 0  # another light is no motion
    assert told(letters())["text_likelihood"] > 0.9
    assert told(patch(0.4))["text_likelihood"] < 0.1
    edge_far = told(patch(0.4, 224))["edge_distance"]
    assert edge_far > 2 * told(patch(0.4, 96))["edge_distance"]
    assert told(flat())["edge_distance"] == 1
    on_it, beside_it = (torch.full((3, SIDE, SIDE), 0.4) for _ in range(2))
    on_it[:, 112:144, 112:144] = torch.tensor([0.9, 0.2, 0.1]).view(3, 1, 1)
    assert told(on_it)["saliency"] > 1.5 * told(beside_it)["saliency"]


def page(ground=0.95, grain=0.0):
    """Six rows of cells with writing, and two of bare paper beneath."""
    image = letters()
    image[:, 192:] = 0.95
    image = image - 0.95 + torch.tensor(ground).view(-1, 1, 1)
    return (image + grain * torch.randn(1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))).clamp(0, 1)


@pytest.mark.parametrize("paper", [{}, {"ground": [0.96, 0.93, 0.8]}, {"ground": 0.9, "grain": 0.02}])
def test_bare_paper_is_what_is_not_written_on_of_a_written_page(paper):
    bare = text.bare_paper(texture_pyramid(page(**paper), GRID))[0]
    assert bare[6:].all()
    assert not bare[:6].any()


@pytest.mark.parametrize("channels", [13, 40])
def test_a_stroke_or_a_colour_in_a_cell_is_not_bare_paper(channels):
    held = page()
    held[:, 200:206, 40:41] = 0.2  # a cell with a comma in it
    held[:, 230:250, 140:150] += 0.2 * ISOLUMINANT  # as light as the paper around it
    held = held.clamp(0, 1)
    bare = text.bare_paper(texture_pyramid(held, GRID, channels))[0]
    assert bare[6:].sum() == 14
    assert not bare[6, 1]
    assert not bare[7, 4]


def test_what_is_no_written_page_has_no_bare_paper():
    sign = flat(0.95)
    sign[:, 64:96, :192] = letters()[:, 64:96, :192]  # a line over six cells of 64
    noise = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    for image in (sign, flat(), noise, patch(dots(), 64), quarters([0.9, 0.3, 0.1])):
        assert not text.bare_paper(texture_pyramid(image, GRID)).any()
    both = torch.stack([page(), sign])
    assert text.bare_paper(texture_pyramid(both, GRID)).flatten(1).sum(-1).tolist() == [16, 0], "each for itself"


def test_place_and_edges():
    textures = generate_texture_array(varied(2), (9, 7), 40)[0]
    y, x, off = (textures[NAMES.index(name)] for name in GROUPS["place"])
    assert (y[0] == 0).all()
    assert (x[:, -1] == 1).all()
    assert off[4, 3] == 0
    assert off[0, 0] == off[-1, -1] == 1
    edges, inverse = (textures[NAMES.index(name)] for name in GROUPS["edges"])
    assert torch.allclose(edges + inverse, torch.ones(9, 7), atol=1e-6)


def test_every_semantic_channel_hears_its_own_direction():
    fixed = directions(16, 96, torch.device("cpu"))
    assert torch.allclose(fixed @ fixed.T, torch.eye(16), atol=1e-5)
    for number in range(16):
        glance = torch.zeros(1, 96, 2, 1) + fixed[number].view(1, -1, 1, 1) * torch.tensor([1.0, -1.0]).view(1, 1, 2, 1)
        told_16 = generate_texture_array(flat(), GRID, GROUPS["semantic"], glance=glance)[0, :, 0, 0]
        assert told_16[number] > 0.99
        assert (told_16 - 0.5).abs().topk(2).values[1] < 1e-3
    assert directions(16, 4, torch.device("cpu"))[4:].abs().max() == 0  # a narrow glance has no more to say


def test_what_is_not_given_is_zero_and_what_is_given_fills_its_own_channels():
    image, glance, history = varied(4), torch.randn(1, 24, 3, 5), torch.rand(1, 3, 4, 4)
    plain = generate_texture_array(image, GRID, 40)[0]
    full = generate_texture_array(image, GRID, 40, glance, varied(5), history)[0]
    changed = {name for name, a, b in zip(NAMES, plain, full, strict=True) if not torch.equal(a, b)}
    filled = ("semantic", "motion", "temporal", "history")
    assert changed == {name for group in filled for name in GROUPS[group]}
    assert all(plain[NAMES.index(name)].abs().max() == 0 for name in changed)


def test_names_order_and_who_may_read_them():
    assert len(NAMES) == len(set(NAMES)) == 40
    assert [NAMES.index(n) for n in ("eccentricity", "edges", "high_pass", "motion", "saliency")] == [5, 6, 8, 10, 11]
    assert [NAMES.index(n) for n in ("edge_distance", "text_likelihood", "semantic_0", "brighter")] == [12, 16, 17, 33]
    made = {name for registry in (FINE_CHANNELS, LEVEL_CHANNELS) for names in registry for name in names}
    assert made == set(CHANNELS)
    assert set(NAMES) - set(blind_names(40)) == {*GROUPS["semantic"], *GROUPS["history"]}
    assert blind_names(13) == CHANNEL_SETS[13]
    assert CHANNELS["text_detected"].group == "text"
    assert not any("text_detected" in names for names in CHANNEL_SETS.values())


@pytest.mark.parametrize(
    ("channels", "known"),
    [(12, "13, 40"), (("red", "colour"), "text_likelihood"), ((), "at least one"), (("red", "red"), "twice")],
)
def test_a_set_of_unknown_size_or_name_is_refused_in_one_line(channels, known):
    with pytest.raises(ValueError, match=known) as caught:
        generate_texture_array(flat(), GRID, channels)
    assert "\n" not in str(caught.value)


def test_the_whole_array_can_be_recorded():
    beside = {"glance": torch.randn(1, 24, 3, 5), "previous": varied(5), "history": torch.rand(1, 3, 4, 4)}
    canvas = canvas_of(varied(4), GRID, **beside)
    wanted = pyramid_of(canvas, 40)  # tables and weights are there from now on
    with NoHostReads():
        again = pyramid_of(canvas, 40)
    assert torch.equal(again.cell_BCHW, wanted.cell_BCHW)


def test_channels_by_name_are_those_of_the_whole_array():
    image = varied(7)
    whole = generate_texture_array(image, GRID, 40)[0]
    for name in ("saliency", "cluster_share", "high_pass", "edge_distance"):
        assert torch.equal(generate_texture_array(image, GRID, (name,))[0, 0], whole[NAMES.index(name)])
    assert channel_names("red") == ("red",)


@pytest.mark.parametrize("name", ["glance", "previous", "history"])
def test_what_is_known_beside_an_image_must_fit_its_batch(name):
    with pytest.raises(ValueError, match=f"{name} has shape"):
        generate_texture_array(flat(), GRID, 40, **{name: torch.rand(2, 3, 8, 8)})


# ---------------------------------------------------------------- properties


@given(
    height=st.integers(1, 70), width=st.integers(1, 70), rows=st.integers(1, 9), columns=st.integers(1, 9),
    level=st.sampled_from([0.0, 0.5, 1.0]), noise=st.booleans(), looks=st.integers(1, 3), vit=st.integers(1, 24),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_any_image_on_any_grid_is_finite_and_in_range(height, width, rows, columns, level, noise, looks, vit):
    image = torch.rand(2, 3, height, width) if noise else torch.full((2, 3, height, width), level)
    beside = {"glance": torch.randn(2, vit, 2, 3), "previous": image.flip(0), "history": torch.rand(2, looks, 3, 2)}
    textures = generate_texture_array(image, (rows, columns), 40, **beside)
    assert textures.shape == (2, 40, rows, columns)
    assert textures.isfinite().all()
    assert textures.min() >= 0
    assert textures.max() <= 1
    assert not textures.requires_grad
    alone = generate_texture_array(image[1], (rows, columns), 40, **{name: one[1] for name, one in beside.items()})
    assert torch.allclose(textures[1], alone[0], atol=1e-4)


@given(height=st.integers(1, 24), width=st.integers(1, 24), seed=st.integers(0, 99), share=st.floats(0.001, 0.3))
@settings(max_examples=40, deadline=None)
def test_the_distance_is_exact(height, width, seed, share):
    mark = torch.rand(2, 1, height, width, generator=torch.Generator().manual_seed(seed)) < share
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([y, x], dim=-1).view(-1, 2).double()
    for one, found in zip(mark[:, 0], nearest_distance(mark)[:, 0], strict=True):
        if one.any():
            wanted = torch.cdist(places, places[one.flatten()]).amin(1).view(height, width) / math.hypot(height, width)
            assert torch.allclose(found.double(), wanted, atol=1e-5)
        else:
            assert (found == 1).all()


def test_the_distance_does_not_depend_on_how_many_rows_are_compared_at_a_time(monkeypatch):
    mark = torch.rand(2, 1, 21, 13, generator=torch.Generator().manual_seed(1)) < 0.05
    whole = nearest_distance(mark)
    monkeypatch.setattr("arr_coc.texture.full.CHUNK", 1)
    assert torch.equal(nearest_distance(mark), whole)


def test_no_two_channels_say_the_same():
    rows, generator = [], torch.Generator().manual_seed(0)
    for seed in range(50):
        drawn = torch.from_numpy(make_wide(seed, "seen", (256, 256)).pixels.copy()).permute(2, 0, 1)
        image = varied(seed, (256, 256)) if seed % 2 else drawn
        glance, looks = torch.randn(1, 32, 4, 4, generator=generator), torch.rand(1, 3, 8, 8, generator=generator)
        rows.append(generate_texture_array(image, GRID, 40, glance, image.roll(4, -1).roll(2, -2), looks)[0])
    values = torch.stack(rows, dim=1).flatten(1)
    assert (values.std(1) > 1e-4).all()
    correlation = torch.corrcoef(values).abs() - torch.eye(40)
    edges, inverse = (NAMES.index(name) for name in GROUPS["edges"])
    correlation[edges, inverse] = correlation[inverse, edges] = 0
    assert correlation.max() < 0.97, (correlation.max(), divmod(int(correlation.argmax()), 40))


# ---------------------------------------------------------------- saliency


def test_what_stands_out_does_not_depend_on_the_number_of_cells():
    image = varied(11, (512, 512))
    coarse, fine = (generate_texture_array(image, grid, ("saliency",)) for grid in (16, 32))
    pooled = F.avg_pool2d(fine, 2)
    assert torch.corrcoef(torch.stack([coarse.flatten(), pooled.flatten()]))[0, 1] > 0.98
    assert sum(one.numel() for one in SaliencyNetwork().parameters()) < 100_000


def test_the_network_sees_the_size_that_it_knows_and_tells_shares():
    seen = []

    def network(textures):
        seen.append(tuple(textures.shape[-2:]))
        return torch.zeros(textures.shape[0], 1, *(side // 2 for side in textures.shape[-2:]))

    for grid in ((32, 16), (2, 4), (1, 30), (16, 16)):
        shares = gaze(network, canvas_of(varied(1), grid))
        assert torch.allclose(shares, torch.ones_like(shares), atol=1e-4)
    assert seen == [(KNOWN, KNOWN // 2), (KNOWN // 2, KNOWN), (8, KNOWN), (KNOWN, KNOWN)]


def test_a_layer_reads_40_channels_and_blind_scorers_neither_glance_nor_history():
    torch.manual_seed(0)
    layer = ARRCOCLayer(32, texture_channels=40, sight="textures").eval()
    beside = {"glance": torch.randn(1, 24, 4, 4), "history": torch.rand(1, 2, 8, 8)}
    pyramids = [pyramid_of(canvas_of(varied(3), GRID, **given), 40) for given in ({}, beside)]
    for blind in (layer.knowing.information, layer.knowing.perspectival):
        assert torch.equal(*(blind(pyramid) for pyramid in pyramids))
    out = layer(None, torch.randn(1, 3, 32), varied(3), GRID, keep=0.25)
    assert out.indices.shape == (1, 16)


# ---------------------------------------------------------------- text lines by a detector


@pytest.fixture
def fresh():
    text.detector.cache_clear()
    yield
    text.detector.cache_clear()


def test_without_the_detector_one_line_says_how_and_the_filter_is_used(fresh, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with caplog.at_level(logging.WARNING):
        found = [generate_texture_array(letters(), GRID, ("text_detected",)) for _ in range(2)]
    assert torch.equal(found[0], generate_texture_array(letters(), GRID, ("text_likelihood",)))
    assert [record.getMessage().count("pip install 'arr-coc[text]'") for record in caplog.records] == [1]


def test_the_lines_of_the_detector_become_cells(fresh, monkeypatch):
    images = []

    class RapidOCR:
        def __init__(self, params):
            pass

        def __call__(self, image, use_det, use_cls, use_rec):
            images.append(image)
            assert use_det
            assert not use_cls
            assert not use_rec
            lines = [[[40, 70], [120, 70], [120, 82], [40, 82]], [[230, 8], [250, 8], [250, 24], [230, 24]]]
            return SimpleNamespace(boxes=np.array(lines, dtype=np.float32) if image.max() > 200 else None)

    fake = ModuleType("rapidocr")
    fake.RapidOCR = RapidOCR
    monkeypatch.setitem(sys.modules, "rapidocr", fake)
    found = generate_texture_array(torch.stack([letters(), flat(0.1)]), GRID, ("text_detected",))
    assert images[0].shape == (SIDE, SIDE, 3)
    assert images[0].dtype == np.uint8
    covered = torch.zeros(8, 8)
    covered[2, 1:4], covered[0, 7] = 1, 1
    assert torch.equal(found[0, 0].round(), covered)
    assert found[1].abs().max() == 0


def test_a_line_may_be_turned_and_its_corners_go_round_either_way():
    diamond = [[16.0, 0.0], [32.0, 16.0], [16.0, 32.0], [0.0, 16.0]]
    mask = text.inside([diamond], 32, 40)
    assert mask.sum() == pytest.approx(512, rel=0.1)
    assert torch.equal(mask, text.inside([diamond[::-1]], 32, 40))
    assert text.inside([[[50, 5], [60, 5], [60, 9], [50, 9]]], 32, 40).sum() == 0  # outside of the image


def test_a_canvas_without_its_image_has_the_filter(fresh):
    canvas = canvas_of(letters(), GRID)
    bare = Canvas.of(canvas.rgb_B3hw, canvas.luma_B1hw, canvas.luma_squared_B1hw)
    assert torch.equal(text.text_detected(bare), text.text_likelihood(bare))
