"""Clips: exact when nothing is dropped, dropping equals masking, every timestamp stays, and one budget over time."""

from dataclasses import replace

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_qwen_equality import close, masked_vit_features, set_encoding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from arr_coc.config import ARRCOCConfig, Timing
from arr_coc.images.clips import Clip
from arr_coc.images.reader import byte_tensor
from arr_coc.qwen import vision
from arr_coc.qwen.moving import follow, moments, samples_of, steady, unseen
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.request import Hints
from arr_coc.qwen.shapes import sight_dims
from arr_coc.qwen.streaming import Standing
from arr_coc.selectors import SELECTORS

NEW = {"max_new_tokens": 24, "do_sample": False}


def clip(frames: int = 6, width: int = 96, height: int = 64, seed: int = 0) -> Clip:
    """Coarse noise that differs in every frame."""
    pictures = [byte_tensor(tiny.picture(width, height, 100 * seed + n)) for n in range(frames)]
    return Clip(torch.stack(pictures), tuple(n / 2 for n in range(frames)))


ONE = Conversation([clip()], "what moves?")
THREE = Conversation([clip(4, 64, 64, 1), clip(2, 64, 96, 2), clip(5, 96, 96, 3)], "which of these is the longest?")
MIXED = Conversation([tiny.picture(96, 96, 1), clip(4, 64, 64, 4), tiny.picture(64, 128, 2)], "what is in all of them?")
IMAGE = Conversation([tiny.picture()], "what is this?")
BATCHES = {"a clip": [ONE], "three clips": [THREE], "among images": [MIXED], "padded": [ONE, IMAGE, THREE, MIXED]}


def fixed(stock, how: str = "sparse", **settings):
    return set_encoding(tiny.wrapped(stock, selector=tiny.FixedSelector(tiny.scattered), **settings), how)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize("how", ["dense", "sparse", "foveated"])
@pytest.mark.parametrize("batch", BATCHES)
@torch.no_grad()
def test_all_kept_is_the_untouched_model_bit_for_bit(batch, how, moe):
    stock = tiny.stock("sdpa", moe)
    ours, inputs = set_encoding(tiny.wrapped(stock), how), tiny.inputs(*BATCHES[batch])
    assert torch.equal(ours(**inputs, keep=1.0).logits, stock(**tiny.stock_inputs(inputs)).logits)
    wanted = stock.generate(**tiny.stock_inputs(inputs), **NEW)
    assert tiny.varies(wanted[:, -24:])
    assert torch.equal(ours.generate(**inputs, keep=1.0, **NEW), wanted)


def features_of(stock, inputs, prepared, how):
    """The dense ViT of images and of clips, which does not see the dropped patches where the choice came before it."""
    found, kinds = {}, {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}
    for kind, names in kinds.items():
        seen = [[one for one in row if (one.clip is None) == (kind == "image")] for row in prepared.images]
        part = {"pixel_values": inputs[names[0]], "image_grid_thw": inputs[names[1]]}
        if how == "sparse":
            found[kind] = masked_vit_features(stock, part, replace(prepared, images=seen))
        else:
            found[kind] = vision.encode_dense(stock, *part.values())
    return found


@pytest.mark.parametrize("how", ["dense", "sparse"])
@torch.no_grad()
def test_dropping_equals_masking(how):
    """Also where a pair of frames keeps nothing at all."""
    stock = tiny.stock("eager")
    inputs = tiny.inputs(ONE, MIXED)
    output = fixed(stock, how)(**inputs, keep=[4, 0.3], output_arr_coc_info=True)
    prepared, columns = output.arr_coc, output.arr_coc.compact.columns
    kept = torch.zeros_like(inputs["input_ids"])
    for row in range(2):
        kept[row, columns[row][columns[row] >= 0]] = 1
    positions, _ = stock.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"], inputs["video_grid_thw"],
        inputs["attention_mask"],
    )  # fmt: skip
    full = stock(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"] * kept, position_ids=positions,
        mm_encoder_outputs=features_of(stock, inputs, prepared, how),
    ).logits  # fmt: skip
    real = columns >= 0
    wanted = full.gather(1, columns.clamp(min=0).unsqueeze(-1).expand(-1, -1, full.shape[-1]))[real]
    assert close(output.logits[real], wanted)
    assert sum(one.tokens_kept for one in prepared.images[0]) == 4


