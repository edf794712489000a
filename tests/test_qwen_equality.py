"""Exact when it is off, and dropping equals masking when it is on."""

from dataclasses import replace

import pytest
import tiny
import torch
from transformers import AttentionInterface
from transformers.models.qwen3_vl.modeling_qwen3_vl import eager_attention_forward

from arr_coc.qwen import vision as encoding
from arr_coc.qwen.processor import Conversation

ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(128, 64, 3)], "and now?", history=[("look at it first", "a thing")])
TOLERANCE = 1e-5  # of the largest value


def set_encoding(model, name):
    model.arr_coc_config = replace(model.arr_coc_config, encoding=name)
    return model


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * other.abs().max())


BATCHES = {
    "one image": [ONE],
    "two images": [TWO],
    "text before": [LATER],
    "left-padded batch": [ONE, TWO, LATER],
}


def text_before(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Move ten text tokens in front of everything, so that the image starts late."""
    front = torch.full((batch["input_ids"].shape[0], 10), tiny.token_id("a"))
    first = {"input_ids": front, "attention_mask": front * 0 + 1, "question_mask": front.bool() & False}
    first["mm_token_type_ids"] = front * 0
    return {name: torch.cat([first[name].to(value.dtype), value], 1) if name in first else value
            for name, value in batch.items()}  # fmt: skip


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("how", ["dense", "sparse", "foveated"])
@pytest.mark.parametrize("batch", BATCHES)
@torch.no_grad()
def test_all_kept_is_the_untouched_model_bit_for_bit(batch, how, attention, moe):
    stock = tiny.stock(attention, moe)
    ours = set_encoding(tiny.wrapped(stock), how)
    inputs = tiny.inputs(*BATCHES[batch])
    if batch == "text before":
        inputs = text_before(inputs)
    theirs = stock(**tiny.stock_inputs(inputs)).logits
    assert torch.equal(ours(**inputs, keep=1.0).logits, theirs)
    new = {"max_new_tokens": 32, "do_sample": False}
    wanted = stock.generate(**tiny.stock_inputs(inputs), **new)
    assert tiny.varies(wanted[:, -32:])
    assert torch.equal(ours.generate(**inputs, keep=1.0, **new), wanted)


@torch.no_grad()
def masked_logits(stock, inputs, columns_kept, features) -> torch.Tensor:
    """The untouched model on the full sequence, dropped columns hidden from attention."""
    positions, _ = stock.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"],
        attention_mask=inputs["attention_mask"],
    )  # fmt: skip
    return stock(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"] * columns_kept,
        position_ids=positions,
        mm_encoder_outputs={"image": features},
    ).logits


@torch.no_grad()
def drop_and_mask(how: str, features_of) -> tuple[torch.Tensor, torch.Tensor]:
    """Our logits with tokens dropped, and the untouched model's with the same tokens masked, at the kept columns."""
    stock = tiny.stock("eager")
    ours = set_encoding(tiny.wrapped(stock, selector=tiny.FixedSelector(tiny.scattered)), how)
    inputs = tiny.inputs(ONE, TWO)
    output = ours(**inputs, keep=[0.4, 7], output_arr_coc_info=True)
    columns = output.arr_coc.compact.columns
    kept = torch.zeros_like(inputs["input_ids"])
    for row in range(2):
        kept[row, columns[row][columns[row] >= 0]] = 1
    assert kept.sum(-1).tolist() == [int(m.sum()) - d for m, d in zip(inputs["attention_mask"], (12, 10), strict=True)]
    full = masked_logits(stock, inputs, kept, features_of(stock, inputs, output.arr_coc))
    real = columns >= 0
    return output.logits[real], full.gather(1, columns.clamp(min=0).unsqueeze(-1).expand(-1, -1, full.shape[-1]))[real]


def dense_features(stock, inputs, prepared):
    return encoding.encode_dense(stock, inputs["pixel_values"], inputs["image_grid_thw"])


def masked_vit_features(stock, inputs, prepared):
    """The dense ViT whose attention does not see the dropped patches."""
    images = [image for sample in prepared.images for image in sample]
    kept = iter([image.mask.flatten().repeat_interleave(4) for image in images] * 4)

    def attend(module, query, key, value, attention_mask=None, **kwargs):
        hidden = torch.where(next(kept), 0.0, torch.finfo(query.dtype).min).view(1, 1, 1, -1)
        return eager_attention_forward(module, query, key, value, hidden, **kwargs)

    AttentionInterface.register("masked_for_test", attend)
    before = stock.model.visual.config._attn_implementation
    stock.model.visual.config._attn_implementation = "masked_for_test"
    try:
        return dense_features(stock, inputs, prepared)
    finally:
        stock.model.visual.config._attn_implementation = before


@pytest.mark.parametrize(("how", "features"), [("dense", dense_features), ("sparse", masked_vit_features)])
def test_dropping_equals_masking(how, features):
    dropped, masked = drop_and_mask(how, features)
    assert close(dropped, masked)


def test_sparse_is_not_dense():
    dropped, masked = drop_and_mask("sparse", dense_features)
    assert not close(dropped, masked), "the dropped patches must be out of the ViT's sight"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_deepstack_level_shifted_by_one_is_noticed(monkeypatch, level):
    take = encoding.take

    def shifted(features, indices):
        right = features.deepstack_features[level]
        features.deepstack_features[level] = tuple(tokens.roll(-1, 0) for tokens in right)
        return take(features, indices)

    monkeypatch.setattr(encoding, "take", shifted)
    dropped, masked = drop_and_mask("dense", dense_features)
    assert not close(dropped, masked)


@pytest.mark.parametrize(
    ("how", "selector"),
    [("dense", "arr_coc"), ("sparse", "arr_coc"), ("weighted", "arr_coc"), ("dense", "training_free")],
)
@torch.no_grad()
def test_a_row_of_a_batch_with_eight_budgets_equals_the_row_alone(how, selector):
    ours = set_encoding(tiny.wrapped(tiny.stock(), selector=selector), how)
    conversations = [
        Conversation([tiny.picture(96 + 32 * (n % 3), 64 + 32 * (n % 4), n)], "what is it? " * (n + 1))
        for n in range(8)
    ]
    conversations[3] = TWO
    keeps = [1.0, 0.5, 2, 3, 5, "auto", 0.25, 0.75]
    together = ours(**tiny.inputs(*conversations), keep=keeps, output_arr_coc_info=True)
    mask = together.arr_coc.attention_mask.bool()
    new = ours.generate(**tiny.inputs(*conversations), keep=keeps, max_new_tokens=6)[:, -6:]
    for row, keep in enumerate(keeps):
        alone = ours(**tiny.inputs(conversations[row]), keep=keep, output_arr_coc_info=True)
        for image, single in zip(together.arr_coc.images[row], alone.arr_coc.images[0], strict=True):
            assert torch.equal(image.kept, single.kept)
        assert close(together.logits[row][mask[row]], alone.logits[0])
        alone_new = ours.generate(**tiny.inputs(conversations[row]), keep=keep, max_new_tokens=6)[0, -6:]
        assert torch.equal(new[row], alone_new)


@torch.no_grad()
def test_kept_tokens_and_new_tokens_stand_where_they_stood():
    stock = tiny.stock()
    ours = tiny.wrapped(stock, selector=tiny.FixedSelector(tiny.scattered))
    inputs = tiny.inputs(ONE, TWO, LATER)
    seen: dict[str, list[torch.Tensor]] = {"stock": [], "ours": []}
    for name, run in (("stock", lambda: stock.generate(**tiny.stock_inputs(inputs), max_new_tokens=3)),
                      ("ours", lambda: ours.generate(**inputs, keep=0.3, max_new_tokens=3))):  # fmt: skip
        hook = stock.model.language_model.register_forward_pre_hook(
            lambda module, args, kwargs, name=name: seen[name].append(kwargs["position_ids"]), with_kwargs=True
        )
        run()
        hook.remove()
    prepared = ours.prepare(**{k: v for k, v in inputs.items() if k != "mm_token_type_ids"}, keep=0.3)
    columns, real = prepared.compact.columns, prepared.compact.columns >= 0
    for axis in (1, 2, 3):
        full = seen["stock"][0][axis].gather(1, columns.clamp(min=0))
        assert torch.equal(seen["ours"][0][axis][real], full[real])
    assert torch.equal(seen["ours"][1][1:], seen["stock"][1][1:]), "the first new token"
    assert torch.equal(seen["ours"][2][1:], seen["stock"][2][1:])
    assert torch.equal(seen["ours"][0][0][real], torch.cat([torch.arange(int(row.sum())) for row in real]))


def logits_of(ours, inputs, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """New tokens, and the logits that each was taken from."""
    out = ours.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)
    steps = len(out.logits)
    assert tiny.varies(out.sequences[:, -steps:])
    return out.sequences[:, -steps:], torch.stack(out.logits, 1)


@pytest.mark.parametrize("how", ["dense", "sparse"])
@torch.no_grad()
def test_cache_equals_no_cache(how):
    ours = set_encoding(tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered)), how)
    inputs = tiny.inputs(ONE, TWO)
    tokens, logits = logits_of(ours, inputs, keep=0.4, max_new_tokens=8)
    again, without = logits_of(ours, inputs, keep=0.4, max_new_tokens=8, use_cache=False)
    assert torch.equal(tokens, again)
    assert close(logits, without)


