"""Qwen3.5 and its mixture of experts: exact when off, and equal to the stock model on what is left when on.

Most of its layers pass a state along, so a masked token is not a dropped one there: the equality is with the stock
model on the compacted embeddings and positions.
"""

import json
from dataclasses import replace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from training_runs import metrics, run, settings

from arr_coc.qwen import ARRCOCQwen, Chooser
from arr_coc.qwen import vision as encoding
from arr_coc.qwen.family import read_layers
from arr_coc.qwen.language import answer_attention, attended
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.shapes import sight_dims

ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")
LATER = Conversation([tiny.picture(128, 64, 3)], "and now?", history=[("look at it first", "a thing")])
ATTEND = (1, 3)  # layers of the tiny model that attend
experts = pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])


def chooses(moe: bool = False, selector: object = None, how: str = "sparse") -> ARRCOCQwen:
    ours = tiny.wrapped(tiny.stock35(moe=moe), selector=selector or tiny.FixedSelector(tiny.scattered))
    ours.arr_coc_config, ours.strict = replace(ours.arr_coc_config, encoding=how), True
    return ours


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-6) -> bool:
    return bool((one - other).abs().max() <= tolerance * other.abs().max())


@experts
@pytest.mark.parametrize("how", ["dense", "sparse", "foveated"])
@pytest.mark.parametrize("batch", [[ONE], [TWO], [ONE, TWO, LATER]], ids=["one", "two images", "left-padded"])
@torch.no_grad()
def test_all_kept_is_the_untouched_model_bit_for_bit(batch, how, moe):
    ours, inputs, new = chooses(moe, how=how), tiny.inputs(*batch), {"max_new_tokens": 12, "do_sample": False}
    assert torch.equal(ours(**inputs, keep=1.0).logits, ours.model(**tiny.stock_inputs(inputs)).logits)
    wanted = ours.model.generate(**tiny.stock_inputs(inputs), **new)
    assert tiny.varies(wanted[:, -12:])
    assert torch.equal(ours.generate(**inputs, keep=1.0, **new), wanted)


@torch.no_grad()
def compacted(ours: ARRCOCQwen, conversation: Conversation, images: list) -> torch.Tensor:
    """Logits of the stock language model on embeddings and positions of a full prompt, without the dropped columns."""
    stock, inputs = ours.model, tiny.inputs(conversation)
    ids, thw = inputs["input_ids"], inputs["image_grid_thw"]
    positions, _ = stock.model.get_rope_index(ids, inputs["mm_token_type_ids"], thw)
    if ours.encoding == "dense":
        whole = stock.model.get_image_features(inputs["pixel_values"], thw, return_dict=True).pooler_output
        kept = torch.cat([tokens[image.kept] for tokens, image in zip(whole, images, strict=True)])
    else:
        seen = encoding.encode_sparse(stock, inputs["pixel_values"], thw, [image.kept for image in images])
        kept = torch.cat(seen.pooler_output)
    visual = ids[0] == stock.config.image_token_id
    stays = torch.ones_like(visual)
    stays[visual] = torch.cat([image.mask.flatten() for image in images])
    embeds = stock.get_input_embeddings()(ids[:, stays])
    embeds[0, visual[stays]] = kept
    hidden = stock.model.language_model(inputs_embeds=embeds, position_ids=positions[:, :, stays]).last_hidden_state
    return stock.lm_head(hidden)[0]


@experts
@pytest.mark.parametrize("how", ["dense", "sparse"])
@torch.no_grad()
def test_what_is_left_is_the_stock_model_on_compacted_embeddings_and_positions(how, moe):
    """Of a left-padded batch with a budget for each row, each row against its prompt alone, cut by hand."""
    ours, rows = chooses(moe, how=how), (ONE, TWO, LATER)
    keeps = [0.4, 7, 0.25]
    output = ours(**tiny.inputs(*rows), keep=keeps, output_arr_coc_info=True)
    new = ours.generate(**tiny.inputs(*rows), keep=keeps, max_new_tokens=6)[:, -6:]
    for row, conversation in enumerate(rows):
        wanted, mask = compacted(ours, conversation, output.arr_coc.images[row]), output.arr_coc.attention_mask[row]
        assert close(ours(**tiny.inputs(conversation), keep=keeps[row]).logits[0], wanted)
        # Padding shifts where a state's chunks begin, and random experts amplify that: the stock model does so too.
        assert close(output.logits[row][mask.bool()], wanted, 5e-3)
        alone = ours.generate(**tiny.inputs(conversation), keep=keeps[row], max_new_tokens=6)[0, -6:]
        assert torch.equal(new[row], alone)