@pytest.mark.parametrize("keep", [2, 3, 0.1, 0.5, "auto"])
@torch.no_grad()
def test_every_timestamp_stays_and_what_is_kept_stands_where_it_stood(keep):
    ours, inputs = fixed(tiny.stock(), break_even=0), tiny.inputs(THREE)
    prepared = ours.prepare(**{k: v for k, v in inputs.items() if k != "mm_token_type_ids"}, keep=keep)
    compact, visual = prepared.compact, tiny.token_id("<|video_pad|>")
    text = inputs["input_ids"][inputs["input_ids"] != visual]
    assert torch.equal(compact.input_ids[compact.input_ids != visual], text)
    assert tiny.tokenizer().decode(text).count("seconds>") == 2 + 1 + 3
    whole, _ = ours.model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], None, inputs["video_grid_thw"], inputs["attention_mask"]
    )
    assert torch.equal(compact.position_ids[1:, 0], whole[:, 0, compact.columns[0]])
    if isinstance(keep, int):
        assert (compact.input_ids == visual).sum() == max(keep, 3)  # each clip has at least one


@pytest.mark.parametrize("selector", ["fixed", "look_twice", "arr_coc", "auto", "auto, trained to look"])
@torch.no_grad()
def test_a_row_of_a_batch_equals_the_row_alone(selector):
    """Where a layer that looks chooses of pictures, and looking twice of clips, they read different layers."""
    stock = tiny.stock()
    looks = ARRCOCConfig(**sight_dims(stock.config, "look"), sight="look", trained=selector != "auto")
    ours = fixed(stock) if selector == "fixed" else tiny.wrapped(stock, config=looks, selector=selector.split(",")[0])
    ours.strict = True
    rows, keeps = [ONE, IMAGE, MIXED], [5, 0.5, 0.4]
    together = ours(**tiny.inputs(*rows), keep=keeps, output_arr_coc_info=True)
    for row, (one, keep) in enumerate(zip(rows, keeps, strict=True)):
        alone = ours(**tiny.inputs(one), keep=keep, output_arr_coc_info=True)
        assert close(together.logits[row, -1], alone.logits[0, -1])
        for mine, its in zip(together.arr_coc.images[row], alone.arr_coc.images[0], strict=True):
            assert torch.equal(mine.kept, its.kept)


@pytest.mark.parametrize("name", sorted(set(SELECTORS) - {"arr_coc", "look_twice"}))
@torch.no_grad()
def test_every_selector_chooses_of_a_clip_also_where_moments_keep_nothing(name):
    ours, inputs = tiny.wrapped(tiny.stock(), selector=name), tiny.inputs(MIXED)
    ours.strict = True
    hints = Hints([[(0.0, 0.0, 0.3, 0.3)]] * 4)
    for keep in (3, 0.3):
        output = ours(**inputs, keep=keep, hints=hints, output_arr_coc_info=True)
        images = output.arr_coc.images[0]
        kept, total = sum(one.tokens_kept for one in images), sum(one.tokens_total for one in images)
        assert kept == (3 if keep == 3 else round(0.3 * total)) or ours.selector.resizes
        assert output.logits.isfinite().all()


