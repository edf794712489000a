"""Pictures: their sizes, what is where in them, and that numbers and words say what the picture says."""

import base64
import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc import viewing
from arr_coc.attending import TokenAllocator
from arr_coc.config import SCORERS, TENSIONS
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.viewing.cards import choice_words
from arr_coc.viewing.heatmaps import MARGIN as SHEET_MARGIN
from arr_coc.viewing.heatmaps import colour_bar, cut_of, number, sheet, weight_told
from arr_coc.viewing.latency import COLOURS, ratio_words, stage_times
from arr_coc.viewing.overlays import RELEVANT, border, outline
from arr_coc.viewing.paper import INK, LONGEST, PAPER, above, beside, colour_map, fitted, font, wrap
from arr_coc.viewing.saving import is_ours, refuse_others, save_picture, save_table
from arr_coc.viewing.warping import homunculus_page, mesh

GRID = (4, 5)
SIZES = [(160, 128), (40, 30), (900, 20), (20, 900), (1, 1)]  # px


def picture(width: int = 160, height: int = 128) -> Image.Image:
    values = np.random.default_rng(0).integers(60, 200, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def test_labels_of_a_sheet_stay_in_their_column():
    tile = Image.new("RGB", (96, 200), "black")
    labels = ("information: how much is there", "a_word_that_is_longer_than_the_tile_is_wide", "x")
    drawn = np.asarray(sheet([(label, tile) for label in labels], tile.size, columns=3))
    step = 96 + SHEET_MARGIN
    for gap in range(len(labels) + 1):
        assert (drawn[:, gap * step : gap * step + SHEET_MARGIN] == PAPER).all()
    assert (drawn[:, SHEET_MARGIN : SHEET_MARGIN + 96] == 0).all(-1).all(-1).sum() == 200  # no label upon a tile


def selection(kept=8, grid=GRID, explore=0.0, diversify=0.0, seed=0, smooth=True) -> ImageSelection:
    """As the allocator chooses, from maps that have structure."""
    torch.manual_seed(seed)
    maps = {name: torch.rand(grid) for name in SCORERS}
    relevance = maps["participatory"] * 0.3
    if smooth:
        relevance[: grid[0] // 2, : grid[1] // 2] += 0.6
    tensions = torch.tensor([[0.5, explore, diversify]])
    allocation = TokenAllocator()(relevance[None], tensions, torch.tensor([kept]))
    strategy, reason = allocation.strategy(0)
    indices = allocation.keep_BHW[0].flatten().nonzero().squeeze(-1)
    named = dict(zip(TENSIONS, tensions[0].tolist(), strict=True))
    covered = allocation.covered_BHW[0].flatten()[indices]
    weights = dict.fromkeys(SCORERS, 0.5)
    return ImageSelection(grid, indices, relevance, maps, weights, named, strategy, reason, covered=covered)


def whole(grid=GRID) -> ImageSelection:
    return ImageSelection(grid, torch.arange(grid[0] * grid[1]), None, {}, {}, {}, "keep_all", "all were asked for")


def answer(made: ImageSelection, text: str = "green", images: int = 1) -> Answer:
    return Answer(text, [made] * images, images * made.tokens_total, images * made.tokens_kept, {})


# ---------------------------------------------------------------- overlays


@pytest.mark.parametrize("size", SIZES)
def test_overlays_are_as_large_as_the_image(size):
    made = selection()
    image = picture(*size)
    drawn = [
        viewing.kept_overlay(image, made.mask),
        viewing.heat_overlay(image, made.relevance),
        viewing.homunculus(image, made.relevance),
        viewing.evidence_overlay(image, made.mask, [(0.1, 0.1, 0.5, 0.5)]),
        *viewing.before_after(image, made),
    ]
    assert {(one.size, one.mode) for one in drawn} == {(size, "RGB")}


def test_kept_cells_are_the_image_and_dropped_ones_are_not():
    image, made = picture(), selection()
    difference = (np.asarray(image) != np.asarray(viewing.kept_overlay(image, made.mask))).any(-1)
    cells = difference.reshape(4, 32, 5, 32)[:, 4:28, :, 4:28].mean((1, 3))  # without the line around them
    assert np.array_equal(cells == 0, made.mask.numpy())
    assert cells[~made.mask.numpy()].min() > 0.9
    assert viewing.before_after(image, made)[0] == image
    assert viewing.kept_overlay(image, torch.ones(GRID, dtype=torch.bool)) == image, "nothing to tell apart"


def middles(drawn: Image.Image) -> np.ndarray:
    """Colours of the middles of cells, `[H, W, 3]`."""
    return np.asarray(drawn, dtype=int).reshape(4, 32, 5, 32, 3)[:, 16, :, 16]


def test_cells_kept_for_coverage_are_tinted_and_have_no_line():
    grey = Image.new("RGB", (160, 128), (128, 128, 128))
    made = selection(10, explore=0.6)
    relevant, covered = (made.mask & ~made.covered_mask).numpy(), made.covered_mask.numpy()
    assert covered.any()
    assert relevant.any()
    drawn = viewing.choice_overlay(grey, made)
    colours = middles(drawn)
    assert (colours[relevant] == 128).all()
    assert (colours[covered][:, 2] > colours[covered][:, 0] + 40).all(), "blue"
    assert (np.ptp(colours[~made.mask.numpy()], axis=-1) == 0).all(), "grey"
    orange = (np.asarray(drawn) == RELEVANT).all(-1).reshape(4, 32, 5, 32)[:, 6:26, :, 6:26].any((1, 3))
    assert not orange.any(), "a line stays at the rim of its cells"
    lined = (np.asarray(drawn) == RELEVANT).all(-1).reshape(4, 32, 5, 32).any((1, 3))
    assert (lined | ~relevant).any()
    assert middles(viewing.evidence_overlay(grey, made.mask, [], None, made.covered_mask)).tolist() == colours.tolist()


def test_with_a_small_copy_dropped_cells_are_blurred_and_no_darker():
    image, made = picture(), replace(selection(), periphery=(2, 2))
    seen = np.asarray(viewing.kept_overlay(image, made.mask, made.periphery), dtype=float)
    pixels, kept = np.asarray(image, dtype=float), made.mask.numpy().repeat(32, 0).repeat(32, 1)
    off_lines = np.tile(np.pad(np.ones((22, 22), dtype=bool), 5), (4, 5))
    assert np.array_equal(seen[kept & off_lines], pixels[kept & off_lines])
    kept |= ~off_lines
    assert np.abs(seen[~kept] - pixels[~kept]).max() > 0
    assert abs(seen[~kept].mean() - pixels[~kept].mean()) < 3
    assert made.why.endswith("a small copy of the whole image, 2 x 2 tokens")
    assert np.abs(np.diff(seen, axis=0))[~kept[1:]].mean() < np.abs(np.diff(pixels, axis=0))[~kept[1:]].mean()
    assert viewing.before_after(image, made)[1] == viewing.kept_overlay(image, made.mask, (2, 2))
    assert (made.cells_kept, made.tokens_kept) == (int(made.mask.sum()), int(made.mask.sum()) + 4)


def test_evidence_boxes_in_shares_and_in_px_are_the_same_line():
    image, made = picture(), selection()
    shares = viewing.evidence_overlay(image, made.mask, [(0.25, 0.25, 0.5, 0.75)])
    assert shares == viewing.evidence_overlay(image, made.mask, [(40, 32, 80, 96)])
    changed = (np.asarray(shares) != np.asarray(viewing.kept_overlay(image, made.mask))).any(-1)
    assert changed[30, 40:81].all()
    assert changed[32:97, 82].all()
    assert not changed[32:97, 40:81].any(), "the line runs through what it is about"
    rim = viewing.evidence_overlay(image, made.mask, [(0, 0, 160, 128)])  # nowhere outside to go
    assert (np.asarray(rim) != np.asarray(viewing.kept_overlay(image, made.mask))).any(-1)[[1, -2], 2:].all()
    assert viewing.evidence_overlay(image, made.mask, []) == viewing.kept_overlay(image, made.mask)


@given(st.integers(0, 2**12 - 1))
def test_the_border_is_every_edge_between_kept_and_dropped(bits):
    kept = torch.tensor([bits >> place & 1 for place in range(12)], dtype=torch.bool).view(3, 4)
    edges = set()
    for x0, y0, x1, y1 in border(kept):
        edges |= {("h", x, y0) for x in range(x0, x1)} | {("v", x0, y) for y in range(y0, y1)}
    at = lambda y, x: bool(0 <= y < 3 and 0 <= x < 4 and kept[y, x])  # noqa: E731
    across = {("h", x, y) for y in range(4) for x in range(4) if at(y, x) != at(y - 1, x)}
    down = {("v", x, y) for y in range(3) for x in range(5) if at(y, x) != at(y, x - 1)}
    assert edges == across | down


def test_an_outline_shows_on_light_and_on_dark():
    kept = torch.zeros(4, 5, dtype=torch.bool)
    kept[1:3, 1:3] = True
    for ground in ("white", "black"):
        plain = Image.new("RGB", (160, 128), ground)
        changed = (np.asarray(outline(plain, kept)) != np.asarray(plain)).any(-1)
        assert changed[30:35, 40:90].any(0).all()
        assert not changed[48:80, 48:80].any()


# ---------------------------------------------------------------- pictures with text


@pytest.mark.parametrize("size", SIZES)
def test_every_picture_can_be_drawn_of_any_image(size):
    image, made = picture(*size), selection()
    drawn = [
        viewing.heatmap(image, made.relevance, kept_HW=made.mask, title="relevance"),
        viewing.scorer_panels(image, made),
        viewing.scorer_panels(image, whole()),
        viewing.questions_row(image, [("Which word?", answer(made)), ("What is it?" * 30, answer(whole(), "x" * 500))]),
        viewing.difference(image, made, whole()),
        viewing.answer_card([image], "Which word?", answer(made)),
        viewing.answer_card([image, image], "Which word?" * 30, answer(made, "y" * 500, 2)),
        viewing.answer_card([image], "Which word?", answer(whole()), [made.relevance]),
        homunculus_page(image, made.relevance),
    ]
    for one in drawn:
        pixels = np.asarray(one)
        assert one.mode == "RGB"
        rim = np.concatenate([pixels[:8].reshape(-1, 3), pixels[-8:].reshape(-1, 3), pixels[:, :8].reshape(-1, 3)])
        assert (rim == PAPER).all(), "paper all around"


def test_an_image_is_not_enlarged_needlessly():
    assert fitted(picture(300, 200)).size == (300, 200)
    assert fitted(picture(1280, 640)).size == (LONGEST, LONGEST // 2)
    assert fitted(picture(100, 50)).size == (300, 150), "a tiny one by a whole factor"


def test_the_heatmap_has_a_bar_and_the_cut_in_its_place():
    made = selection()
    assert cut_of(made.relevance, 8) == made.relevance.flatten().sort(descending=True).values[7]
    assert cut_of(torch.tensor([[0.5, 0.1]]), 1) == 0.5
    bar = np.asarray(colour_bar(200, 0.0, 1.0, 0.75))
    assert tuple(bar[0, 0]) == tuple(np.asarray(colour_map(torch.ones(1, 1)))[0, 0])
    assert tuple(bar[-1, 0]) == tuple(np.asarray(colour_map(torch.zeros(1, 1)))[0, 0])
    marked = np.flatnonzero((bar[:, 2] == INK).all(-1))
    assert marked.tolist() == [49, 50, 51], "a quarter from the top"
    assert not (np.asarray(colour_bar(200, 0.0, 1.0, None))[:, 2] == INK).all(-1).any()
    plain = viewing.heatmap(picture(), made.relevance)
    assert plain.height < viewing.heatmap(picture(), made.relevance, kept_HW=made.mask).height


@pytest.mark.parametrize(("value", "words"), [(0.0, "0.000"), (1e-5, "< 0.001"), (0.0005, "0.001"), (0.75, "0.750")])
def test_small_numbers_are_not_zero(value, words):
    assert number(value) == words


def test_a_map_that_is_flat_or_not_finite_is_drawn():
    for values in (torch.full(GRID, 0.5), torch.full(GRID, float("nan"))):
        assert viewing.heatmap(picture(), values, kept_HW=selection().mask).mode == "RGB"
        assert viewing.homunculus(picture(), values) == viewing.homunculus(picture(), torch.zeros(GRID))


def test_a_card_grows_with_what_it_says():
    """Question, answer, tokens and legend each take their room; nothing is written over the image."""
    image, made = picture(480, 384), selection(10, explore=0.6)
    plain = viewing.kept_page([image], [made])
    question, card = viewing.headed(plain, "Why?"), viewing.answer_card([image], "Why?", answer(made))
    assert plain.height < question.height < viewing.headed(plain, "Why?", "so").height < card.height
    assert viewing.headed(plain, " ") == plain
    at = card.height - plain.height
    assert card.crop((0, at, plain.width, card.height)) == plain
    assert plain.crop((18, 18, 498, 402)) == viewing.choice_overlay(image, made)
    assert choice_words([made, made]) == {
        "relevant": f"kept for relevance: {2 * (10 - made.cells_covered)}",
        "covered": f"kept for coverage: {2 * made.cells_covered}",
        "dropped": "dropped: 20",
    }
    assert choice_words([replace(made, periphery=(2, 2))])["copied"] == "seen in the small copy alone: 10"
    assert choice_words([replace(made, strategy="divprune", covered=None)])["relevant"] == "kept by divprune: 10"
    assert choice_words([whole()]) == {"whole": "all 20 cells were kept"}
    assert len(viewing.choice_legend([made])) == 3


def ways(exponents: tuple[float, ...]) -> ImageSelection:
    """Three maps over 2 x 2 cells, each with a cell of its own, and one that all of them want."""
    maps = {name: torch.full((2, 2), 0.1) for name in SCORERS}
    for place, name in enumerate(SCORERS):
        maps[name].view(-1)[[place, 3]] = 0.9
    weights = dict(zip(SCORERS, exponents, strict=True))
    relevance = torch.stack([maps[name].logit() * weights[name] for name in SCORERS]).sum(0).sigmoid()
    return ImageSelection((2, 2), torch.tensor([2, 3]), relevance, maps, weights, {}, "relevance", "")


def test_each_cell_says_which_way_spoke_for_it():
    made = ways((1.0, 1.0, 2.0))
    assert made.spoke == ["information", "perspectival", "participatory", "participatory"]
    whole = sum(made.voices.values())
    odds = made.relevance.logit()
    assert torch.allclose(whole - whole.mean(), odds - odds.mean(), atol=2e-3)
    assert viewing.token_rows(made)[2]["why"] == "kept: rank 2 by relevance; what the question wants spoke for it"


@pytest.mark.parametrize(
    ("exponents", "told"),
    [
        ((0.0, 0.0, 1.0), "almost only what the question wants"),
        ((0.5, 2.0, 0.1), "mostly what stands out, then how much is there"),
        ((1.0, 0.1, 0.9), "how much is there and what the question wants alike"),
        ((0.0, 0.0, 0.0), ""),
    ],
)
def test_the_exponents_are_told_in_words(exponents, told):
    assert ways(exponents).balance == told


def test_maps_that_are_no_ways_of_knowing_have_no_voice():
    made = replace(ways((1.0, 1.0, 1.0)), maps={"question words": torch.ones(2, 2)}, weights={"question words": 1.0})
    assert made.voices == {}
    assert made.spoke == []
    assert made.balance == ""


def test_scorers_without_weight_are_grey():
    image, made = picture(), selection()
    colours = lambda drawn: np.ptp(np.asarray(drawn, dtype=int), axis=-1).max()  # noqa: E731
    used, unused = (viewing.heatmap(image, made.relevance, weight=weight) for weight in (0.5, 0.001))
    assert used.size == unused.size
    assert colours(used) > 60 > 8 > colours(unused)
    assert weight_told(0.001) == "no say in this question"
    assert weight_told(0.25) == "exponent 0.25"
    half = replace(made, weights=dict(zip(SCORERS, (0.0, 0.0, 1.0), strict=True)))
    left = (0, 0, 400, 360)
    assert colours(viewing.scorer_panels(image, made).crop(left)) > 60
    assert colours(viewing.scorer_panels(image, half).crop(left)) < 12


def test_scorers_and_no_scorers_differ():
    """Four panels side by side, or one and a sentence."""
    image = picture()
    assert viewing.scorer_panels(image, selection()).width > 3 * viewing.scorer_panels(image, whole()).width / 2
    other = selection()
    other = ImageSelection(GRID, other.kept, other.relevance, {"question words": other.relevance},
                           {"question words": 1.0}, other.tensions, "relevance", "why")  # fmt: skip
    assert viewing.scorer_panels(image, other).width == viewing.scorer_panels(image, whole()).width


def test_the_row_of_questions_has_a_column_for_each():
    image, made = picture(300, 200), selection()
    one = viewing.questions_row(image, [("Why?", answer(made))])
    three = viewing.questions_row(image, [("Why?", answer(made))] * 3)
    assert three.height == one.height
    assert three.width == 3 * one.width - 2 * (36 - 24)
    with pytest.raises(ValueError, match="at least one"):
        viewing.questions_row(image, [])


@given(st.text(max_size=200), st.integers(20, 300), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_wrapped_text_fits(text, width, most):
    face = font(16)
    lines = wrap(text, width, face, most)
    assert len(lines) <= most
    assert all(face.getlength(line) <= width or len(line) == 1 for line in lines)
    if not lines or not lines[-1].endswith("..."):
        assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["a" * 20_000, "a " * 20_000])
def test_a_text_without_end_is_measured_as_far_as_it_is_shown(text):
    """A server writes questions of strangers upon pictures."""

    class Face:
        measured = 0

        def getlength(self, text):
            self.measured += len(text)
            return 8 * len(text)

    face = Face()
    assert len(wrap(text, 300, face, 4)) == 4
    assert face.measured < 100 * len(text)


def test_blocks_keep_their_places():
    red, blue = Image.new("RGB", (10, 20), "red"), Image.new("RGB", (30, 5), "blue")
    row, column = beside([red, blue], gap=4), above([red, blue], gap=4)
    assert (row.size, column.size) == ((44, 20), (30, 29))
    assert row.getpixel((14, 0)) == column.getpixel((0, 24)) == (0, 0, 255)
    assert row.getpixel((12, 0)) == column.getpixel((0, 21)) == PAPER


# ---------------------------------------------------------------- the homunculus


def test_without_relevance_the_homunculus_is_the_image():
    image = picture(64, 48).resize((320, 240), Image.Resampling.BICUBIC)
    flat = np.asarray(viewing.homunculus(image, torch.full((6, 8), 0.3)), dtype=int)
    assert np.abs(flat - np.asarray(image, dtype=int)).mean() < 1.5


def test_large_pictures_are_made_of_bands_without_a_seam(monkeypatch):
    image, made = picture(90, 150), selection()
    at_once = viewing.homunculus(image, made.relevance)
    monkeypatch.setattr("arr_coc.viewing.warping.BAND", 7)
    assert viewing.homunculus(image, made.relevance) == at_once


maps = st.integers(1, 6).flatmap(
    lambda h: st.integers(1, 6).flatmap(
        lambda w: st.lists(st.floats(0, 1), min_size=h * w, max_size=h * w).map(lambda v: torch.tensor(v).view(h, w))
    )
)


def cell_areas(relevance):
    """The area of each cell in the homunculus as a share of the picture; they sum to 1."""
    y, x = mesh(relevance)
    widths = np.diff(x, axis=1)
    return np.diff(y)[:, None] * (widths[:-1] + widths[1:]) / 2


@given(maps)
def test_the_mesh_never_folds(relevance):
    y, x = mesh(relevance)
    assert (np.diff(y) > 0).all()
    assert (np.diff(x, axis=1) > 0).all()
    assert (y[0], y[-1]) == (0, 1)
    assert cell_areas(relevance).sum() == pytest.approx(1)


@given(maps, st.data())
def test_a_cell_grows_with_its_relevance(relevance, data):
    row, column = data.draw(st.integers(0, relevance.shape[0] - 1)), data.draw(st.integers(0, relevance.shape[1] - 1))
    more = relevance.clone()
    more[row, column] = data.draw(st.floats(float(relevance[row, column]), 1))
    before, after = cell_areas(relevance)[row, column], cell_areas(more)[row, column]
    assert after >= before - 1e-9
    if relevance.shape[1] > 1 and more[row, column] > relevance[row, column] + 0.01:
        assert after > before


def test_the_relevant_cell_takes_its_room_in_the_picture():
    image = Image.new("RGB", (160, 128), "white")
    image.paste("red", (64, 32, 96, 64))
    relevance = torch.zeros(GRID)
    relevance[1, 2] = 1
    red = (np.asarray(viewing.homunculus(image, relevance))[..., 1] < 128).sum()
    assert red == pytest.approx(cell_areas(relevance)[1, 2] * 160 * 128, rel=0.1)
    assert red > 3 * 32 * 32


# ---------------------------------------------------------------- slider, latency, difference


def test_the_slider_is_one_page_with_both_pictures_inside():
    image = picture()
    page = viewing.slider_html(*viewing.before_after(image, selection()))
    inside = re.findall(r'src="data:image/webp;base64,([^"]+)"', page)
    assert [Image.open(io.BytesIO(base64.b64decode(one))).size for one in inside] == [image.size] * 2
    assert not re.search(r"https?:|<script|<link|url\(", page)
    with pytest.raises(ValueError, match="one size"):
        viewing.slider_html(image, picture(10, 10))
    made = selection(10, explore=0.6)
    told = viewing.slider_page(image, "Is 1 < 2 & <b>?", answer(made, "<i>yes"))
    for words in (
        "Is 1 &lt; 2 &amp; &lt;b&gt;?",
        "Answer: &lt;i&gt;yes",
        "10 of 20 visual tokens (50 % kept)",
        made.why,
    ):
        assert words in told, words
    assert all(f"<li class='{name}'>{words}</li>" in told for name, words in choice_words([made]).items())


def test_times_by_stage_add_up_to_the_whole_answer():
    plain = {"question": 1.0, "texture": 2.0, "vision": 10.0, "first layers": 4.0, "generate": 20.0, "prefill": 5.0}
    assert stage_times(plain) == {"select": 3.0, "vision": 10.0, "prefill": 9.0, "decode": 15.0}
    assert sum(stage_times(plain).values()) == sum(plain.values()) - plain["prefill"]
    assert stage_times({}) == {"select": 0, "vision": 0, "prefill": 0, "decode": 0}


@pytest.mark.parametrize(
    ("total", "first", "words"),
    [(50, 100, "2.00 times as fast"), (150, 100, "1.50 times as slow"), (100, 100, "as fast as"), (0, 1, "as fast as")],
)
def test_ratios_say_their_direction(total, first, words):
    assert ratio_words(total, first).startswith(words)


def test_bars_are_as_long_as_their_times():
    rows = {"all": {"vision": 80.0, "prefill": 20.0}, "few": {"select": 10.0, "vision": 40.0}}
    pixels = np.asarray(viewing.latency_bars(rows))
    for stage, lengths in {"vision": {416, 208}, "prefill": {104}, "select": {52}}.items():
        counts = (pixels == COLOURS[stage]).all(-1).sum(1)
        for length in lengths:  # less the paper between parts
            assert ((counts <= length) & (counts >= length - 3)).any(), (stage, length)
    assert viewing.latency_bars({"one": {}}).mode == "RGB"
    with pytest.raises(ValueError, match="at least one"):
        viewing.latency_bars({})


def test_a_difference_tells_apart_without_colour():
    image = Image.new("RGB", (160, 128), (128, 128, 128))
    first, second = selection(6, seed=1), selection(6, seed=2, smooth=False)
    drawn = viewing.difference(image, first, second).convert("L").crop((18, 18, 178 + 18, 128 + 18))
    assert len(set(np.asarray(drawn)[40:60].flatten().tolist())) > 3
    same = viewing.difference(image, first, first)
    assert same.size == viewing.difference(image, first, second).size
    with pytest.raises(ValueError, match="one image"):
        viewing.difference(image, first, selection(grid=(3, 3)))


# ---------------------------------------------------------------- rows of cells


def test_a_row_for_every_cell_with_every_map():
    made = selection()
    rows = viewing.token_rows(made)
    assert [row["index"] for row in rows] == list(range(20))
    assert [(row["y"], row["x"]) for row in rows] == [(y, x) for y in range(4) for x in range(5)]
    assert torch.tensor([row["kept"] for row in rows]).equal(made.mask.flatten())
    for name, values in {**made.maps, "relevance": made.relevance}.items():
        assert torch.tensor([row[name] for row in rows]).equal(values.flatten())
    by_rank = sorted((row for row in rows if row["kept"]), key=lambda row: -row["relevance"])
    assert [row["why"].partition(";")[0] for row in by_rank] == [
        f"kept: rank {rank} by relevance" for rank in range(1, 9)
    ]
    assert {row["why"] for row in rows if not row["kept"]} == {"dropped: below the cut"}


@given(st.integers(1, 20), st.floats(0, 1), st.floats(0, 1), st.integers(0, 5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_reason_agrees_with_the_choice(kept, explore, diversify, seed, smooth):
    made = selection(kept, explore=explore, diversify=diversify, seed=seed, smooth=smooth)
    for row in viewing.token_rows(made):
        assert row["why"].startswith("kept: " if row["kept"] else "dropped: ")
        assert row["covered"] == row["why"].startswith("kept: coverage")
        assert row["kept"] or not row["covered"]
    covered, relevant = made.cells_covered, made.cells_kept - made.cells_covered
    assert f"{relevant} cell" in made.why or covered in (0, kept) or made.strategy == "half_even"
    assert not covered or str(covered) in made.why or made.strategy == "even_grid"


def test_coverage_and_suppression_are_named():
    whys = {row["why"] for row in viewing.token_rows(selection(10, explore=0.6))}
    assert "kept: coverage, what relevance left of the budget" in whys
    whys = {row["why"].split(" by relevance")[-1] for row in viewing.token_rows(selection(4, diversify=1.0))}
    assert ", beside a more relevant cell" in whys
    assert {row["why"] for row in viewing.token_rows(whole())} == {"kept: all were asked for"}
    assert viewing.token_rows(whole())[0]["relevance"] is None


# ---------------------------------------------------------------- files


def test_only_our_own_files_are_written_over(tmp_path):
    save_picture(picture(), tmp_path / "ours.png")
    picture().save(tmp_path / "theirs.png")
    save_table(viewing.token_rows(selection()), tmp_path / "ours.csv")
    (tmp_path / "theirs.csv").write_text("a,b\n1,2\n")
    (tmp_path / "ours.html").write_text(viewing.slider_html(picture(), picture()))
    (tmp_path / "theirs.html").write_text("<html></html>")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    for path in tmp_path.iterdir():
        assert is_ours(path) == (path.stem == "ours"), path.name
    refuse_others([tmp_path / "new.png", tmp_path / "ours.png"], force=False)
    refuse_others([tmp_path / "theirs.png"], force=True)
    with pytest.raises(ValueError, match="--force"):
        refuse_others([tmp_path / "theirs.png"], force=False)
    with pytest.raises(ValueError, match="folder"):
        refuse_others([tmp_path], force=True)


def test_a_table_can_be_read_back(tmp_path):
    rows = viewing.token_rows(selection())
    save_table(rows, tmp_path / "tokens.csv")
    with (tmp_path / "tokens.csv").open(newline="") as file:
        back = list(csv.DictReader(file))
    assert [row["why"] for row in back] == [row["why"] for row in rows]
    assert [float(row["relevance"]) for row in back] == [row["relevance"] for row in rows]