@torch.no_grad()
def test_a_mask_is_not_the_same_there():
    ours, inputs = chooses(how="dense"), tiny.inputs(ONE)
    output = ours(**inputs, keep=0.4, output_arr_coc_info=True)
    columns = output.arr_coc.compact.columns[0]
    hidden = torch.zeros_like(inputs["input_ids"]).index_fill(1, columns, 1)
    stock, types = ours.model, inputs["mm_token_type_ids"]
    positions, _ = stock.model.get_rope_index(inputs["input_ids"], types, inputs["image_grid_thw"])
    masked = stock(**tiny.stock_inputs(inputs) | {"attention_mask": hidden, "position_ids": positions}).logits
    assert not close(output.logits[0], masked[0, columns], 1e-2)


@experts
@torch.no_grad()
def test_a_cache_equals_none_and_a_loop_over_forward_equals_generate(moe):
    ours, inputs = chooses(moe), tiny.inputs(ONE, TWO)
    wanted = ours.generate(**inputs, keep=0.4, max_new_tokens=5)[:, -5:]
    assert tiny.varies(wanted)
    assert torch.equal(ours.generate(**inputs, keep=0.4, max_new_tokens=5, use_cache=False)[:, -5:], wanted)
    assert torch.equal(tiny.by_hand(ours, inputs, 0.4, 5), wanted)
    beams = ours.generate(**inputs, keep=0.4, max_new_tokens=4, num_beams=3)
    alone = ours.generate(**tiny.inputs(ONE), keep=0.4, max_new_tokens=4, num_beams=3)
    assert torch.equal(beams[0, -4:], alone[0, -4:])


@experts
@torch.no_grad()
def test_attention_is_summed_over_the_layers_that_attend(moe):
    stock, inputs = tiny.stock35(moe=moe), tiny.stock_inputs(tiny.inputs(ONE, TWO))
    asks_BL = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    asks_BL[0, -1] = asks_BL[1, -3:] = True
    with tiny.eager_attention(stock):
        shown = stock(**inputs, output_attentions=True).attentions
    assert len(shown) == len(ATTEND)
    for layers, of in ((None, shown), (2, shown[:1]), (4, shown)):
        mean_BLL = torch.stack([layer.mean(1) for layer in of]).mean(0)
        found_BL = attended(stock, inputs, asks_BL, layers)
        for row, asks_L in enumerate(asks_BL):
            assert torch.allclose(found_BL[row], mean_BLL[row][asks_L].mean(0), atol=1e-6)


def test_layers_are_read_up_to_one_that_attends():
    text = tiny.config35().text_config
    assert [read_layers(wanted, text) for wanted in (1, 2, 3, 4, 5)] == [2, 2, 2, 4, 4]
    plain = tiny.config().text_config
    assert [read_layers(wanted, plain) for wanted in (1, 2, 4)] == [1, 2, 4]


@experts
@torch.no_grad()
def test_looking_twice_keeps_of_a_batch_what_its_rows_keep_alone(moe):
    ours, rows = chooses(moe, "look_twice"), (ONE, TWO, LATER)
    together = ours(**tiny.inputs(*rows), keep=0.3, output_arr_coc_info=True).arr_coc.images
    seen = set()
    for row, conversation in enumerate(rows):
        alone = ours(**tiny.inputs(conversation), keep=0.3, output_arr_coc_info=True).arr_coc.images[0]
        for one, other in zip(together[row], alone, strict=True):
            torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-4, atol=1e-5)
            assert one.kept.tolist() == other.kept.tolist()
    for asked in ("what is this?", "how many are there?"):
        inputs = tiny.inputs(replace(ONE, question=asked))
        image = ours(**inputs, keep=0.3, output_arr_coc_info=True).arr_coc.images[0][0]
        assert not image.is_fallback
        seen.add(tuple(image.maps["participatory"].flatten().tolist()))
    assert len(seen) == 2, "what is asked decides"


