"""Looking twice: the first look is the stock model's own attention, is remembered rightly, and meets the textures."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from arr_coc import texture
from arr_coc.balancing import multiply
from arr_coc.config import ARRCOCConfig, FirstLook
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen, vision
from arr_coc.qwen.compact import with_small_images
from arr_coc.qwen.memory import Memory, content_key
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.request import Request
from arr_coc.qwen.shapes import sight_dims
from arr_coc.records import QuestionTokens
from arr_coc.selectors import View, make_selector
from arr_coc.selectors.look_twice import above_ground, with_neighbours
from arr_coc.texture import texture_pyramid
from arr_coc.timing import Stopwatch

LARGE = FirstLook(least=4, most=9)
ONE = Conversation([tiny.picture(160, 128)], "what is this?")
TWO = Conversation([tiny.picture(96, 160, 1), tiny.picture(128, 128, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(128, 192, 3)], "and now?", history=[("look at it first", "a thing")])
BATCHES = {"one": [ONE], "two images": [TWO], "history": [LATER], "left-padded batch": [ONE, TWO, LATER]}


def looks_twice(stock=None, **settings):
    model = tiny.wrapped(stock or tiny.stock(), selector="look_twice")
    model.selector.first_look = replace(LARGE, **settings)
    return model


def request_of(model, *conversations, keep=0.3):
    inputs = tiny.inputs(*conversations)
    inputs.pop("mm_token_type_ids")
    given = [inputs.pop(name) for name in ("input_ids", "pixel_values", "image_grid_thw", "attention_mask")]
    return Request.of(model.model.config, model.device, *given, keep, None, **inputs)


def first_look(model, request, **options):
    looker = model.looker()
    return looker.first_looker().look(request, looker.pixels(request), **options).view["attended_BN"]


@torch.no_grad()
def stock_attention(model, request, layers):
    """Attention of each row's last token, mean over heads and first layers, by the stock model over small images."""
    looker = model.looker()
    grids = [model.selector.first_look.grid(grid) for grid in request.layout.grids]
    images = looker.pixels(request)
    rows = [vision.glance_rows(image[None], grid, model.geometry)[0] for image, grid in zip(images, grids, strict=True)]
    small, _ = with_small_images(request, grids, model.model.config, 0, rows)
    with tiny.eager_attention(model.model):
        output = model.model(
            input_ids=small.input_ids,
            attention_mask=small.attention_mask,
            mm_token_type_ids=small.layout.types_BL,
            pixel_values=small.pixel_values,
            image_grid_thw=small.image_grid_thw,
            output_attentions=True,
        )
    mean_BL = torch.stack([layer[:, :, -1].mean(1) for layer in output.attentions[:layers]]).mean(0)
    found = mean_BL[small.layout.types_BL == 1].split([height * width for height, width in grids])
    return [one.view(grid) for one, grid in zip(found, grids, strict=True)]