@torch.no_grad()
def test_cache_equals_no_cache_and_a_loop_equals_generate():
    ours, inputs = fixed(tiny.stock()), tiny.inputs(ONE, MIXED)
    wanted = ours.generate(**inputs, keep=0.4, **NEW)
    assert torch.equal(ours.generate(**inputs, keep=0.4, use_cache=False, **NEW), wanted)
    output = ours(**inputs, keep=0.4, output_arr_coc_info=True, use_cache=True)
    mask, ids, cache = output.arr_coc.attention_mask, inputs["input_ids"], output.past_key_values
    logits = output.logits[:, -1]
    for _ in range(8):
        token = logits.argmax(-1, keepdim=True)
        ids, mask = torch.cat([ids, token], 1), torch.cat([mask, torch.ones_like(token)], 1)
        logits = ours(input_ids=token, attention_mask=mask, past_key_values=cache).logits[:, -1]
    assert torch.equal(ids, wanted[:, : ids.shape[1]])


@torch.no_grad()
def test_a_clip_has_one_budget_over_time():
    """All goes to the pair of frames that matters, and none of the others has to keep a cell."""

    class Late(tiny.FixedSelector):
        def judge(self, view, stopwatch):
            judgement = super().judge(view, stopwatch)
            worth = torch.tensor([0.0, 0.0, 1.0]).repeat(view.image_B3hw.shape[0] // 3)
            return replace(judgement, mass_B=judgement.mass_B * worth)

    ours = tiny.wrapped(tiny.stock(), selector=Late(tiny.scattered))
    kept = [one.tokens_kept for one in ours.choose(tiny.inputs(ONE), keep=4)]
    assert kept == [0, 0, 4]
    told = ours.choose(None, "what moves?", keep=4, video=ONE.images[0])
    assert [one.seconds for one in told] == [0.25, 1.25, 2.25]
    assert "nothing of it was kept" in told[0].why


def test_the_stock_model_takes_clips_apart_as_we_do():
    """What all of this rests on: for positions, a clip is so many images."""
    grid = torch.tensor([[3, 4, 6]])
    ids = tiny.inputs(ONE)["input_ids"]
    types = 2 * (ids == tiny.token_id("<|video_pad|>")).int()
    apart = torch.tensor([[1, 4, 6]] * 3)
    found = [Qwen3VLModel.get_rope_index(tiny.stock().model, ids, types, None, one)[0] for one in (grid, apart)]
    assert torch.equal(*found)


# ---------------------------------------------------------------- over time


def scene(*bars: int, frames: int = 2, cells: int = 4) -> torch.Tensor:
    """Moments of grey with a bright square whose left edge is in that column; -1: none. `[T, F, 3, h, w]`."""
    made = torch.full((len(bars), frames, 3, 32 * cells, 32 * cells), 0.2)
    for moment, left in zip(made, bars, strict=True):
        if left >= 0:
            moment[..., 32:64, left : left + 32] = torch.tensor([0.9, 0.5, 0.1]).view(3, 1, 1)
    return made


def motion_of(frames: torch.Tensor, **how: float):
    return follow(samples_of(frames, (4, 4)), replace(Timing(), **how))


def test_large_frames_come_at_half_their_size():
    geometry, grid = vision.Geometry(), (15, 16)
    rows = torch.rand(2 * 15 * 16 * 4, 1536, generator=torch.Generator().manual_seed(0)) * 2 - 1
    alone = vision.unpatchify(rows[: 15 * 16 * 4], grid, geometry)
    frames = vision.frames_of(rows, grid, geometry)
    assert frames.shape == (2, 2, 3, 240, 256)
    assert frames[0, 0].allclose(torch.nn.functional.avg_pool2d(alone, 2), atol=1e-6)
    assert vision.frames_of(rows[: 14 * 16 * 8], (14, 16), geometry).shape == (2, 2, 3, 448, 512)


def test_what_stands_still_is_not_new_and_what_comes_is():
    motion = motion_of(scene(-1, 32, 32, -1))
    assert motion.new_THW[0].eq(1).all()  # all begins
    assert motion.new_THW[1, 1].tolist() == [0, 1, 0, 0]
    assert motion.new_THW[2].eq(0).all()
    assert motion.new_THW[3, 1, 1] == 1  # it is gone
    assert not motion.cuts_T.any()


def test_what_moves_is_followed_and_counts_as_new_as_far_as_it_moves():
    motion = motion_of(scene(0, 32))
    (cells, samples), five = motion.traced()[1], 5
    assert samples[cells.tolist().index(five)].tolist() == list(range(16 * 4, 16 * 5))  # all of the cell to its left
    assert motion.new_THW[1, 1, 1] == 1
    assert motion_of(scene(0, 32), motion=0.0).new_THW[1, 1, 1] == 0


def test_what_comes_in_the_second_frame_of_a_moment_is_new_in_it_and_in_the_next():
    frames = scene(-1, 32, 32, 32)
    frames[1, 0] = frames[0, 0]
    assert motion_of(frames).new_THW[:, 1, 1].tolist() == [1, 1, 1, 0]


def test_slow_motion_adds_up():
    """A quarter of a cell in each moment: after four of them, what was worth much is a cell further."""
    motion = motion_of(scene(32, 40, 48, 56, 64))
    worth = torch.zeros(5, 16)
    worth[0, 5] = 1.0
    assert steady(worth, motion, 1.0)[4].nonzero().tolist() == [[6]]
    worth[:, 4:8] = 1.0
    held = unseen(worth, replace(motion, new_THW=torch.zeros(5, 4, 4)), 0.25, 4)
    assert held[0, 5] == 1.0
    assert held[4, 6] == 0.25


def test_a_camera_that_pans_makes_nothing_new_but_what_comes_into_view():
    wide = torch.rand(3, 128, 400, generator=torch.Generator().manual_seed(0))
    wide = torch.nn.functional.avg_pool2d(wide, 9, stride=1, padding=4)
    frames = torch.stack([wide[:, :, 16 * t : 16 * t + 128] for t in range(6)]).unsqueeze(1).expand(-1, 2, -1, -1, -1)
    motion = motion_of(frames)
    assert not motion.cuts_T.any()
    assert motion.new_THW[1:, :, :3].mean() < 0.2


def test_a_cut_is_found_and_nothing_is_carried_over_it():
    noise = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    noise = noise.repeat_interleave(16, 2).repeat_interleave(16, 3).unsqueeze(1)
    frames = torch.cat([noise[:1].expand(2, 2, -1, -1, -1), noise[1:].expand(2, 2, -1, -1, -1)])
    motion = motion_of(frames)
    assert motion.cuts_T.tolist() == [False, False, True, False]
    worth = torch.zeros(4, 16)
    worth[0, 3] = 1.0
    carried = steady(worth, motion, 0.5)
    assert carried[:, 3].tolist() == [1.0, 0.5, 0.0, 0.0]


def test_what_was_kept_is_worth_less_until_it_changes():
    worth = torch.zeros(4, 16)
    worth[:, 5] = 1.0
    still = motion_of(scene(32, 32, 32, 32))
    assert unseen(worth, still, 0.25, 2)[:, 5].tolist() == [1.0, 0.25, 0.25, 0.25]
    assert unseen(worth, motion_of(scene(32, 32, -1, 32)), 0.25, 2)[:, 5].tolist() == [1.0, 0.25, 1.0, 1.0]
    assert unseen(worth, still, 1.0, 2)[:, 5].eq(1).all()


def test_what_matters_is_shown_again_before_a_budget_goes_to_the_rest():
    """With a bare budget a second thing that matters comes first; only what is left over is spent on repetitions."""
    worth = torch.full((4, 16), 0.1)
    worth[:, 5], worth[1:, 6] = 1.0, 0.5
    still = motion_of(scene(32, 32, 32, 32))
    once, again = (unseen(worth, still, 0.05, 8, enough) for enough in (1.0, 0.6))
    assert once[1:, 5].lt(0.1).all()
    assert again[1:, 5:7].gt(0.1).all()
    assert moments(once, 4, 8).tolist() != [1, 2, 2, 2]
    assert moments(again, 4, 7).tolist() == [1, 2, 2, 2]
    assert again[1:, 5].lt(0.5).all()
    assert again[1, 6] == 0.5  # told for the first time


@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 6), side=st.integers(1, 5), k=st.integers(1, 200), seed=st.integers(0, 99))
def test_a_clip_keeps_exactly_its_budget(steps, side, k, seed):
    worth = torch.rand(steps, side * side, generator=torch.Generator().manual_seed(seed)).round(decimals=1)
    assert int(moments(worth, side, k).sum()) == min(k, worth.numel())