def test_small_copies_beside_windows_and_where_an_answer_came_from():
    ours = chooses(selector="look_twice", how="foveated")
    answer = ours.ask(tiny.picture(256, 256), "what is this?", keep=0.5, max_new_tokens=3)
    assert answer.selection[0].periphery
    assert answer.tokens_kept == 32
    told = answer_attention(ours.model, tiny.stock_inputs(tiny.inputs(TWO)), torch.tensor([5, 7]))
    assert [tuple(one.shape) for one in told] == [(3, 3), (4, 2)]


def test_what_it_cannot_do_is_refused_in_one_line():
    with pytest.raises(ValueError, match="linear attention has passed over them") as refused:
        chooses(selector="fastv", how="dense").ask(tiny.picture(), "what?", keep=0.4, max_new_tokens=1)
    assert "\n" not in str(refused.value)
    ours = chooses()
    ours.fast = True
    ours.ask(tiny.picture(), "what?", keep=0.4, max_new_tokens=1)
    assert [line for line in ours.notices if "Qwen3_5ForConditionalGeneration" in line]
    for other in ("qwen2_5_vl", "llama"):
        ours.model.config.model_type = other
        with pytest.raises(ValueError, match="expected qwen3_vl, qwen3_vl_moe, qwen3_5 or qwen3_5_moe"):
            tiny.wrapped(ours.model)
    with pytest.raises(ValueError, match="use 'glance'"):
        sight_dims(ours.model.config, "look")


@experts
def test_a_folder_is_loaded_without_what_drafts_and_a_chooser_needs_the_first_layers_alone(tmp_path, moe):
    ours = chooses(moe, "look_twice")
    ours.save_pretrained(tmp_path / "whole", save_base=True)
    weights = load_file(tmp_path / "whole" / "model.safetensors")
    save_file({**weights, "mtp.norm.weight": torch.ones(4)}, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    again = ARRCOCQwen.from_pretrained(tmp_path / "whole", selector="look_twice")
    wanted = ours.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=4)
    found = again.ask(tiny.picture(), "what is this?", keep=0.4, max_new_tokens=4)
    assert found.text == wanted.text
    light = Chooser.from_pretrained(tmp_path / "whole", selector="look_twice")
    assert len(light.model.model.language_model.layers) == 2
    assert light.choose(tiny.picture(), "what is this?", keep=0.4)[0].kept.tolist() == wanted.selection[0].kept.tolist()
    said = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert said["model_type"] == ("qwen3_5_moe" if moe else "qwen3_5")


@experts
def test_a_selector_learns_on_it_from_questions_alone_and_from_answers(tmp_path, moe):
    """Stage 1 by the model's own attention, then stage 2 with LoRA, and the adapter on its base again."""
    chooses(moe).save_pretrained(tmp_path / "base", save_base=True)
    for name in ("arr_coc_config.json", "arr_coc.safetensors"):
        (tmp_path / "base" / name).unlink()
    tiny.picture(128, 128).save(tmp_path / "one.png")
    row = {"image": "one.png", "question": "what is it?", "answer": "a thing"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row | {"question": "and now?"}) + "\n")
    how = {"data": f"jsonl:{tmp_path / 'rows.jsonl'}", "examples": 2, "steps": 2, "cells_per_batch": 32}
    run(settings(tmp_path / "base", **how), tmp_path / "one")
    assert all(record["taught"] > 0 for record in metrics(tmp_path / "one") if "taught" in record)
    run(settings(tmp_path / "base", stage=2, **how), tmp_path / "two", init_from=tmp_path / "one")
    loaded = ARRCOCQwen.from_pretrained(tmp_path / "two")
    assert any("linear_attn.in_proj_qkv.lora_" in name for name, _ in loaded.model.named_parameters())
    assert loaded.ask(tmp_path / "one.png", "what is it?", keep=5, max_new_tokens=2).tokens_kept == 5