@torch.no_grad()
def test_a_loop_over_forward_with_a_cache_equals_generate():
    ours = tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered))
    inputs = tiny.inputs(ONE, TWO)
    wanted, wanted_logits = logits_of(ours, inputs, keep=0.4, max_new_tokens=5)
    output = ours(**inputs, keep=0.4, use_cache=True, output_arr_coc_info=True)
    mask, tokens, logits = output.arr_coc.attention_mask, [], []
    for _ in range(5):
        logits.append(output.logits[:, -1])
        tokens.append(logits[-1].argmax(-1, keepdim=True))
        mask = torch.cat([mask, mask.new_ones(2, 1)], 1)
        output = ours(input_ids=tokens[-1], attention_mask=mask, past_key_values=output.past_key_values, use_cache=True)
    assert torch.equal(torch.cat(tokens, 1), wanted)
    assert close(torch.stack(logits, 1), wanted_logits)
    with pytest.raises(ValueError, match="padded"):
        ours(input_ids=tokens[-1], past_key_values=output.past_key_values)
    with pytest.raises(ValueError, match="compact mask"):
        ours(input_ids=tokens[-1], attention_mask=mask, past_key_values=output.past_key_values)


@torch.no_grad()
def test_a_cache_from_generate_goes_on_where_it_stopped():
    """The cache of a generation is continued by hand, after other requests have used the model."""
    stock = tiny.stock()
    ours = tiny.wrapped(stock, selector=tiny.FixedSelector(tiny.scattered))
    long, logits = logits_of(ours, tiny.inputs(ONE), keep=0.4, max_new_tokens=6)
    cache = ours.generate(**tiny.inputs(ONE), keep=0.4, max_new_tokens=4, return_dict_in_generate=True).past_key_values
    stock.generate(**tiny.stock_inputs(tiny.inputs(TWO)), max_new_tokens=2)  # leaves its rope_deltas on the module
    output = ours(input_ids=long[:, 3:4], past_key_values=cache, use_cache=True)
    assert close(output.logits[:, -1], logits[:, 4])