@torch.no_grad()
def test_watching_holds_so_many_moments_and_forgets_what_is_worth_least():
    ours = fixed(tiny.stock())
    watcher = ours.watch("what moves?", keep=0.5, window=4)
    with pytest.raises(ValueError, match="nothing was seen yet"):
        watcher.answer()
    still, other = tiny.picture(64, 64, 1), tiny.picture(64, 64, 2)
    seen = list(watcher.follow([still] * 12 + [other] * 2 + [still] * 12))
    assert [one.seconds for one in seen][:2] == [(0.0, 0.5), (1.0, 1.5)]
    assert [one.cut for one in seen] == [n in (6, 7) for n in range(13)]
    assert len(watcher.held) == 4
    begun = [(0.0, 0.5), (6.0, 6.5), (7.0, 7.5)]  # what happened once is not forgotten, what goes on and on is
    assert [one.seconds for one in watcher.held][:3] == begun
    assert watcher.held[-1] is seen[-1]
    watcher.see(other)
    answer = watcher.answer(max_new_tokens=3)
    assert [one.seconds for one in answer.selection] == sorted(one.seconds for one in answer.selection)
    assert len(answer.selection) == 5
    with pytest.raises(ValueError, match="window=1"):
        ours.watch("what moves?", window=1)


def test_the_tokens_of_an_answer_that_stands_are_ahead_for_as_long_as_they_are_followed():
    standing, flat = Standing([4, 5], [7], 2.0), torch.zeros(2, 8)
    prompt = torch.ones(2, 3, dtype=torch.long)

    def ahead(*said: list[int]) -> list[list[int]]:
        ids = torch.cat([prompt, torch.tensor(said).long().view(2, -1)], 1)
        return [row.nonzero().flatten().tolist() for row in standing(ids, flat)]

    for _ in range(2):  # also where the model looks again, at a prompt that is longer by as much as was said
        standing.begin()
        assert ahead([], []) == [[4], [4]]
        assert ahead([4], [3]) == [[5], []]
        assert ahead([4, 5], [3, 5]) == [[7], []]
        assert ahead([4, 5, 6], [3, 5, 6]) == [[], []]
        prompt = torch.ones(2, 6, dtype=torch.long)


@torch.no_grad()
def test_an_answer_stands_until_something_is_new():
    ours = fixed(tiny.stock())
    still, other, new = tiny.picture(64, 64, 1), tiny.picture(64, 64, 2), {"max_new_tokens": 12}
    firm, anew = (ours.watch("what moves?", keep=0.5, window=4, firm=firm) for firm in (1e30, 1.0))
    for watcher in (firm, anew):
        list(watcher.follow([still] * 4))
    own = anew.answer(**new)
    assert firm.answer(**new).text == own.text  # nothing was said before
    firm._said = anew._said = "no"
    list(firm.follow([still] * 2))
    list(anew.follow([still] * 2))
    stood = firm.answer(**new)
    assert stood.text.startswith("no")
    assert not anew.answer(**new).text.startswith("no")
    assert stood.confidence < 0.5  # that of the model, to which nothing was added
    for watcher in (firm, anew):
        assert next(watcher.follow([other] * 2)).new == 1.0
    assert firm.answer(**new).text == anew.answer(**new).text
    with pytest.raises(ValueError, match=r"firm=0\.5"):
        ours.watch("what moves?", firm=0.5)
