"""Foveated: a small copy of the image before the windows that were chosen, and context in the ViT."""

from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_qwen_equality import close
from transformers import AttentionInterface
from transformers.models.qwen3_vl.modeling_qwen3_vl import eager_attention_forward
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from arr_coc import ARRCOCConfig
from arr_coc.config import FirstLook
from arr_coc.qwen import eager, vision
from arr_coc.qwen.compact import INSERTED, PADDING
from arr_coc.qwen.periphery import CONTEXT, periphery_grid
from arr_coc.qwen.processor import Conversation

ONE = Conversation([tiny.picture(320, 256)], "what is this?")  # 8 x 10 cells
TWO = Conversation([tiny.picture(192, 192, 1), tiny.picture(192, 160, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(256, 192, 3)], "and now?", history=[("look at it first", "a thing")])
LONG, WEE = Conversation([tiny.picture(640, 32, 4)], "what?"), Conversation([tiny.picture(64, 96, 5)], "and this?")
LOOK = FirstLook(4, 16)  # small copies of a quarter of the cells, so that tiny images have room for them
WAYS = [("images", "never"), ("images", "always"), ("grid", "never"), ("grid", "always")]


def foveated(stock=None, scheme="images", context="never", selector="look_twice", **settings):
    ours = tiny.wrapped(stock or tiny.stock(), selector=selector)
    if ours.selector.first_look is not None:
        ours.selector.first_look = LOOK
    settings = {"encoding": "foveated", "periphery": scheme, "context": context, **settings}
    ours.arr_coc_config = replace(ours.arr_coc_config, **settings)
    return ours


def prepare(ours, *conversations, keep, **more):
    inputs = {name: value for name, value in tiny.inputs(*conversations).items() if name != "mm_token_type_ids"}
    with torch.no_grad():
        return ours.prepare(**inputs, keep=keep, **more)


# ---------------------------------------------------------------- equality


def small_patches(ours, inputs, image, grid, small):
    """The patches of an image's small copy."""
    rows = inputs["pixel_values"].split(inputs["image_grid_thw"].prod(-1).tolist())[image]
    return vision.glance_rows(vision.unpatchify(rows, grid, ours.geometry)[None], small, ours.geometry)[0]


def attend_to(hidden_P):
    """The ViT's attention with some patches of its one image hidden."""

    def attend(module, query, key, value, attention_mask=None, **kwargs):
        hidden = torch.where(hidden_P, torch.finfo(query.dtype).min, 0.0).view(1, 1, 1, -1)
        return eager_attention_forward(module, query, key, value, hidden, **kwargs)

    AttentionInterface.register("hidden_for_fovea", attend)


def masked_windows(stock, pixels, thw, kept_N, beside=None):
    """Tokens and levels of all cells, where attention does not see dropped patches; `beside`: small patches, places."""
    visual, side = stock.model.visual, stock.model.visual.num_grid_per_side
    taps, weights = get_vision_interpolation_indices_and_weights(thw, side, "bilinear", True, 2)
    places, hidden = get_vision_position_ids(thw, 2), ~kept_N.repeat_interleave(4)
    if beside is not None:
        patches, under = beside
        pixels, hidden = torch.cat([pixels, patches]), torch.cat([hidden, hidden.new_zeros(patches.shape[0])])
        taps, weights, places = (torch.cat([table, table[under]]) for table in (taps, weights, places))
    attend_to(hidden)
    before, visual.config._attn_implementation = visual.config._attn_implementation, "hidden_for_fovea"
    tables = {"interp_indices": taps, "interp_weights": weights, "position_ids": places}
    whole = torch.tensor([0, pixels.shape[0]], dtype=torch.int32)
    try:
        made = visual(pixels, grid_thw=thw, cu_seqlens=whole, return_dict=True, **tables)
    finally:
        visual.config._attn_implementation = before
    return [level[: kept_N.shape[0]] for level in (made.pooler_output, *made.deepstack_features)]


def under_by_hand(small, grid):
    """(y, x) in `grid` of what lies under the centre of each unit of `small`, row by row."""
    return [(int((y + 0.5) / small[0] * grid[0]), int((x + 0.5) / small[1] * grid[1]))
            for y in range(small[0]) for x in range(small[1])]  # fmt: skip


def context_by_hand(ours, inputs, number, grid):
    """Patches of an image's small copy, and the patch of the image that each stands at, both in the ViT's order."""
    height, width = CONTEXT.grid(grid)
    places = under_by_hand((2 * height, 2 * width), (2 * grid[0], 2 * grid[1]))
    under = torch.tensor([(y // 2 * grid[1] + x // 2) * 4 + y % 2 * 2 + x % 2 for y, x in places])
    order = torch.arange(4 * height * width).view(height, 2, width, 2).transpose(1, 2).flatten()
    return small_patches(ours, inputs, number, grid, (height, width)), under[order]


def features_by_hand(ours, inputs, images, context):
    """Visual tokens and levels: of the small copies, each alone, then of all cells, dropped ones unseen."""
    stock, levels = ours.model, []
    for number, image in enumerate(images):
        thw = torch.tensor([[1, 2 * image.periphery[0], 2 * image.periphery[1]]])
        made = vision.encode_dense(stock, small_patches(ours, inputs, number, image.grid, image.periphery), thw)
        levels.append([made.pooler_output[0], *(level[0] for level in made.deepstack_features)])
    rows = inputs["pixel_values"].split(inputs["image_grid_thw"].prod(-1).tolist())
    for number, image in enumerate(images):
        beside = context_by_hand(ours, inputs, number, image.grid) if context == "always" else None
        thw = inputs["image_grid_thw"][number][None]
        levels.append(masked_windows(stock, rows[number], thw, image.mask.flatten(), beside))
    made.pooler_output, *deepstack = (tuple(level) for level in zip(*levels, strict=True))
    made.deepstack_features = deepstack
    return made


def positions_by_hand(stock, inputs, images, wide, start, scheme):
    """M-RoPE's positions: the stock model's for so many images, or small copies in the coordinates of the full grid."""
    if scheme == "images":
        sizes = [image.periphery for image in images] + [image.grid for image in images]
        thw = torch.tensor([[1, 2 * height, 2 * width] for height, width in sizes])
        return stock.model.get_rope_index(wide, (wide == stock.config.image_token_id).int(), thw)[0]
    types, thw = inputs["mm_token_type_ids"], inputs["image_grid_thw"]
    plain = stock.model.get_rope_index(inputs["input_ids"], types, thw)[0][:, 0]
    cells = plain[:, types[0] == 1].split([image.tokens_total for image in images], dim=1)
    places = [torch.tensor([(0, *place) for place in under_by_hand(one.periphery, one.grid)]).T for one in images]
    copies = [corners[:, :1] + place for corners, place in zip(cells, places, strict=True)]
    return torch.cat([plain[:, :start], *copies, plain[:, start:]], dim=1).unsqueeze(1)


def by_hand(ours, inputs, images, scheme, context):
    """The untouched model on a sequence with all cells, dropped ones hidden: logits and ids of what is left."""
    stock, config = ours.model, ours.model.config
    ids = inputs["input_ids"][0].tolist()
    start = ids.index(config.image_token_id) - (scheme == "images")
    put_in = []
    for image in images:
        tokens = [config.image_token_id] * (image.periphery[0] * image.periphery[1])
        around = [config.vision_start_token_id, *tokens, config.vision_end_token_id]
        put_in += around if scheme == "images" else tokens
    wide = torch.tensor([ids[:start] + put_in + ids[start:]])
    copies = [torch.ones(image.periphery).flatten() for image in images]
    left = torch.ones_like(wide)
    left[wide == config.image_token_id] = torch.cat([*copies, *(image.mask.flatten() for image in images)]).long()
    logits = stock(
        wide,
        attention_mask=left,
        position_ids=positions_by_hand(stock, inputs, images, wide, start, scheme),
        mm_encoder_outputs={"image": features_by_hand(ours, inputs, images, context)},
    ).logits
    return logits[0, left[0].bool()], wide[0, left[0].bool()]


@pytest.mark.parametrize(("scheme", "context"), WAYS)
@pytest.mark.parametrize(("asked", "keep"), [(ONE, 40), (TWO, 36)], ids=["one image", "two images"])
@torch.no_grad()
def test_it_is_the_untouched_model_on_a_sequence_put_together_by_hand(asked, keep, scheme, context):
    ours, inputs = foveated(tiny.stock("eager"), scheme, context), tiny.inputs(asked)
    output = ours(**inputs, keep=keep, output_arr_coc_info=True)
    prepared = output.arr_coc
    assert all(image.periphery for image in prepared.images[0])
    assert sum(image.tokens_kept for image in prepared.images[0]) == keep
    wanted, ids = by_hand(ours, inputs, prepared.images[0], scheme, context)
    assert torch.equal(prepared.compact.input_ids[0], ids)
    assert close(output.logits[0], wanted)


@torch.no_grad()
def test_context_is_heard_and_not_handed_on():
    plain, heard = (foveated(encoding="sparse", context=context) for context in ("never", "always"))
    first, second = (ours(**tiny.inputs(ONE), keep=20, output_arr_coc_info=True) for ours in (plain, heard))
    assert torch.equal(first.arr_coc.compact.input_ids, second.arr_coc.compact.input_ids)
    assert not close(first.logits, second.logits)
    assert torch.equal(heard(**tiny.inputs(ONE), keep=1.0).logits, plain(**tiny.inputs(ONE), keep=1.0).logits)
    height, width = CONTEXT.grid(first.arr_coc.images[0][0].grid)
    for setting, few in (("auto", height * width), (3, 3)):
        ours = foveated(encoding="sparse", context=setting)
        for kept, same in ((few, heard), (few + 1, plain)):
            both = [one(**tiny.inputs(ONE), keep=kept).logits for one in (ours, same)]
            assert torch.equal(*both), "few windows hear a small copy, many do without"


@pytest.mark.parametrize(("scheme", "context"), WAYS)
@torch.no_grad()
def test_a_row_of_a_batch_equals_the_row_alone(scheme, context):
    ours = foveated(scheme=scheme, context=context)
    rows, keeps = [ONE, TWO, LATER, ONE, WEE, Conversation([], "only words")], [40, 36, 0.5, 1.0, 4, 0.5]
    inputs = tiny.inputs(*rows)
    inputs["labels"] = inputs["input_ids"].clone()
    together = ours(**inputs, keep=keeps, output_arr_coc_info=True)
    compact, mask = together.arr_coc.compact, together.arr_coc.attention_mask.bool()
    assert ((compact.columns == PADDING) == ~mask).all()
    assert ((compact.labels == -100) == (compact.columns < 0)).all()
    assert torch.equal(compact.labels[compact.columns >= 0], compact.input_ids[compact.columns >= 0])
    new = ours.generate(**tiny.inputs(*rows), keep=keeps, max_new_tokens=6)[:, -6:]
    for row, keep in enumerate(keeps[:-1]):
        alone = ours(**tiny.inputs(rows[row]), keep=keep, output_arr_coc_info=True)
        for image, single in zip(together.arr_coc.images[row], alone.arr_coc.images[0], strict=True):
            assert torch.equal(image.kept, single.kept)
            assert image.periphery == single.periphery
        assert close(together.logits[row][mask[row]], alone.logits[0])
        assert torch.equal(new[row], ours.generate(**tiny.inputs(rows[row]), keep=keep, max_new_tokens=6)[0, -6:])
    has = [[image.periphery is not None for image in images] for images in together.arr_coc.images]
    assert has == [[True], [True, True], [True], [False], [False], []]
    inserted = (compact.columns == INSERTED).sum(-1).tolist()
    marks = 2 if scheme == "images" else 0
    sizes = [[image.periphery[0] * image.periphery[1] + marks for image in images if image.periphery]
             for images in together.arr_coc.images]  # fmt: skip
    assert inserted == [sum(row) for row in sizes]


@torch.no_grad()
def test_right_padding_keeps_its_side():
    ours, left = foveated(), tiny.inputs(ONE, TWO)
    shift = [int((row == 0).sum()) for row in left["attention_mask"]]
    right = {
        name: torch.stack([row.roll(-by) for row, by in zip(value, shift, strict=True)]) if len(value) == 2 else value
        for name, value in left.items()
        if name != "image_grid_thw"
    } | {"image_grid_thw": left["image_grid_thw"]}
    output = ours(**right, keep=36, output_arr_coc_info=True)
    mask = output.arr_coc.attention_mask.bool()
    assert mask[:, 0].all()
    for row, asked in enumerate((ONE, TWO)):
        assert close(output.logits[row][mask[row]], ours(**tiny.inputs(asked), keep=36).logits[0])


# ---------------------------------------------------------------- what the first look did is used again


def anew(monkeypatch):
    monkeypatch.setattr(eager, "begun_alike", lambda *_: None)


@pytest.mark.parametrize(
    "depth", [0.5, 1.0]
)  # of four layers: DeepStack's last levels come before or after the second look
@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@torch.no_grad()
def test_used_again_equals_computed_anew(depth, moe, monkeypatch):
    ours = foveated(tiny.stock(moe=moe))
    ours.selector.first_look = replace(LOOK, depth=depth)
    options = {"max_new_tokens": 6, "return_dict_in_generate": True, "output_logits": True}
    asks = [([ONE], 40), ([ONE, LATER], [40, 30]), ([TWO], 54)]
    made = []
    for rows, keep in asks:
        prepared = prepare(ours, *rows, keep=keep)
        assert prepared.begun.layers == (1 if depth == 0.5 else 3)
        begun = prepared.left.shape[1]
        seen = prepared.compact.input_ids[:, :begun] == ours.model.config.image_token_id
        assert seen.any(), "small copies are in what is not computed again"
        made.append([ours(**tiny.inputs(*rows), keep=keep), ours.generate(**tiny.inputs(*rows), keep=keep, **options)])
    anew(monkeypatch)
    for (rows, keep), (output, generated) in zip(asks, made, strict=True):
        prepared = prepare(ours, *rows, keep=keep)
        assert prepared.begun is None
        wanted = ours(**tiny.inputs(*rows), keep=keep)
        real = prepared.attention_mask.bool()
        assert close(output.logits[real], wanted.logits[real])
        again = ours.generate(**tiny.inputs(*rows), keep=keep, **options)
        assert torch.equal(generated.sequences, again.sequences)
        assert close(torch.stack(generated.logits), torch.stack(again.logits))


@torch.no_grad()
def test_used_again_in_every_way_of_generating(monkeypatch):
    ours, inputs = foveated(), tiny.inputs(ONE, LATER)
    ways = [{}, {"use_cache": False}, {"num_beams": 3}, {"cache_implementation": "static"}]
    options = {"keep": [40, 30], "max_new_tokens": 5, "do_sample": False}
    made = [ours.generate(**inputs, **options, **way) for way in ways]
    inner = ours(**inputs, keep=[40, 30], output_hidden_states=True)
    cache = ours.generate(**tiny.inputs(ONE), keep=40, max_new_tokens=4, return_dict_in_generate=True).past_key_values
    long = ours.generate(
        **tiny.inputs(ONE), keep=40, max_new_tokens=6, return_dict_in_generate=True, output_logits=True
    )
    went_on = ours(input_ids=long.sequences[:, -3:-2], past_key_values=cache, use_cache=True)
    assert close(went_on.logits[:, -1], long.logits[4])
    anew(monkeypatch)
    assert len(inner.hidden_states) == 5
    for way, tokens in zip(ways, made, strict=True):
        assert torch.equal(tokens, ours.generate(**inputs, **options, **way)), way


@torch.no_grad()
def test_a_second_question_about_a_remembered_image_is_answered_as_the_first_would_be():
    warm, picture = foveated(), tiny.picture(320, 256)
    warm.ask(picture, "what is this?", keep=40, max_new_tokens=3)
    assert warm.memory.size
    second = warm.ask(picture, "and where?", keep=40, max_new_tokens=6)
    assert second.text == foveated().ask(picture, "and where?", keep=40, max_new_tokens=6).text


def test_training_computes_all_of_it_and_learns():
    ours = foveated().train()
    inputs = tiny.inputs(ONE)
    output = ours(**inputs, labels=inputs["input_ids"].clone(), keep=40, output_arr_coc_info=True)
    assert output.arr_coc.begun is None
    copy = output.arr_coc.features["image"].pooler_output[0]
    assert copy.shape[0] == 16
    assert copy.requires_grad
    output.loss.backward()
    assert ours.model.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0


# ---------------------------------------------------------------- use


@pytest.mark.parametrize("scheme", ["images", "grid"])
def test_asking_streaming_and_several_turns(scheme):
    ours = foveated(scheme=scheme)
    pictures, history = [tiny.picture(192, 192, 1), tiny.picture(192, 160, 2)], [("what are these?", "two things")]
    options = {"keep": 36, "history": history, "max_new_tokens": 8}
    answer = ours.ask(pictures, "which one?", **options)
    assert "".join(ours.stream(pictures, "which one?", **options)) == answer.text
    assert (answer.tokens_total, answer.tokens_kept) == (66, 36)
    assert answer.tokens_kept == sum(one.cells_kept + one.periphery[0] * one.periphery[1] for one in answer.selection)
    inputs = tiny.inputs(Conversation(pictures, "which one?", history=history))
    new = ours.generate(**inputs, original_image=pictures, keep=36, max_new_tokens=8)
    assert torch.equal(new[:, :-8], inputs["input_ids"]), "the caller's own prompt"
    assert tiny.tokenizer().decode(new[0, -8:], skip_special_tokens=True) == answer.text


@pytest.mark.parametrize("selector", ["arr_coc", "random", "even_grid", "look_twice"])
def test_every_selector_that_chooses_before_the_vit(selector):
    prepared = prepare(foveated(selector=selector), Conversation([tiny.picture(512, 512)], "what?"), keep=160)
    (image,) = prepared.images[0]
    assert (image.periphery, image.cells_kept) == ((4, 4), 144) if selector == "look_twice" else ((8, 8), 96)


def test_a_compact_count_of_positions_and_bfloat16():
    ours = foveated(position_policy="compact")
    positions = prepare(ours, ONE, keep=40).compact.position_ids
    assert torch.equal(positions, torch.arange(positions.shape[-1]).expand_as(positions))
    before, torch.backends.mkldnn.enabled = torch.backends.mkldnn.enabled, False  # not every CPU has its instructions
    try:
        for scheme, context in WAYS:
            half = foveated(scheme=scheme, context=context).to(torch.bfloat16)
            inputs = tiny.inputs(ONE)
            with torch.no_grad():
                output = half(**inputs, keep=40, output_arr_coc_info=True)
                assert torch.equal(half(**inputs, keep=1.0).logits, half.model(**tiny.stock_inputs(inputs)).logits)
            assert output.logits.dtype == torch.bfloat16
            assert output.arr_coc.images[0][0].tokens_kept == 40
            assert half.generate(**inputs, keep=40, max_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3
    finally:
        torch.backends.mkldnn.enabled = before


# ---------------------------------------------------------------- budgets, and input that leaves no room


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 3000))
def test_a_small_copy_takes_at_most_half(height, width, budget):
    small = FirstLook().grid((height, width))
    found = periphery_grid((height, width), small, budget)
    if budget < 8 or budget >= height * width:
        assert found is None
    else:
        assert found is not None
        assert 1 <= found[0] * found[1] <= budget // 2
        assert found[0] <= max(small[0], height)
        assert found[1] <= max(small[1], width)
        assert found == small or small[0] * small[1] > budget // 2


@pytest.mark.parametrize("asked", [LONG, WEE, ONE], ids=["one row of cells", "smaller than a glance", "plain"])
@pytest.mark.parametrize(("scheme", "context"), WAYS)
def test_any_shape_and_budget_is_kept_to(asked, scheme, context):
    ours = foveated(scheme=scheme, context=context)
    cells = prepare(ours, asked, keep=1.0).images[0][0].tokens_total
    for look in (LOOK, FirstLook()):
        ours.selector.first_look = look
        for keep in (2, 7, 8, 9, cells - 1, "auto"):
            (image,) = prepare(ours, asked, keep=keep).images[0]
            assert image.cells_kept >= 1
            if keep != "auto":
                assert image.tokens_kept == min(keep, cells)
                assert (image.periphery is None) == (min(keep, cells) < 8)


def test_where_choosing_fails_every_token_is_kept_and_nothing_is_beside(monkeypatch):
    ours, stock = foveated(), tiny.stock()
    inputs = tiny.inputs(ONE)
    with torch.no_grad():
        wanted = stock(**tiny.stock_inputs(inputs)).logits
        monkeypatch.setattr(ours.selector, "choose", lambda *_: 1 / 0)
        broken = ours(**inputs, keep=40, output_arr_coc_info=True)
        ours = foveated(selector="arr_coc")
        ours.layer.knowing.perspectival.bias.fill_(float("nan"))
        untrusted = ours(**inputs, keep=40, output_arr_coc_info=True)
    for output in (broken, untrusted):
        (image,) = output.arr_coc.images[0]
        assert (image.tokens_kept, image.periphery) == (80, None)
        assert torch.equal(output.logits, wanted)


def test_what_cannot_be_is_refused_with_a_way_out():
    for selector, message in (("divprune", "before the ViT"), ("downsampling", "resizes images")):
        with pytest.raises(ValueError, match=f"foveated.*{message}.*encoding='dense'"):
            prepare(foveated(selector=selector), ONE, keep=0.5)
    with pytest.raises(ValueError, match="periphery='beside': expected one of images, grid"):
        ARRCOCConfig(hidden_dim=8, periphery="beside")
    for setting in ("few", 0, 1.5):
        with pytest.raises(ValueError, match=f"context={setting!r}: expected one of .*never, or a number of windows"):
            ARRCOCConfig(hidden_dim=8, context=setting)