@torch.no_grad()
def test_right_padding_keeps_its_side_and_labels_follow():
    ours = tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered))
    left = tiny.inputs(ONE, TWO)
    shift = [int((row == 0).sum()) for row in left["attention_mask"]]
    right = {
        name: torch.stack([row.roll(-s) for row, s in zip(value, shift, strict=True)])
        if value.shape[:1] == (2,)
        else value
        for name, value in left.items()
    }
    right["labels"] = right["input_ids"].masked_fill(right["attention_mask"] == 0, -100)
    output = ours(**right, keep=0.4, output_arr_coc_info=True)
    mask = output.arr_coc.attention_mask
    assert (mask[:, 0] == 1).all()
    assert (mask.diff(dim=1) <= 0).all()
    alone = ours(**tiny.inputs(TWO), keep=0.4).logits[0]
    assert close(output.logits[1][mask[1].bool()], alone)
    labels = output.arr_coc.compact.labels
    assert torch.equal(labels == -100, mask == 0)
    assert torch.equal(labels[mask.bool()], output.arr_coc.compact.input_ids[mask.bool()])
    assert output.loss.isfinite()


@torch.no_grad()
def test_compact_positions_count_what_is_left():
    ours = tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered))
    original = ours(**tiny.inputs(ONE), keep=0.4).logits
    ours.arr_coc_config = replace(ours.arr_coc_config, position_policy="compact")
    output = ours(**tiny.inputs(ONE), keep=0.4, output_arr_coc_info=True)
    positions = output.arr_coc.compact.position_ids
    assert torch.equal(positions, torch.arange(positions.shape[-1]).expand_as(positions))
    assert not close(output.logits, original)