@pytest.mark.parametrize("depth", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_first_look_is_the_stock_models_own_attention(batch, depth):
    model = looks_twice(depth=depth)
    request = request_of(model, *BATCHES[batch])
    wanted = stock_attention(model, request, round(4 * depth))
    found = first_look(model, request)
    for ours, theirs, grid in zip(found, wanted, request.layout.grids, strict=True):
        up = torch.nn.functional.interpolate(theirs[None, None], size=grid, mode="bilinear")[0, 0].flatten()
        torch.testing.assert_close(ours * grid[0] * grid[1] / theirs.numel(), up, rtol=1e-4, atol=1e-7)


def test_a_model_that_shows_no_attention_is_read_all_the_same():
    """As flash kernels are: only queries and keys are needed."""

    def silent(*args, **kwargs):
        return sdpa_attention_forward(*args, **kwargs)[0], None

    AttentionInterface.register("shows_nothing", silent)
    AttentionMaskInterface.register("shows_nothing", sdpa_mask)
    plain, other = looks_twice(), looks_twice(tiny.stock("shows_nothing"))
    request = request_of(plain, ONE, TWO)
    for one, two in zip(first_look(plain, request), first_look(other, request), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("moe", [False, True])
@torch.no_grad()
def test_a_batch_keeps_what_its_rows_keep_alone(moe):
    model = looks_twice(tiny.stock(moe=moe))
    together = model(**tiny.inputs(ONE, TWO, LATER), keep=0.3, output_arr_coc_info=True).arr_coc.images
    for row, conversation in enumerate((ONE, TWO, LATER)):
        alone = model(**tiny.inputs(conversation), keep=0.3, output_arr_coc_info=True).arr_coc.images[0]
        for one, other in zip(together[row], alone, strict=True):
            torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-4, atol=1e-5)
            assert one.kept.tolist() == other.kept.tolist()


def test_streamed_is_what_is_asked():
    model, picture = looks_twice(), tiny.picture(160, 128)
    whole = model.ask(picture, "what is this?", keep=0.3, max_new_tokens=8).text
    assert "".join(model.stream(picture, "what is this?", keep=0.3, max_new_tokens=8)) == whole


def test_half_precision_chooses_and_does_not_fall_back():
    model = looks_twice(tiny.stock().to(torch.bfloat16)).to(torch.bfloat16)
    chosen = model.choose(tiny.picture(160, 128), "what is this?", keep=0.3)[0]
    assert chosen.strategy != "keep_all"
    assert chosen.relevance.dtype == torch.float32


def test_a_second_question_runs_neither_the_vision_encoder_nor_the_prefix_again(monkeypatch):
    model, fresh = looks_twice(), looks_twice()
    picture = tiny.picture(160, 128)
    model.ask(picture, "what is this?", keep=0.3, max_new_tokens=1)
    lengths, images = [], []
    layer = model.model.model.language_model.layers[0]
    layer.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    model.model.model.visual.register_forward_pre_hook(lambda _, args: images.append(args[0].shape[0]))
    again = model.ask(picture, "and that?", keep=0.3, max_new_tokens=1)
    anew = fresh.ask(picture, "and that?", keep=0.3, max_new_tokens=1)
    assert again.selection[0].kept.tolist() == anew.selection[0].kept.tolist()
    torch.testing.assert_close(again.selection[0].relevance, anew.selection[0].relevance, rtol=1e-4, atol=1e-6)
    words = len(tiny.tokenizer()("and that?")["input_ids"])
    assert lengths[0] <= words + 16, "the suffix: the question and the template after the image"
    assert images == [4 * again.tokens_kept], "the windows alone"


def test_other_pixels_or_other_weights_are_seen_anew():
    model = looks_twice()
    picture, question = tiny.picture(160, 128), "what is this?"
    before = model.choose(picture, question, keep=0.3)[0].relevance
    changed = np.array(picture)
    changed[:64, :64] = 0
    assert not torch.equal(model.choose(Image.fromarray(changed), question, keep=0.3)[0].relevance, before)
    assert torch.equal(model.choose(picture, question, keep=0.3)[0].relevance, before)
    with torch.no_grad():
        model.model.model.visual.patch_embed.proj.weight.mul_(-1)
    fresh = looks_twice(model.model)
    changed = model.choose(picture, question, keep=0.3)[0].relevance
    assert not torch.equal(changed, before)
    torch.testing.assert_close(changed, fresh.choose(picture, question, keep=0.3)[0].relevance)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_memory_never_holds_more_than_it_may(puts):
    memory = Memory(100)
    for key, size in puts:
        memory.put(key, [torch.zeros(size, dtype=torch.uint8)])
        assert memory.size <= 100
        held = [memory.get(one) for one in range(6)]
        assert memory.size == sum(one[0].nbytes for one in held if one is not None)
        assert memory.get(key) is not None
    memory.put("large", [torch.zeros(101, dtype=torch.uint8)])
    memory.put(None, [torch.zeros(1)])
    assert memory.get("large") is None
    assert memory.get(None) is None


def test_a_key_tells_every_pixel_the_shape_and_the_kind():
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    other = image.clone()
    other[2, 7, 7] = 1
    keys = [content_key(one) for one in (image, other, image.view(3, 4, 16), image.float())]
    assert len(set(keys)) == 4
    assert content_key(image) == content_key(image.clone())
    assert content_key(image.to("meta")) is None


# ---------------------------------------------------------------- the small copy


@given(st.integers(1, 400), st.integers(1, 400))
@settings(max_examples=200, deadline=None)
def test_a_small_copy_is_never_larger_than_the_image_and_keeps_its_shape(height, width):
    small = FirstLook().grid((height, width))
    assert 1 <= small[0] <= height
    assert 1 <= small[1] <= width
    if height * width <= 64:
        assert small == (height, width)
    if min(small) >= 4 and height * width > 64:
        assert 32 <= small[0] * small[1] <= 300
        assert 0.7 < small[0] * width / (small[1] * height) < 1.4


def test_a_small_copy_has_half_of_the_side_within_its_bounds():
    look = FirstLook()
    assert [look.grid((side, side)) for side in (16, 32, 64, 128)] == [(8, 8), (16, 16), (16, 16), (16, 16)]
    with pytest.raises(ValueError, match="least <= most"):
        FirstLook(least=9, most=4)
    with pytest.raises(ValueError, match="depth"):
        FirstLook(depth=0.0)


SIZES = {
    "smaller than the copy": (64, 64),
    "one row": (32, 640),
    "a column": (640, 32),
    "50 megapixels": (10_000, 5_000),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_small_and_long_images_are_looked_at(size):
    model = looks_twice()
    answer = model.ask(Image.new("RGB", size, "white"), "what is this?", keep=0.5, max_new_tokens=2)
    assert 0 < answer.tokens_kept <= answer.tokens_total
    assert answer.selection[0].strategy != "keep_all"


def test_a_question_of_ten_thousand_words_is_read():
    model = looks_twice(depth=0.25)
    request = request_of(model, Conversation([tiny.picture(64, 96)], "why " * 2500))
    assert torch.isfinite(first_look(model, request)[0]).all()


# ---------------------------------------------------------------- the product


def test_a_product_wants_every_map_to_agree():
    scores = torch.tensor([[[[0.2, 0.4]], [[0.5, 0.5]], [[1.0, 0.25]]]])
    relevance = multiply(scores, torch.tensor([[1.0, 0.0, 1.0]]))
    torch.testing.assert_close(relevance, torch.tensor([[[0.5**0.5, 0.25**0.5]]]))
    torch.testing.assert_close(multiply(scores * 7, torch.tensor([[1.0, 0.0, 1.0]])), relevance)
    zero = multiply(torch.zeros(1, 3, 2, 2), torch.ones(1, 3))
    assert torch.isfinite(zero).all()


def view_of(attended_HW, image_3hw, asked=True):
    grid = attended_HW.shape
    question = QuestionTokens(torch.ones(1, 2, 8), torch.full((1, 2), asked))
    return View(tuple(grid), question, image_3hw.unsqueeze(0), None, attended_BN=attended_HW.flatten().unsqueeze(0))


def selector_of(**settings):
    config = ARRCOCConfig(hidden_dim=8)
    return make_selector("look_twice", config, ARRCOCLayer.from_config(config), **settings)


def scene():
    """8 x 8 cells of paper with grain, two of them with detail."""
    generator = torch.Generator().manual_seed(0)
    image = 0.8 + 0.01 * torch.randn(3, 256, 256, generator=generator)
    for row, column in ((1, 1), (5, 6)):
        image[:, 32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = (
            torch.rand(1, 32, 32, generator=generator) > 0.5
        ).float()
    return image.clamp(0, 1)


def test_attention_on_empty_ground_does_not_lead():
    """A sink draws twenty times the attention of what answers, and there is nothing to see in it."""
    attended = torch.full((8, 8), 0.01)
    attended[1, 1] = 0.05
    planted = attended.clone()
    planted[7, 0], planted[0, 7] = 1.0, 1.0
    selector = selector_of()
    for one in (attended, planted):
        judged = selector.judge(view_of(one, scene()), Stopwatch())
        assert judged.balance.relevance_BHW.flatten().argmax() == 9
    without = selector_of(information=0.0).judge(view_of(planted, scene()), Stopwatch())
    assert without.balance.relevance_BHW.flatten().argmax() != 9


def test_without_a_question_what_is_there_and_what_stands_out_decide():
    attended = torch.full((8, 8), 0.01)
    attended[7, 0] = 1.0
    judged = selector_of().judge(view_of(attended, scene(), asked=False), Stopwatch())
    assert judged.balance.weights_BS.tolist() == [[0.5, 1.0, 0.0]]
    assert judged.maps["participatory"].unique().tolist() == [1.0]
    best = judged.balance.relevance_BHW.flatten().topk(2).indices.tolist()
    assert sorted(best) == [9, 46]


def weighed(asked, attended_HW, **other):
    """The judgement of the scene, with some of what was seen of it exchanged."""
    selector = selector_of()
    seen = selector.seen(texture_pyramid(scene().unsqueeze(0), (8, 8), selector.channels_for(False)))
    return selector.weigh(seen | other, attended_HW.unsqueeze(0), torch.tensor([asked]))


def test_where_something_is_asked_gaze_changes_nothing():
    """Bit for bit, whether it was looked for or not."""
    attended, selector = torch.rand(8, 8, generator=torch.Generator().manual_seed(1)), selector_of()
    bare = selector.judge(view_of(attended, scene()), Stopwatch())
    for gathered in (0.0, 100.0):
        other = {"stands_out": torch.rand(1, 8, 8), "gathered": torch.tensor([gathered])}
        changed = weighed(True, attended, **other)
        assert torch.equal(bare.balance.relevance_BHW, changed.balance.relevance_BHW)
        assert torch.equal(bare.balance.tensions_BT, changed.balance.tensions_BT)
        assert torch.equal(bare.mass_B, changed.mass_B)
        assert all(torch.equal(one, changed.maps[name]) for name, one in bare.maps.items())
    unasked = weighed(False, attended).balance.relevance_BHW
    assert not torch.equal(unasked, weighed(False, attended, **other).balance.relevance_BHW)


@pytest.mark.parametrize("channels", [13, 40])
def test_every_set_of_channels_is_read_whether_something_is_asked_or_not(channels):
    """And what is seen for one sample does not depend on who is asked beside it."""
    stock = tiny.stock()
    config = ARRCOCConfig(hidden_dim=stock.config.text_config.hidden_size, texture_channels=channels)
    model = tiny.wrapped(stock, config=config, selector="look_twice")
    model.strict = True
    shown = [Conversation([tiny.picture(128, 128, seed)], "what?") for seed in (3, 4)]
    both, alone = tiny.inputs(*shown), [tiny.inputs(one) for one in shown]
    for inputs in (both, alone[1]):
        inputs["question_mask"][-1] = 0
    together = model.choose(both, keep=0.5)
    for one, inputs in zip(together, alone, strict=True):
        (own,) = model.choose(inputs, keep=0.5)
        assert torch.equal(one.kept, own.kept)
        torch.testing.assert_close(dict(one.maps), dict(own.maps))


def test_gaze_is_paid_for_only_where_nobody_asks(monkeypatch):
    model, picture = tiny.wrapped(tiny.stock(), selector="look_twice"), tiny.picture(128, 128, 3)
    monkeypatch.setitem(texture.FINE_CHANNELS, ("saliency",), None)
    assert model.ask(picture, "What is it?", keep=0.5, max_new_tokens=1).tokens_kept == 8
    model.strict = True
    inputs = model.encode_question(picture, "What is it?")
    inputs["question_mask"] = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    with pytest.raises(TypeError):
        model.choose(inputs, keep=0.5)


@pytest.mark.parametrize(("asked", "gathered", "explore"), [(False, 20.0, 0.0), (False, 4.0, 0.5), (True, 20.0, 0.5)])
def test_even_detail_is_a_photograph_where_gaze_gathers_and_nobody_asks(asked, gathered, explore):
    even = {"spread": torch.tensor([0.3]), "gathered": torch.tensor([gathered])}
    assert weighed(asked, torch.rand(8, 8), **even).balance.tensions_BT[0, 1] == explore


def test_exponents_are_told_and_may_be_set():
    selector = selector_of(information=2, perspectival=0.5)
    judged = selector.judge(view_of(torch.rand(8, 8), scene()), Stopwatch())
    assert judged.balance.weights_BS.tolist() == [[2.0, 0.5, 1.0]]
    assert list(judged.maps) == ["information", "perspectival", "participatory"]
    with pytest.raises(ValueError, match="0 or more"):
        selector_of(information=-1)


def test_ground_is_the_emptiest_fifth():
    information = torch.arange(10.0).view(1, 2, 5)
    assert above_ground(information).flatten().tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_cell_lends_its_attention_unless_it_is_empty():
    attended = torch.full((1, 5, 5), 0.1)
    attended[0, 2, 2] = 10
    held = torch.full((1, 5, 5), 3.0)
    lent = with_neighbours(attended, held)
    assert torch.allclose(lent[0, 1:4, 1:4], torch.tensor([1.0, 1, 1, 1, 10, 1, 1, 1, 1]).view(3, 3))
    held[0, 2, 2] = 0
    sink = with_neighbours(attended, held)
    assert torch.allclose(sink[0, 1], torch.full((5,), 0.1))
    assert sink[0, 2, 2] == pytest.approx(1.0)
    assert torch.equal(with_neighbours(attended, torch.zeros(1, 5, 5)), torch.zeros(1, 5, 5))
    assert torch.allclose(with_neighbours(attended, torch.ones(1, 5, 5), reach=0), attended)
    with pytest.raises(ValueError, match="reach=-1"):
        selector_of(reach=-1)


# ---------------------------------------------------------------- the default


def test_a_stock_folder_without_an_adapter_looks_twice_with_one_line(tmp_path, caplog):
    tiny.stock().save_pretrained(tmp_path)
    tiny.processor().save_pretrained(tmp_path)
    model = ARRCOCQwen.from_pretrained(tmp_path, encoding="sparse")
    assert model.selector.name == "look_twice"
    answer = model.ask(tiny.picture(160, 128), "what is this?", keep=0.3, max_new_tokens=2)
    assert answer.tokens_kept == round(0.3 * 20)
    assert set(answer.selection[0].weights) == {"information", "perspectival", "participatory"}
    assert len(model.notices) == 1
    assert ARRCOCQwen.from_pretrained(tmp_path).encoding == "sparse"


@pytest.mark.parametrize("fault", ["raises", "NaN"])
def test_if_the_first_look_fails_every_token_is_kept_and_the_reason_is_told(fault, monkeypatch):
    def broken(*_):
        if fault == "raises":
            raise RuntimeError("no keys")
        return torch.full((1, 4, 99), torch.nan)

    monkeypatch.setattr("arr_coc.qwen.first_look._read_suffixes", broken)
    answer = looks_twice().ask(tiny.picture(64, 96), "what?", keep=0.5, max_new_tokens=2)
    assert answer.tokens_kept == answer.tokens_total
    reason = {"raises": "choosing failed (RuntimeError)", "NaN": "the scores were not finite"}[fault]
    assert reason in answer.selection[0].reason


def test_a_model_that_learns_with_checkpoints_looks_as_one_that_is_asked():
    ours, inputs = looks_twice(), tiny.inputs(ONE, LATER)
    asked = ours(**inputs, keep=0.5).logits
    ours.train().model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    learning = ours(**inputs, keep=0.5, labels=inputs["input_ids"])
    assert torch.allclose(learning.logits, asked, atol=1e-5)
    learning.loss.backward()
    assert ours.model.model.language_model.layers[0].training


def test_a_layer_that_learns_with_its_model_does_not_see_the_answer():
    stock = tiny.stock()
    config = ARRCOCConfig(**sight_dims(stock.config, "look"), sight="look", trained=True)
    ours, inputs = tiny.wrapped(stock, config=config, selector="arr_coc"), tiny.inputs(ONE)
    told, ends = {}, {"attention_mask": 1, "question_mask": 0}
    inputs.pop("mm_token_type_ids")
    for learns in (False, True):
        ours.train(learns)
        for answer in (60, 70):
            ended = (ends | {"input_ids": answer}).items()
            row = inputs | {name: F.pad(inputs[name], (0, 3), value=end) for name, end in ended}
            (selection,) = ours.prepare(**row, keep=0.5).images[0]
            told[learns, answer] = selection.relevance
    assert torch.equal(told[True, 60], told[True, 70])
    assert not torch.equal(told[False, 60], told[False, 70])
