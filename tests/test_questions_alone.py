"""Learning from images and questions, and from nothing else: the model's own attention is the teacher."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from training_runs import draw, metrics, run, same, settings, tiny_model

from arr_coc.data.examples import Example, FileImage, FileRow
from arr_coc.data.sources import read_source
from arr_coc.qwen import ARRCOCQwen, vision
from arr_coc.qwen.language import attended
from arr_coc.qwen.processor import Conversation
from arr_coc.training.data import make_encoder, split_by_image
from arr_coc.training.groups import make_group
from arr_coc.training.making import make_learner
from arr_coc.training.step import answered_inputs, counted_rows, teacher_attention


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("moe", [False, True])
@torch.no_grad()
def test_attention_summed_layer_by_layer_is_that_of_the_stock_model(moe):
    """Of several tokens, in a left-padded batch, against eager attention that shows all of its weights."""
    stock = tiny.stock(moe=moe)
    asked = [
        Conversation([tiny.picture(128, 96, seed)], text) for seed, text in enumerate(("what?", "how many are there?"))
    ]
    inputs = tiny.stock_inputs(tiny.inputs(*asked))
    asks_BL = torch.zeros_like(inputs["input_ids"], dtype=torch.bool)
    asks_BL[0, -1] = asks_BL[1, -3:] = True
    found_BL = attended(stock, inputs, asks_BL)
    with tiny.eager_attention(stock):
        output = stock(**inputs, output_attentions=True)
    mean_BLL = torch.stack([layer.mean(1) for layer in output.attentions]).mean(0)
    for row, asks_L in enumerate(asks_BL):
        assert torch.allclose(found_BL[row], mean_BLL[row][asks_L].mean(0), atol=1e-6)
    assert torch.allclose(found_BL.sum(1), torch.ones(2), atol=1e-5)


def group_of(*rows):
    """One image of 128 x 96 px per (question, answer, boxes)."""
    images = [np.asarray(tiny.picture(128, 96, seed)) for seed in range(len(rows))]
    asked = [(n, Example(f"row {n}", images[n], *row)) for n, row in enumerate(rows)]
    return make_group(images, asked, make_encoder(tiny.tokenizer()), 1.0)


def test_without_an_answer_the_last_token_of_the_prompt_is_the_teacher():
    owner = tiny.wrapped(tiny.stock())
    group = group_of(("what?", "", None), ("where is it?", "a dog", None))
    inputs, labels = answered_inputs(owner.processor, group)
    assert (labels[0] == -100).all()
    assert inputs["input_ids"][0, -1] != owner.processor.tokenizer.eos_token_id
    together = teacher_attention(owner, group)
    alone = torch.cat([teacher_attention(owner, group.rows(torch.tensor([row]))) for row in range(2)])
    assert torch.allclose(together, alone, atol=1e-6)
    assert (together > 0).all()
    assert together.sum((1, 2)).max() < 1


def test_an_image_that_several_rows_ask_about_is_seen_once(monkeypatch):
    owner, images = tiny.wrapped(tiny.stock()), [np.asarray(tiny.picture(128, 96, seed)) for seed in range(3)]
    asked = [
        (n, Example("row", images[n], "what " * length, "", None)) for n, length in ((2, 1), (0, 3), (2, 2), (2, 4))
    ]
    group = make_group(images, asked, make_encoder(tiny.tokenizer()), 1.0)
    seen, encode_dense = [], vision.encode_dense

    def counted(model, patches, thw):
        seen.append(len(thw))
        return encode_dense(model, patches, thw)

    monkeypatch.setattr(vision, "encode_dense", counted)
    together = teacher_attention(owner, group)
    assert seen == [2]
    alone = torch.cat([teacher_attention(owner, group.rows(torch.tensor([row]))) for row in range(4)])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=1e-4)


def test_boxes_are_used_where_they_are_and_attention_where_not(model):
    """Losses of a mixed group are those of its two halves, each by its own teacher."""
    known, unknown = ("what?", "", ((0.0, 0.0, 40.0, 40.0),)), ("where is it?", "", None)
    learners = {
        target: make_learner(settings(model, target=target), None, torch.device("cpu")).learner
        for target in ("auto", "boxes", "attention")
    }
    for learner in learners.values():
        learner.layer.load_state_dict(learners["auto"].layer.state_dict())
    mixed = group_of(known, unknown)
    found = learners["auto"](mixed, 0, 0.0)
    halves = learners["boxes"](mixed, 0, 0.0) | learners["attention"](mixed.rows(torch.tensor([1])), 0, 0.0)
    assert found.keys() == halves.keys()
    for name, value in found.items():
        assert float(value.detach()) == pytest.approx(float(halves[name].detach()), abs=1e-5), name
    assert float(found["taught"].detach()) > 0
    counts = counted_rows(mixed, settings(model, target="auto"))
    assert (counts["taught"], counts["relevance"]) == (1.0, 1.0)


@pytest.mark.parametrize("sight", ["glance", "look"])
def test_boxes_and_attention_together_say_which_cells_come_first(model, monkeypatch, sight):
    """The order has a loss and gradients of its own; without a weight for it nobody asks the teacher."""
    group = group_of(("what?", "", ((0.0, 0.0, 80.0, 80.0),)), ("where is it?", "", None))
    own = {"target": "boxes", "sight": sight, "light_share": 0.0}
    ordered, plain = settings(model, order=0.5, **own), settings(model, **own)
    learner = make_learner(ordered, None, torch.device("cpu")).learner
    found = learner(group, 0, 0.0)
    assert float(found["order"].detach()) > 0
    found["order"].backward()
    assert any(bool(one.grad.abs().sum() > 0) for one in learner.layer.parameters() if one.grad is not None)
    assert counted_rows(group, ordered)["order"] == 1.0
    monkeypatch.setattr("arr_coc.training.step.teacher_attention", None)
    assert "order" not in make_learner(plain, None, torch.device("cpu")).learner(group, 0, 0.0)
    for wrong in ({"stage": 2}, {"target": "attention"}):
        with pytest.raises(ValueError, match="inside boxes"):
            settings(model, **{"target": "boxes", "order": 0.5, **wrong})


def questions_alone(folder, images=6, each=3):
    """A JSONL file with images and questions and nothing else."""
    folder.mkdir()
    for number in range(images):
        tiny.picture(96 + 32 * (number % 2), 96, number).save(folder / f"{number}.png")
    rows = [{"image": f"{n}.png", "question": f"what is in place {q}?"} for n in range(images) for q in range(each)]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"jsonl:{folder / 'mine.jsonl'}"


def test_images_and_questions_are_enough(model, tmp_path, monkeypatch):
    """A run learns from them, stops, goes on bit for bit, and its adapter is used from another folder."""
    data = questions_alone(tmp_path / "data")
    config = settings(model, data=data, examples=4, max_pixels=128 * 128, evaluate_questions=4)
    run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", stop_at=2)
    run(config, tmp_path / "parts")
    assert same(tmp_path / "whole", tmp_path / "parts")
    steps = [record for record in metrics(tmp_path / "whole") if "taught" in record]
    assert len(steps) == config.steps
    assert all(record["taught"] > 0 and record["relevance"] == 0 for record in steps)
    monkeypatch.chdir(tmp_path / "data")
    loaded = ARRCOCQwen.from_pretrained(tmp_path / "whole", device="cpu", keep=0.5)
    assert loaded.arr_coc_config.trained
    assert loaded.ask("0.png", "what is in place 1?", max_new_tokens=2).tokens_kept == 4


def test_boxes_alone_still_refuse_data_without(model, tmp_path):
    with pytest.raises(ValueError, match="have no boxes: leave target at auto"):
        run(settings(model, data=questions_alone(tmp_path / "data", 2), target="boxes"), tmp_path / "out")


@given(st.lists(st.integers(0, 12), max_size=80), st.sets(st.integers(0, 79), max_size=30))
@example([0] * 10 + [1] * 10, set())
def test_no_image_is_on_both_sides(images, unusable):
    files = {number: FileImage(f"{number}.png", Path(f"{number}.png"), (8, 8)) for number in set(images)}
    rows = [FileRow(str(place), files[number], "what?") for place, number in enumerate(images)]
    numbers = [number for number in range(len(rows)) if number not in unusable]
    learned, held = split_by_image(numbers, rows)
    assert sorted([*learned, *held]) == numbers
    assert not {images[n] for n in learned} & {images[n] for n in held}
    assert learned or not numbers
    if len({images[n] for n in numbers}) > 1 and len(numbers) >= 10:
        assert held


def test_copies_and_links_of_an_image_are_on_its_side(tmp_path):
    for number in range(20):
        draw(tmp_path / f"a{number:02}.png", (64, 64), number)
        (tmp_path / f"b{number:02}.png").write_bytes((tmp_path / f"a{number:02}.png").read_bytes())
        (tmp_path / f"c{number:02}.png").symlink_to(f"a{number:02}.png")
    lines = [{"image": path.name, "question": "what?"} for path in sorted(tmp_path.glob("*.png"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = read_source(f"jsonl:{tmp_path / 'rows.jsonl'}").rows
    learned, held = split_by_image(range(60), rows)
    assert len(held) == 6
    assert not {rows[n].image.name[1:] for n in learned} & {rows[n].image.name[1:] for n in held}