@torch.no_grad()
def test_weighted_with_scores_that_cannot_be_trusted_is_the_stock_model():
    stock = tiny.stock()
    ours = set_encoding(tiny.wrapped(stock, selector="arr_coc"), "weighted")
    inputs = tiny.inputs(ONE)
    theirs = stock(**tiny.stock_inputs(inputs)).logits
    assert not close(ours(**inputs, keep=0.5).logits, theirs)
    assert torch.equal(ours(**inputs, keep=1.0).logits, theirs)
    ours.layer.knowing.perspectival.bias.fill_(float("nan"))
    assert torch.equal(ours(**inputs, keep=0.5).logits, theirs)


@torch.no_grad()
def test_a_model_in_bfloat16_chooses_in_fp32():
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # its bfloat16 products need instructions that not every CPU has
    try:
        ours = tiny.wrapped(tiny.stock(), selector="arr_coc").to(torch.bfloat16)
        inputs = tiny.inputs(ONE)
        output = ours(**inputs, keep=6, output_arr_coc_info=True)
        assert output.arr_coc.images[0][0].tokens_kept == 6
        assert output.arr_coc.images[0][0].relevance.dtype == torch.float32
        assert output.logits.dtype == torch.bfloat16
        theirs = ours.model(**tiny.stock_inputs(inputs)).logits
        assert torch.equal(ours(**inputs, keep=1.0).logits, theirs)
    finally:
        torch.backends.mkldnn.enabled = before


@torch.no_grad()
def test_a_batch_with_rows_without_images():
    """A row of text alone beside a row with an image: both equal themselves alone."""
    stock = tiny.stock()
    ours = tiny.wrapped(stock, selector=tiny.FixedSelector(tiny.scattered))
    inputs = tiny.inputs(Conversation([], "only words here"), ONE)
    assert torch.equal(ours(**inputs, keep=1.0).logits, stock(**tiny.stock_inputs(inputs)).logits)
    output = ours(**inputs, keep=0.4, output_arr_coc_info=True)
    mask = output.arr_coc.attention_mask.bool()
    alone = ours(input_ids=inputs["input_ids"][:1][inputs["attention_mask"][:1].bool()].unsqueeze(0)).logits[0]
    assert close(output.logits[0][mask[0]], alone)
    assert output.arr_coc.images[0] == []


def test_weighted_keeps_all_tokens_scaled_by_relevance_and_learns():
    ours = set_encoding(tiny.wrapped(tiny.stock(), selector="arr_coc"), "weighted").train()
    inputs = tiny.inputs(ONE)
    inputs["labels"] = inputs["input_ids"].clone()
    output = ours(**inputs, keep=0.25)
    assert output.logits.shape[1] == inputs["input_ids"].shape[1]
    output.loss.backward()
    for part in (ours.layer.knowing, ours.layer.balancing):
        assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in part.parameters())


@pytest.mark.parametrize("how", ["dense", "sparse"])
def test_the_gate_carries_the_answers_gradient_to_the_scorers(how):
    ours = set_encoding(tiny.wrapped(tiny.stock(), selector="arr_coc"), how)
    inputs = tiny.inputs(ONE, TWO)
    inputs["labels"] = inputs["input_ids"].clone()
    with torch.no_grad():
        plain = ours(**inputs, keep=0.5).loss
    ours.arr_coc_config = replace(ours.arr_coc_config, straight_through=True)
    loss = ours.train()(**inputs, keep=0.5).loss
    assert torch.allclose(loss, plain, rtol=1e-5)
    loss.backward()
    for name in ("information", "perspectival", "participatory"):
        scorer = getattr(ours.layer.knowing, name)
        assert all(parameter.grad.abs().sum() > 0 for parameter in scorer.parameters()), name
