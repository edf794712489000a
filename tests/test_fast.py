"""The fast path: equal to the plain path, padded without a trace, bounded, left with a reason where it cannot go."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from no_host_reads import NoHostReads, StrictRecorder
from PIL import Image
from transformers import GenerationConfig, StoppingCriteria
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from arr_coc.cli.typed import sample_image
from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen, tower
from arr_coc.qwen import vision as encoding
from arr_coc.qwen.chooser import break_even_tokens, keep_small_whole
from arr_coc.qwen.compact import shorten
from arr_coc.qwen.graphs import FastRunner, forward
from arr_coc.qwen.graphs import choosing as selecting
from arr_coc.qwen.graphs import layout as buckets
from arr_coc.qwen.graphs.forward import places_of
from arr_coc.qwen.graphs.layout import plan, read_prompt
from arr_coc.qwen.graphs.recording import CudaRecorder, Recordings, Rerunner
from arr_coc.qwen.graphs.rules import Picking, ids_of, picking_of, why_not, why_not_model
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.request import Layout, Request, cells_of, samples_of_images, token_types
from arr_coc.qwen.shapes import sight_dims
from arr_coc.records import Balance, Judgement
from arr_coc.selectors import make_selector
from arr_coc.texture import canvas_of
from studies.selector.written_pages import written_page

ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(128, 64, 3)], "and now?", history=[("look at it first", "a thing")])
WORDS = Conversation([], "only words here")
LARGE = Conversation([tiny.picture(384, 320, 4)], "a larger one")
PAIR = Conversation([tiny.picture(160, 128, 5), tiny.picture(128, 192, 6)], "which of them?")
NEW = 8


def wrapped(how="sparse", selector="arr_coc", stock=None, **settings) -> ARRCOCQwen:
    torch.manual_seed(1)
    ours = tiny.wrapped(stock or tiny.stock(), selector=selector)
    ours.arr_coc_config = replace(ours.arr_coc_config, encoding=how, **settings)
    ours.fast, ours.break_even = True, 0
    return ours


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-5 * other.abs().max())


def plain(ours, inputs, keeps, **options):
    """New tokens and their logits by the plain path."""
    ours.fast = False
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    out = ours.generate(**inputs, keep=keeps, return_dict_in_generate=True, output_logits=True, **options)
    ours.fast = True
    return out.sequences[:, inputs["input_ids"].shape[1] :], torch.stack(out.logits, 1)


def assert_equal_paths(ours, conversations, keeps, recorder=None) -> FastRunner:
    inputs = tiny.inputs(*conversations)
    wanted, logits = plain(ours, inputs, keeps)
    assert tiny.varies(wanted)
    fast = FastRunner(ours.model, recorder or StrictRecorder())
    for _ in range(2):  # recorded, then from the recordings
        made = fast.run(ours.looker(), ours.encoding, inputs, keeps, Picking(NEW, (), 0))
        assert torch.equal(made.new_BT, wanted)
        assert close(made.first_logits_BV, logits[:, 0])
    return fast


def assert_equal_choices(ours, conversations, keeps, **changed):
    """Kept cells and explanations of both paths; gives what the fast one made."""
    inputs = tiny.inputs(*conversations) | changed
    made = FastRunner(ours.model).run(ours.looker(), ours.encoding, inputs, keeps, Picking(1, (), 0))
    inputs.pop("mm_token_type_ids")
    for fast, slow in zip(made.images, ours.prepare(**inputs, keep=keeps).images, strict=True):
        for one, other in zip(fast, slow, strict=True):
            assert torch.equal(one.kept, other.kept)
            assert torch.equal(one.kept_for_coverage, other.kept_for_coverage)
            assert (one.strategy, one.reason, one.grid) == (other.strategy, other.reason, other.grid)
            assert one.periphery == other.periphery
            assert close(one.relevance, other.relevance)
            assert all(close(one.maps[name], other.maps[name]) for name in other.maps)
            assert one.weights == pytest.approx(other.weights)
            assert one.tensions == pytest.approx(other.tensions)
    return made


# ---------------------------------------------------------------- equality

BATCHES = {
    "one": ([ONE], [0.4]),
    "exactly a bucket": ([ONE], [16]),
    "two images": ([TWO], [9]),
    "auto": ([TWO], ["auto"]),
    "three rows of different sizes": ([ONE, TWO, LATER], [0.4, 7, "auto"]),
    "three grids out of order": ([ONE, LATER, LARGE, ONE], ["auto"] * 4),
    "one kept whole": ([ONE, LARGE], [1.0, 0.3]),
    "a row without an image": ([WORDS, ONE], [0.5, 0.5]),
    "same grid twice": ([ONE, ONE], [5, 12]),
    "a large budget": ([LARGE], [89]),
}


@pytest.mark.parametrize("how", ["dense", "sparse"])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_fast_path_gives_the_plain_paths_tokens_and_logits(batch, how):
    assert_equal_paths(wrapped(how), *BATCHES[batch])


def test_bare_paper_comes_last_over_recordings_whoever_sets_the_budget(monkeypatch):
    """Where no map is believed, half of what is kept is spread evenly, and not over what is bare."""

    def left_half(pyramid):
        bare_BHW = torch.zeros(pyramid.cell_BCHW.shape[0], *pyramid.grid, dtype=torch.bool)
        bare_BHW[..., : pyramid.grid[1] // 2] = True
        return bare_BHW

    monkeypatch.setattr("arr_coc.layer.bare_paper", left_half)
    monkeypatch.setattr("arr_coc.layer.EVEN", 1.0)
    ours = tiny.wrapped(tiny.stock(), selector="arr_coc", break_even=0)
    for keep in (40, "auto"):
        (selection,) = assert_equal_choices(ours, [LARGE], [keep]).images[0]
        covered = selection.kept_for_coverage % selection.grid[1]
        assert len(covered) >= 4
        assert covered.min() >= selection.grid[1] // 2


@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
@pytest.mark.parametrize("batch", ["one", "two images", "three rows of different sizes", "one kept whole"])
def test_windows_that_attend_to_small_copies(batch, selector):
    ours = wrapped("sparse", selector)
    ours.arr_coc_config = replace(ours.arr_coc_config, context="always")
    assert_equal_paths(ours, *BATCHES[batch])


@pytest.mark.parametrize("batch", ["one", "three rows of different sizes"])
def test_a_selector_that_reads_the_vision_encoders_tokens(batch):
    assert_equal_paths(wrapped("dense", "training_free"), *BATCHES[batch], Rerunner())


@pytest.mark.parametrize(
    ("how", "batch"), [("sparse", name) for name in BATCHES] + [("dense", "auto"), ("dense", "one")]
)
def test_a_selector_that_looks_twice(batch, how):
    ours = wrapped(how, "look_twice")
    assert_equal_paths(ours, *BATCHES[batch])
    assert_equal_choices(ours, *BATCHES[batch])


COPIED = {
    **{name: BATCHES[name] for name in ("one", "exactly a bucket", "one kept whole", "a row without an image")},
    **{name: BATCHES[name] for name in ("same grid twice", "a large budget", "three rows of different sizes")},
    "two images": ([PAIR], [24]),
    "auto": ([PAIR, ONE], ["auto", 12]),
}


@pytest.mark.parametrize("context", ["never", "always"])
@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
@pytest.mark.parametrize("batch", COPIED)
def test_small_copies_in_the_prompt(batch, selector, context):
    ours = wrapped("foveated", selector, context=context)
    assert_equal_paths(ours, *COPIED[batch])
    made = assert_equal_choices(ours, *COPIED[batch])
    assert any(image.periphery for row in made.images for image in row)


def test_small_copies_with_compact_positions_and_small_copies_in_the_grid():
    assert_equal_paths(wrapped("foveated", "look_twice", position_policy="compact"), [TWO], [24])
    ours = wrapped("foveated", "look_twice", periphery="grid")
    assert "periphery='grid'" in why_not(ours.looker(), ours.encoding, tiny.inputs(ONE))


@pytest.mark.parametrize("settings", [{"most": 4, "least": 1}, {"depth": 1.0}, {"depth": 0.01}, {"least": 256}])
def test_first_looks_of_any_size_and_depth(settings):
    ours = wrapped(selector="look_twice")
    ours.selector = make_selector("look_twice", ours.arr_coc_config, ours.layer, **settings)
    assert_equal_paths(ours, [TWO, LARGE], ["auto", 0.2])
    assert_equal_choices(ours, [TWO, LARGE], ["auto", 0.2])


def test_layers_are_read_together_or_one_by_one(monkeypatch):
    monkeypatch.setattr(forward, "HELD", 1)
    assert_equal_choices(wrapped(selector="look_twice"), [TWO, LARGE], ["auto", 0.2])


def test_a_prompt_that_asks_nothing_is_looked_at_twice_without_recordings():
    inputs = tiny.inputs(ONE, LARGE)
    inputs["question_mask"][0] = 0
    quick, plain = wrapped(selector="look_twice"), wrapped(selector="look_twice")
    plain.fast = False
    made = [ours.generate(**inputs, keep=0.4, max_new_tokens=NEW, do_sample=False) for ours in (quick, plain)]
    assert torch.equal(*made)
    assert "the fast path is left: a prompt asks nothing" in quick.notices
    chosen = plain.choose(inputs, keep=0.4)
    assert [image.maps["participatory"].unique().numel() > 1 for image in chosen] == [False, True]


def test_the_small_copys_recording_does_not_overwrite_what_is_kept_of_the_image():
    ours = wrapped("dense", "look_twice")
    ours.selector = make_selector("look_twice", ours.arr_coc_config, ours.layer, least=4, most=4)
    small, whole = Conversation([tiny.picture(64, 64, 5)], "what?"), Conversation([tiny.picture(64, 64, 6)], "what?")
    assert_equal_paths(ours, [small, whole], [2, 3])  # the copies have the size of the images: one recording for both


def test_all_tokens_through_the_own_forward():
    for conversations in ([ONE], [ONE, TWO, LATER]):
        assert_equal_paths(wrapped("dense"), conversations, [1.0] * len(conversations))


@pytest.mark.parametrize("sight", ["glance", "look"])
def test_a_glance_and_a_look_through_the_own_forward(sight):
    stock = tiny.stock()
    config = ARRCOCConfig(**sight_dims(stock.config, sight), sight=sight, trained=True)
    torch.manual_seed(2)
    layer = ARRCOCLayer.from_config(config)
    ours = ARRCOCQwen(stock, config, layer, tiny.processor(), fast=True, break_even=0).eval()
    assert_equal_paths(ours, [ONE, LARGE], [0.4, 0.2])
    looked = assert_equal_choices(ours, [ONE, TWO, LARGE], [0.4, 9, "auto"]).images[0][0].maps["participatory"]
    ours.selector = make_selector("arr_coc", config, layer, light=1)
    light = assert_equal_choices(ours, [ONE, TWO], [0.4, 9]).images[0][0].maps["participatory"]
    assert torch.equal(looked, light) == (sight == "glance")


@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
def test_compact_positions(selector):
    assert_equal_paths(wrapped(selector=selector, position_policy="compact"), [ONE, TWO], [0.4, 0.5])


def test_the_choice_and_its_explanation_are_the_plain_paths():
    made = assert_equal_choices(wrapped(), [ONE, TWO], [0.4, 9])
    assert set(made.timings_ms) == {"select", "vision", "prefill", "ttft", "wall_ttft", "decode"}
    assert made.timings_ms["ttft"] == pytest.approx(sum(made.timings_ms[n] for n in ("select", "vision", "prefill")))


def test_both_paths_leave_bare_paper_of_a_written_page_out():
    written = written_page(0, (256, 384))
    page, ours = Conversation([Image.fromarray(written.pixels)], "what is the title?"), wrapped()
    made = assert_equal_choices(ours, [page, ONE], [0.25, 0.4])
    (kept,) = made.images[0]
    blank = written.blank_HW.flatten()[kept.kept]
    assert kept.grid == written.blank_HW.shape
    assert blank.mean() < written.blank_HW.mean() / 2


@pytest.mark.parametrize(("how", "selector"), [("dense", "arr_coc"), ("sparse", "arr_coc"), ("sparse", "look_twice")])
def test_larger_buckets_change_nothing(monkeypatch, how, selector):
    ours = wrapped(how, selector)
    inputs = tiny.inputs(ONE, TWO)
    wanted, logits = plain(ours, inputs, [0.4, 9])
    for steps in ((24, 320), (40, 96), (333,)):
        monkeypatch.setattr(buckets, "BUDGETS", steps)
        monkeypatch.setattr(buckets, "TEXTS", steps)
        monkeypatch.setattr(buckets, "CAPACITIES", (steps[-1] * 3,))
        made = FastRunner(ours.model).run(ours.looker(), ours.encoding, inputs, [0.4, 9], Picking(NEW, (), 0))
        assert torch.equal(made.new_BT, wanted)
        assert close(made.first_logits_BV, logits[:, 0])


@torch.no_grad()
def test_the_vision_tower_is_the_stock_one_on_padded_windows():
    model = tiny.stock()
    inputs = tiny.inputs(ONE, TWO)
    grids = inputs["image_grid_thw"]
    cells = [int(grid.prod()) // 4 for grid in grids]
    kept = [torch.randperm(n)[: n // 2].sort().values for n in cells]
    stock = encoding.encode_sparse(model, inputs["pixel_values"], grids, kept)
    slots = max(map(len, kept)) + 3
    mask = torch.arange(slots) < torch.tensor([len(one) for one in kept]).unsqueeze(1)
    cells_IK = torch.stack([torch.nn.functional.pad(one, (0, slots - len(one))) for one in kept])
    first = torch.tensor(cells).cumsum(0) - torch.tensor(cells)
    rows = ((first.view(-1, 1) + cells_IK).unsqueeze(-1) * 4 + torch.arange(4)).flatten(1)
    with NoHostReads():
        made, _ = tower.see(model.model.visual, inputs["pixel_values"][rows], cells_IK, grids[:, 1:] // 2, mask)
    for level, wanted in zip(made, [stock.pooler_output, *stock.deepstack_features], strict=True):
        assert close(level.view(len(kept), slots, -1)[mask], torch.cat(list(wanted)))


VISUAL = tiny.stock().model.visual


@torch.no_grad()
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9))
def test_learned_and_rotary_places_are_the_stock_ones(height, width):
    visual = VISUAL
    grid = torch.tensor([[1, 2 * height, 2 * width]])
    taps, weights = get_vision_interpolation_indices_and_weights(
        grid, visual.num_grid_per_side, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    wanted = (visual.pos_embed(taps) * weights.unsqueeze(-1)).sum(1)
    patches = tower.patches_of(torch.arange(height * width)[None], 4)
    row, column = tower.patch_places(patches, torch.tensor([width]), 2)
    assert torch.equal(torch.stack([row[0], column[0]], -1), get_vision_position_ids(grid, 2))
    assert close(tower.learned_places(visual, row, column, torch.tensor([[height, width]]))[0], wanted)
    cos, sin = visual.rotary_pos_emb(wanted, get_vision_position_ids(grid, 2))
    our_cos, our_sin = tower.rotary(visual.rotary_pos_emb.inv_freq, row, column)
    x = torch.randn(row.shape[1], cos.shape[-1])
    first, second = x.chunk(2, -1)
    stock = x * cos + torch.cat([-second, first], -1) * sin
    assert close(tower.turn(x, our_cos.squeeze((0, 2, 3)), our_sin.squeeze((0, 2, 3))), stock)


def test_positions_are_those_of_the_plain_path():
    model = tiny.stock()
    inputs = tiny.inputs(ONE, TWO, LATER)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    types = token_types(ids, model.config)
    grids = cells_of(inputs["image_grid_thw"], 2)
    positions, _ = model.model.get_rope_index(ids, types, inputs["image_grid_thw"], None, mask)
    kept = [torch.arange(0, h * w, 2) for h, w in grids]
    keep = torch.ones_like(ids, dtype=torch.bool)
    of_images = torch.zeros(sum(h * w for h, w in grids), dtype=torch.bool)
    start = 0
    for (h, w), index in zip(grids, kept, strict=True):
        of_images[start + index] = True
        start += h * w
    keep[types == 1] = of_images
    layout = Layout.of(ids, inputs["image_grid_thw"], model.config)
    assert torch.equal(layout.columns(kept), keep)
    request = Request(ids, inputs["pixel_values"], inputs["image_grid_thw"], mask, layout, [0.5] * 3)
    short = shorten(request, positions, kept, "original", pad_id=0)
    prompt = read_prompt(ids, mask, inputs["question_mask"], grids, samples_of_images(types, grids))
    slots = 32
    starts = range(0, slots * len(kept), slots)
    made = plan(prompt, [len(one) for one in kept], starts, 200, model.config.image_token_id)
    cells = torch.stack([torch.nn.functional.pad(one, (0, slots - len(one))) for one in kept]).flatten()
    widths = torch.tensor([w for _, w in grids]).repeat_interleave(slots)
    places = places_of(made.base_BM, made.visual_BM, cells, widths, "original")
    for row in range(3):
        real, length = short.attention_mask[row].bool(), int(made.lengths_B[row])
        assert torch.equal(made.ids_BM[row, :length], short.input_ids[row][real])
        assert torch.equal(places[:, row, :length], short.position_ids[1:, row][:, real])
        assert int(made.next_B[row]) == int(short.position_ids[1, row, -1]) + 1


def test_pooled_patches_are_the_pooled_image():
    geometry = encoding.Geometry(mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    inputs = tiny.inputs(ONE, LARGE)
    grids = cells_of(inputs["image_grid_thw"], 2)
    canvases = selecting.Pixels(inputs["pixel_values"]).canvases(grids, geometry)
    rows = inputs["pixel_values"].split([4 * h * w for h, w in grids])
    for image, grid in enumerate(grids):
        wanted = canvas_of(encoding.unpatchify(rows[image], grid, geometry), grid)
        made = canvases[image][None]
        assert close(made[:, :3], wanted.rgb_B3hw)
        assert close(made[:, 3:4], wanted.luma_B1hw)
        assert close(made[:, 4:], wanted.luma_squared_B1hw)


def test_an_image_is_pooled_and_shrunk_as_its_patches_are(monkeypatch):
    geometry = encoding.Geometry()
    image = torch.randint(0, 256, (3, 96, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = encoding.patchify(image[None] / 255, geometry)[0]
    monkeypatch.setattr(selecting, "CHUNK", 7)  # parts of the image: a row of five cells at a time
    held, cut = selecting.Pixels(rows, [image]), selecting.Pixels(rows)
    for one, other in zip(held.canvases([(3, 5)], geometry), cut.canvases([(3, 5)], geometry), strict=True):
        assert one.shape == (5, 12, 20)
        assert close(one, other)
    assert close(held.shrunk([(3, 5)], [0], (64, 96), geometry), cut.shrunk([(3, 5)], [0], (64, 96), geometry))


def test_shrunk_patches_are_the_shrunk_image():
    geometry = encoding.Geometry(mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    inputs = tiny.inputs(LARGE)
    (grid,) = cells_of(inputs["image_grid_thw"], 2)
    image = encoding.unpatchify(inputs["pixel_values"], grid, geometry)
    wanted = torch.nn.functional.interpolate(image.unsqueeze(0), size=(96, 128), mode="area")
    assert close(selecting.Pixels(inputs["pixel_values"]).shrunk([grid], [0], (96, 128), geometry), wanted)


def test_choosing_a_fixed_number_reads_nothing_back():
    ours = wrapped()
    relevance = torch.stack([tiny.scattered((6, 7)), tiny.scattered((6, 7)).flip(0)])
    judgement = Judgement({}, Balance(relevance, torch.ones(2, 3), torch.full((2, 3), 0.3)), relevance.sum((1, 2)))
    wanted = ours.selector.choose(judgement, torch.tensor([11, 11])).keep_BHW.flatten(1)
    with NoHostReads():
        made = selecting.choose_padded(ours.selector, judgement, torch.full((2,), 11), 11)["cells"]
    assert made.shape == (2, 11)
    for row in range(2):
        assert torch.equal(made[row], wanted[row].nonzero().squeeze(1))


# ---------------------------------------------------------------- generating


def test_rows_end_at_their_own_end_token():
    ours = wrapped()
    inputs = tiny.inputs(ONE, TWO, LATER)
    tokens, _ = plain(ours, inputs, 0.4)
    ends = [int(tokens[0, 2]), int(tokens[1, 4])]
    options = {"max_new_tokens": NEW, "eos_token_id": ends, "keep": 0.4}
    fast = ours.generate(**inputs, **options)
    assert ours.fast_runner is not None
    ours.fast = False
    assert torch.equal(fast, ours.generate(**inputs, **options))
    made = fast.shape[1] - inputs["input_ids"].shape[1]
    assert (fast[0, -1] == ours.model.generation_config.pad_token_id) or made < tokens.shape[1]


def test_sampling_is_done_outside_with_the_same_draws():
    ours = wrapped()
    inputs = tiny.inputs(ONE, TWO)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 1.5, "top_k": 20, "top_p": 0.9, "keep": 0.4}
    torch.manual_seed(3)
    fast = ours.generate(**inputs, **options)
    assert ours.fast_runner is not None
    ours.fast = False
    torch.manual_seed(3)
    assert torch.equal(fast, ours.generate(**inputs, **options))
    greedy = ours.generate(**inputs, keep=0.4, max_new_tokens=NEW, do_sample=False)
    assert not torch.equal(fast, greedy)


class After(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **_):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


class Listener:
    def __init__(self):
        self.seen, self.ended = [], False

    def put(self, value):
        self.seen.append(value)

    def end(self):
        self.ended = True


def test_streamers_and_stopping_criteria_are_served():
    ours = wrapped()
    inputs = tiny.inputs(ONE)
    length = inputs["input_ids"].shape[1]
    listener = Listener()
    made = ours.generate(
        **inputs, keep=0.4, max_new_tokens=NEW, streamer=listener, stopping_criteria=[After(length + 3)]
    )
    assert made.shape[1] == length + 3
    assert torch.equal(listener.seen[0], inputs["input_ids"])
    assert torch.cat(listener.seen[1:]).tolist() == made[0, length:].tolist()
    assert listener.ended


def test_ask_and_stream_take_the_fast_path():
    ours = wrapped()
    fast = ours.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=6)
    assert len(ours.fast_runner.recordings) > 0
    made = ours.fast_runner.recordings.statistics.made
    assert "".join(ours.stream(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=6)) == fast.text
    assert ours.fast_runner.recordings.statistics.made == made, "the second time everything was recorded"
    ours.fast = False
    slow = ours.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=6)
    assert fast.text == slow.text
    assert torch.equal(fast.selection[0].kept, slow.selection[0].kept)
    assert {"select", "vision", "prefill", "generate"} == set(fast.timings_ms)
    assert ours.notices == ["the ARR-COC layer is untrained: its choice hardly depends on the question"]


def test_what_was_handed_out_is_not_overwritten():
    ours = wrapped()
    first = ours.ask(tiny.picture(), "what is this?", keep=6, max_new_tokens=2)
    kept, relevance = first.selection[0].kept.clone(), first.selection[0].relevance.clone()
    ours.ask(tiny.picture(seed=9), "and this?", keep=6, max_new_tokens=2)
    assert torch.equal(first.selection[0].kept, kept)
    assert torch.equal(first.selection[0].relevance, relevance)


def test_new_weights_void_the_recordings():
    ours = wrapped()
    inputs = tiny.inputs(ONE)
    options = {"keep": 0.4, "max_new_tokens": NEW}
    before = ours.generate(**inputs, **options)
    ours.model.load_state_dict(tiny.stock(seed=5).state_dict(), assign=True)
    ours.model.tie_weights()
    after = ours.generate(**inputs, **options)
    assert not torch.equal(before, after)
    ours.fast = False
    assert torch.equal(after, ours.generate(**inputs, **options))


# ---------------------------------------------------------------- recordings


def doubled(tensors):
    return {"y": tensors["x"] * 2}


def make_of(size):
    return lambda: (doubled, {"x": torch.ones(size)})


def test_a_recording_copies_in_and_overwrites_its_results():
    recording = Rerunner().record(doubled, {"x": torch.ones(3)})
    first = recording(x=torch.arange(3.0))["y"]
    assert first.tolist() == [0, 2, 4]
    again = recording(x=torch.ones(3))["y"]
    assert again is first
    assert first.tolist() == [2, 2, 2]
    assert recording.size == 24


def test_the_recording_unused_for_longest_goes_when_the_cap_is_reached():
    kept = Recordings(Rerunner(), most_bytes=3 * 800)
    for name in "abc":
        kept.get(name, make_of(100))
    kept.get("a", make_of(100))
    kept.get("d", make_of(100))
    assert [name in kept for name in "abcd"] == [True, False, True, True]
    assert kept.size == 2400
    kept.get("large", make_of(250))
    assert kept.size <= 2400
    assert "large" in kept
    too_large = kept.get("too large", make_of(1000))
    assert too_large(x=torch.ones(1000))["y"].sum() == 2000
    assert "too large" not in kept
    assert kept.get("too large", make_of(1000))(x=torch.ones(1000))["y"].sum() == 2000
    assert kept.statistics.made == 6, "it is not recorded again"
    statistics = kept.statistics
    assert (statistics.hits, statistics.made, statistics.too_large) == (1, 6, 1)
    assert statistics.dropped == 4
    few = Recordings(Rerunner(), 1 << 20, most=2)
    for name in "abc":
        few.get(name, make_of(1))
    assert len(few) == 2


def test_what_several_recordings_keep_alive_counts_once():
    shared = torch.zeros(1000)
    kept = Recordings(Rerunner(), most_bytes=1 << 20)
    kept.get("a", make_of(1), shared)
    kept.get("b", make_of(1), shared)
    assert kept.size == 4000 + 2 * 8


class Broken:
    name = "broken"

    def record(self, function, inputs, kept_alive=None, beside=False):
        raise RuntimeError("operation not permitted when stream is capturing")

    def join(self):
        pass

    def reset(self):
        pass


def test_what_cannot_be_captured_runs_all_the_same():
    fast = assert_equal_paths(wrapped(), [ONE], [0.4], Broken())
    assert len(fast.recordings.statistics.failed) == 5
    assert all("capturing" in reason for reason in fast.recordings.statistics.failed.values())


class FakeCuda:
    """What CudaRecorder uses of torch.cuda, without a GPU: notes what is called, in order."""

    def __init__(self, monkeypatch, fails=False):
        self.calls, self.fails, self.reserved = [], fails, iter([1000, 1500])
        for name in ("Stream", "CUDAGraph", "current_stream", "graph", "stream", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: next(self.reserved))
        for name in ("synchronize", "empty_cache"):
            monkeypatch.setattr(torch.cuda, name, lambda *_, name=name: self.calls.append(name))

    def Stream(self, _):
        return self

    def wait_stream(self, _):
        self.calls.append("wait")

    def current_stream(self, _):
        return self

    def graph_pool_handle(self):
        self.calls.append("pool")
        return f"pool {self.calls.count('pool')}"

    def CUDAGraph(self):
        return self

    def replay(self):
        self.calls.append("replay")

    @contextmanager
    def stream(self, _):
        self.calls.append("side stream")
        yield

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        assert stream is self
        self.calls.append(f"capture in {pool}, {capture_error_mode}")
        yield
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_warms_up_on_a_side_stream_and_shares_one_pool(monkeypatch):
    fake, runs = FakeCuda(monkeypatch), []

    def function(tensors):
        runs.append(len(fake.calls))
        return {"y": tensors["x"] + 1}

    recorder = CudaRecorder(torch.device("cuda"))
    recording = recorder.record(function, {"x": torch.zeros(4)}, kept_alive="table")
    order = ["wait", "side stream", "wait", "synchronize", "empty_cache", "capture in pool 1, thread_local"]
    assert fake.calls == ["pool", "pool", *order]
    assert runs == [4, 4, 8], "twice on the side stream, then while capturing"
    assert recording.outputs["y"].tolist() == [1, 1, 1, 1], "what is captured writes to the results' own buffer"
    assert recording.size == 2 * 16 + 500
    assert recording.kept_alive == "table"
    assert recording(x=torch.ones(4)) is recording.outputs
    assert fake.calls[-2:] == [order[-1], "replay"]
    assert recording.inputs["x"].tolist() == [1, 1, 1, 1]


def test_what_runs_beside_has_a_pool_and_a_stream_of_its_own(monkeypatch):
    fake = FakeCuda(monkeypatch)
    recorder = CudaRecorder(torch.device("cuda"))
    recording = recorder.record(lambda t: {"y": t["x"] + 1}, {"x": torch.zeros(4)}, beside=True)
    assert fake.calls[-1] == "capture in pool 2, thread_local"
    recording(x=torch.ones(4))
    recorder.join()
    assert fake.calls[-4:] == ["wait", "side stream", "replay", "wait"], "for its inputs, and then it is waited for"


class Late(Rerunner):
    """Runs what is beside as late as it may."""

    def __init__(self):
        self.waiting = []

    def record(self, function, inputs, kept_alive=None, beside=False):
        made = super().record(function, inputs, kept_alive)
        return replace(made, replay=lambda: self.waiting.append(made.replay)) if beside else made

    def join(self):
        for replay in self.waiting:
            replay()
        self.waiting.clear()


@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
@pytest.mark.parametrize("batch", ["one", "three grids out of order"])
def test_what_runs_beside_is_waited_for(batch, selector):
    assert_equal_paths(wrapped("sparse", selector), *BATCHES[batch], Late())


def test_a_capture_that_fails_leaves_its_pool(monkeypatch):
    FakeCuda(monkeypatch, fails=True)
    recorder = CudaRecorder(torch.device("cuda"))
    kept = Recordings(recorder, 1 << 20)
    assert kept.get("a", make_of(3))(x=torch.ones(3))["y"].tolist() == [2, 2, 2]
    assert recorder.pools == ("pool 3", "pool 4")
    assert "capturing" in kept.statistics.failed["a"]
    assert "a" in kept, "it is not tried again"


def test_a_small_cap_costs_time_and_nothing_else():
    ours = wrapped()
    inputs = tiny.inputs(ONE, TWO)
    wanted, _ = plain(ours, inputs, [0.4, 9])
    fast = FastRunner(ours.model, most_bytes=60_000)
    for _ in range(3):
        made = fast.run(ours.looker(), ours.encoding, inputs, [0.4, 9], Picking(NEW, (), 0))
        assert torch.equal(made.new_BT, wanted)
        assert fast.recordings.size <= 60_000
    assert fast.recordings.statistics.dropped > 0


def test_images_of_other_sizes_share_the_vision_and_language_recordings():
    ours = wrapped()
    fast = FastRunner(ours.model)
    for size in ((160, 128), (384, 320), (64, 512)):
        inputs = tiny.inputs(Conversation([tiny.picture(*size)], "what is this?"))
        fast.run(ours.looker(), ours.encoding, inputs, [16], Picking(NEW, (), 0))
    kinds = [key[0] for key in fast.recordings._kept]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "textures": 3,
        "judge": 3,
        "see": 1,
        "decode": 1,
        "prefill": 1,
    }


def test_the_strict_recorder_notices_a_host_read():
    for function in (
        lambda t: {"y": t["x"] * float(t["x"].sum())},
        lambda t: {"y": t["x"][t["x"] > 0]},
        lambda t: {"y": t["x"] + torch.tensor([1.0])},
        lambda t: {"y": t["x"].nonzero()},
    ):
        with pytest.raises(RuntimeError, match="inside of a recording"):
            StrictRecorder().record(function, {"x": torch.ones(2)})


# ---------------------------------------------------------------- rules

PLAIN = {"max_new_tokens": 4}
REASONS = {
    "output_attentions": ({}, {**PLAIN, "output_attentions": True, "return_dict_in_generate": True}),
    "num_beams": ({}, {**PLAIN, "num_beams": 2}),
    "repetition_penalty": ({}, {**PLAIN, "repetition_penalty": 1.3}),
    "generation_config": ({}, {"generation_config": GenerationConfig(max_new_tokens=4, pad_token_id=0)}),
    "max_length": ({}, {"max_length": 200}),
    "straight_through": ({"straight_through": True}, PLAIN),
    "pooling='lm'": ({"pooling": "lm"}, PLAIN),
    "encoding='weighted'": ({"how": "weighted"}, PLAIN),
    "original_image": ({}, {**PLAIN, "original_image": tiny.picture()}),
    "the selector 'fixed'": ({"selector": tiny.FixedSelector(tiny.scattered)}, PLAIN),
}


@pytest.mark.parametrize("reason", REASONS)
def test_where_it_cannot_go_the_plain_path_answers_and_it_says_so_once(reason):
    changes, options = REASONS[reason]
    ours = wrapped(**changes)
    inputs = tiny.inputs(ONE)
    made = [ours.generate(**inputs, keep=0.4, **options) for _ in range(2)]
    assert ours.fast_runner is None
    told = [line for line in ours.notices if "fast path" in line]
    assert len(told) == 1
    assert reason in told[0]
    ours.fast = False
    wanted = ours.generate(**inputs, keep=0.4, **options)
    made, wanted = (one if isinstance(one, torch.Tensor) else one.sequences for one in (made[0], wanted))
    assert torch.equal(made, wanted)


def test_models_that_it_does_not_know():
    assert why_not_model(tiny.stock()) is None
    assert "Moe" in why_not_model(tiny.stock(moe=True))
    model = tiny.stock()
    model.config.vision_config._attn_implementation = "homemade"
    assert "homemade" in why_not_model(model)
    model = tiny.stock()
    model.model.language_model.layers[0].self_attn.q_proj = torch.nn.Sequential(torch.nn.Linear(32, 32))
    assert "Sequential" in why_not_model(model)
    model = tiny.stock()
    model.model.visual.register_forward_hook(lambda *_: None)
    assert "hooks" in why_not_model(model)
    model = tiny.stock()
    model.model.language_model.rotary_emb.rope_type = "yarn"
    assert "yarn" in why_not_model(model)


def test_training_takes_the_plain_path():
    ours = wrapped().train()
    ours.generate(**tiny.inputs(ONE), keep=0.4, **PLAIN)
    assert any("trained" in line for line in ours.notices if "fast" in line)


def test_all_tokens_kept_is_the_plain_path_without_a_word():
    ours = wrapped()
    inputs = tiny.inputs(ONE)
    made = ours.generate(**inputs, keep=1.0, **PLAIN)
    assert torch.equal(made, ours.model.generate(**tiny.stock_inputs(inputs), **PLAIN))
    assert ours.fast_runner is None
    assert ours.notices == []


def test_it_is_off_by_default_on_a_cpu():
    assert tiny.wrapped(tiny.stock()).fast is False
    assert tiny.wrapped(tiny.stock(), fast=True).fast is True


def test_scores_that_are_not_finite_go_to_the_plain_path():
    ours = wrapped()
    ours.layer.knowing.perspectival.bias.data.fill_(float("nan"))
    answer = ours.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=3)
    assert answer.tokens_kept == answer.tokens_total
    assert any("not finite" in line for line in ours.notices)


def test_a_prompt_that_ends_with_an_image():
    ours = wrapped()
    inputs = tiny.inputs(ONE)
    end = int((inputs["input_ids"][0] == ours.model.config.image_token_id).nonzero().max()) + 1
    cut = {n: v[:, :end] if n not in ("pixel_values", "image_grid_thw") else v for n, v in inputs.items()}
    ours.generate(**cut, keep=0.4, **PLAIN)
    assert any("ends with an image" in line for line in ours.notices)


def test_picking_follows_the_models_own_settings():
    model = tiny.stock()
    model.generation_config.eos_token_id = [3, 4]
    model.generation_config.pad_token_id = None
    picking = picking_of(model, {"max_new_tokens": 5, "num_beams": 1, "use_cache": True})
    assert (picking.most, picking.ends, picking.pad_id, picking.warpers) == (5, (3, 4), 3, None)
    assert picking_of(model, {"max_new_tokens": 5, "do_sample": True}).warpers is not None
    assert picking_of(model, {}) == "max_new_tokens is not given"
    assert ids_of(torch.tensor([1, 2])) == (1, 2)
    assert ids_of(None) == ()


# ---------------------------------------------------------------- buckets and break-even


@given(st.integers(0, 100_000))
def test_buckets_hold_what_they_are_given_and_not_much_more(size):
    for bucket, steps in ((buckets.budget_bucket, buckets.BUDGETS), (buckets.text_bucket, buckets.TEXTS)):
        assert bucket(size) >= size
        assert bucket(bucket(size)) == bucket(size)
        if size > steps[-1]:
            assert bucket(size) <= 1.125 * size
        assert bucket(size) <= bucket(size + 1)
    assert buckets.capacity_bucket(size) % 8 == 0
    assert buckets.capacity_bucket(size) >= size


def test_common_budgets_and_grids_are_not_padded():
    for tokens in (64, 96, 128, 200, 256, 400, 512, 768, 1024, 4096, 16384):
        assert buckets.budget_bucket(tokens) == tokens


def test_below_the_break_even_auto_keeps_all_and_says_so():
    for fast in (False, True):
        ours = wrapped()
        ours.fast, ours.break_even = fast, 50
        answer = ours.ask(tiny.picture(), "what is this?", keep="auto", max_new_tokens=2)
        assert answer.tokens_kept == answer.tokens_total == 20
        assert "under 50 visual tokens" in answer.selection[0].reason
        told = ours.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=2)
        assert told.tokens_kept == 8
        ours.break_even = 0
        assert ours.ask(tiny.picture(), "what is this?", keep="auto", max_new_tokens=2).tokens_kept < 20


def test_the_break_even_of_a_row_is_its_own():
    keeps, small = keep_small_whole(["auto", "auto", 0.5, "auto"], [100, 300, 100, 0], 256)
    assert keeps == [1.0, "auto", 0.5, "auto"]
    assert [bool(why) for why in small] == [True, False, False, False]
    cpu = torch.device("cpu")
    assert break_even_tokens(cpu, recorded=True, looks=1) == 0
    assert break_even_tokens(cpu, recorded=False, looks=2) > 64, "the small copy of 64 cells is the image itself"
    assert break_even_tokens(cpu, recorded=False, looks=2, known=7) == 7
    mixed = wrapped()
    mixed.break_even = 50
    inputs = tiny.inputs(ONE, LARGE)
    inputs.pop("mm_token_type_ids")
    for images in (mixed.prepare(**inputs, keep="auto").images, mixed.serve(inputs, "auto", PLAIN).images):
        assert images[0][0].tokens_kept == images[0][0].tokens_total
        assert "under 50" in images[0][0].reason
        assert images[1][0].tokens_kept < images[1][0].tokens_total


@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
def test_mini_answers_alike(selector):
    ours = ARRCOCQwen.from_pretrained("mini", device="cpu", fast=True, selector=selector)
    for keep in (64, 0.25):
        fast = ours.ask(sample_image(), "What colour is the hand?", keep=keep)
        ours.fast = False
        slow = ours.ask(sample_image(), "What colour is the hand?", keep=keep)
        ours.fast = True
        assert fast.text == slow.text
        assert np.array_equal(fast.selection[0].kept.numpy(), slow.selection[0].kept.numpy())
