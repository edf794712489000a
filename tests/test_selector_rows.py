"""What a selector learns from, row by row: files of every kind, settings, sizes, labels, and what the layer sees."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from training_runs import draw, jsonl_folder, metrics, run, saved, settings, tiny_model

from arr_coc.data.examples import Example, scene_examples
from arr_coc.data.sources import read_source
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.qwen.sizes import ImageSizes
from arr_coc.training import step as selector_inputs
from arr_coc.training.config import READABLE, STRATEGIES, read_selector_config
from arr_coc.training.data import TO_READ, FileBatches, SceneBatches, make_encoder
from arr_coc.training.groups import CELL, make_group, whole_cells
from arr_coc.training.losses import IGNORE, answer_cross_entropy, answers_right
from arr_coc.training.making import make_learner
from arr_coc.training.step import answered_inputs, judge_group
from arr_coc.training.strategies import GRADIENT_STRATEGIES
from arr_coc_scenes import make_scene


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


# ---------------------------------------------------------------- files


def coco_folder(folder: Path) -> str:
    """12 images with a dog each; the box of the first is broken."""
    (folder / "images").mkdir(parents=True)
    images, boxes = [], []
    for number in range(12):
        size = (128, 96) if number % 2 else (100, 140)
        draw(folder / "images" / f"{number:012d}.jpg", size, number)
        images.append({"id": number, "file_name": f"{number:012d}.jpg", "width": size[0], "height": size[1]})
        box = [10, 10, 0 if number == 0 else 40, 30]
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": box, "iscrowd": 0})
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "dog"}]}
    (folder / "boxes.json").write_text(json.dumps(content))
    return f"coco:{folder / 'boxes.json'}:{folder / 'images'}"


def vqa_folder(folder: Path) -> str:
    """12 questions about as many images; the first has no annotation."""
    (folder / "images").mkdir(parents=True)
    questions, answers = [], []
    for number in range(12):
        draw(folder / "images" / f"COCO_val2014_{number:012d}.jpg", (128, 96) if number % 2 else (96, 128), number)
        questions.append({"question_id": number, "image_id": number, "question": f"how many, {number}?"})
        answers.append({"question_id": number, "image_id": number, "multiple_choice_answer": str(number)})
    (folder / "questions.json").write_text(json.dumps({"questions": questions}))
    (folder / "answers.json").write_text(json.dumps({"annotations": answers[1:]}))
    return f"vqa:{folder / 'questions.json'}:{folder / 'answers.json'}:{folder / 'images'}"


def broken_jsonl(folder: Path) -> str:
    """12 rows, and one without a question."""
    source = jsonl_folder(folder, 12)
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"image": "0.png"}\n')
    return source


@pytest.mark.parametrize(
    ("make", "stage", "says", "left"),
    [
        (coco_folder, 1, "boxes.json: annotations[0]", 11),
        (vqa_folder, 2, "questions.json: questions[0]", 11),
        (broken_jsonl, 3, "rows.jsonl:13: no question", 12),
    ],
)
def test_files_of_every_kind_are_learned_from_and_broken_rows_listed(model, tmp_path, make, stage, says, left):
    data = make(tmp_path / "data")
    config = settings(model, stage=stage, data=data, max_broken=0.1, steps=2, examples=4, evaluate_questions=9)
    lines = run(config, tmp_path / "out")
    assert sum(line.startswith("left out: ") and says in line for line in lines) == 1
    assert any("1 broken rows were left out" in line for line in lines)
    assert says in (tmp_path / "out" / "left-out.txt").read_text()
    steps = [record for record in metrics(tmp_path / "out") if "progress" in record]
    assert len(steps) == 2
    assert all(record["answer"] > 0 if stage == 2 else record["relevance"] > 0 for record in steps)
    held = metrics(tmp_path / "out")[-1]["held"]
    assert (held["recall"] is None) == (stage == 2)
    assert saved(tmp_path / "out")[0] == 2
    assert len(read_source(data, max_broken=0.1)) == left
    with pytest.raises(ValueError, match=r"over max_broken=0\.01"):
        run(replace(config, max_broken=0.01), tmp_path / "strict")


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    [
        (vqa_folder, {"stage": 1, "target": "boxes"}, "have no boxes: leave target at auto, or give pseudo_boxes"),
        (coco_folder, {"stage": 2}, "have no answers: use stage 1"),
    ],
)
def test_data_without_what_a_stage_needs_are_refused(model, tmp_path, make, changes, says):
    with pytest.raises(ValueError, match=says):
        run(settings(model, data=make(tmp_path / "data"), max_broken=0.1, **changes), tmp_path / "out")


def test_rows_without_what_a_stage_needs_are_left_out_and_counted(model, tmp_path):
    data = jsonl_folder(tmp_path / "data", 4)
    with (tmp_path / "data" / "rows.jsonl").open("a") as file:
        file.write('{"image": "0.png", "question": "where?"}\n{"image": "1.png", "question": "what?"}\n')
    for stage, what in ((1, "boxes"), (2, "answers")):
        lines = run(settings(model, stage=stage, data=data, steps=1, target="boxes"), tmp_path / what)
        assert f"2 examples without {what} were left out, 4 are left" in lines


def cut_short(path: Path) -> None:
    """A PNG whose header is good and whose pixels end too early."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_images_that_do_not_decode_are_told_and_end_the_run_where_they_are_too_many(model, tmp_path):
    data = jsonl_folder(tmp_path / "data", 8)
    cut_short(tmp_path / "data" / "3.png")
    config = settings(model, data=data, examples=8, steps=2, max_broken=0.13)
    lines = run(config, tmp_path / "out")
    assert sum("3.png" in line for line in lines) == 1, "told once, though every round meets it"
    cut_short(tmp_path / "data" / "4.png")
    with pytest.raises(ValueError, match=r"2 rows have images that do not decode, over max_broken=0\.13: first rows"):
        run(config, tmp_path / "too many")


def test_a_round_over_files_meets_every_example_once_and_batches_depend_on_their_number_alone(model, tmp_path):
    examples = read_source(jsonl_folder(tmp_path / "data", 10))
    config = settings(model, examples=4, data="jsonl:here")
    sizes = ImageSizes(CELL, 64 * 64, 512 * 512)
    batches = FileBatches(config, make_encoder(tiny.tokenizer()), examples, range(10), sizes)
    made = [[e.name for group in batches[index] for e in group.examples] for index in range(6)]
    names = [name for batch in made for name in batch]
    assert sorted(names) == sorted([row.name for row in examples.rows] * 2)
    assert names[:10] != names[10:]
    again = [e.name for group in batches[3] for e in group.examples]
    assert again == made[3]
    assert all(group.targets_RHW.shape[1:] == group.grid for group in batches[0])


# ---------------------------------------------------------------- drawn scenes


def test_batches_without_a_share_to_be_read_draw_as_they_always_did(model):
    """The order of draws is what a seed means: batches of an old run must come again."""
    config = settings(model, cells_per_batch=160, hard_share=0.5, seed=3)
    group = SceneBatches(config, make_encoder(tiny.tokenizer()))[2][0]
    rng = np.random.default_rng([3, 2, 1])
    width, height, _ = config.sizes[int(rng.choice(2, p=[0.5, 0.5]))]
    names = []
    for number in range(len(group.images_Bhw3)):
        hard = "hard" if rng.random() < 0.5 else "plain"
        examples = scene_examples(make_scene((3 * 1_000_003 + 2) * 4096 + number, "train", (width, height), hard))
        rng.random()  # whether it is a void
        assert np.array_equal(group.images_Bhw3[number].numpy(), examples[0].image)
        names += [examples[one].name for one in rng.permutation(len(examples))[:2]]
    assert [example.name for example in group.examples] == names[: len(group.examples)]
    assert len(names) - len(group.examples) in (0, 1), "the last scene fills up what is left"


def test_a_share_of_the_scenes_is_there_to_be_read(model):
    common = {"sizes": ((256, 256, 1.0),), "cells_per_batch": 64 * 96, "questions": 4, "void_share": 0.2}
    read = {}
    for share in (0.0, 0.5, 1.0):
        batch = SceneBatches(settings(model, reading_share=share, **common), str.encode)[0][0]
        of_image = {}
        for image, example in zip(batch.image_R.tolist(), batch.examples, strict=True):
            of_image.setdefault(image, set()).add(example.family)
        read[share] = np.mean([families <= {"lookup", "chart"} for families in of_image.values()])
        if share == 1.0:
            assert {example.family for example in batch.examples} == {"lookup", "chart"}
    assert read[0.0] + 0.2 < read[0.5] < 0.8
    assert read[1.0] == 1


@pytest.mark.parametrize("hard", ["plain", "hard"])
def test_every_table_and_chart_has_room_in_the_least_size_that_is_accepted(model, hard):
    settings(model, reading_share=0.5, sizes=((READABLE, READABLE, 1.0), (128, 128, 0.0)))  # the latter is never drawn
    for seed in range(60):
        scene = make_scene(seed, "train", (READABLE, READABLE), hard, families=TO_READ)
        assert {question.family for question in scene.questions} <= set(TO_READ)


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("given_json", "says"),
    [
        ('{"stage": 4}', "stage=4: expected one of 1, 2, 3"),
        ('{"steps": "abc"}', "steps: 'abc' is a str, expected int"),
        ('{"steps": 0}', "a run must end"),
        ('{"sizes": []}', "sizes: each is"),
        ('{"sizes": [[100, 128, 1]]}', "multiples of 32"),
        ('{"sizes": [[128, 128, 0]]}', "one share above 0"),
        ('{"learning_rate": NaN}', "learning_rate=nan: expected 0 or more"),
        ('{"clip": -1.0}', r"clip=-1\.0: expected 0 or more"),
        ('{"accumulate": 0}', "accumulate=0: expected 1 or more"),
        ('{"max_pixels": 8}', "max_pixels=8: expected 1024 or more"),
        ('{"max_pixels": 4096, "min_pixels": 5000}', "max_pixels=4096: expected 1024 or more, and min_pixels or more"),
        ('{"hard_share": 1.5}', r"hard_share=1\.5: expected a share"),
        ('{"void_share": 1.5}', r"void_share=1\.5: expected a share"),
        ('{"reading_share": 1.01}', r"reading_share=1\.01: expected a share"),
        ('{"reading_share": -0.1}', r"reading_share=-0\.1: expected 0 or more"),
        ('{"max_broken": 2.0}', r"max_broken=2\.0: expected a share"),
        ('{"glance_channels": 0}', "glance_channels=0: expected 1 or more"),
        ('{"data": "jsonl:x.jsonl", "reading_share": 0.1}', r"reading_share=0\.1: only scenes are drawn, use it with"),
        ('{"data": "jsonl:x.jsonl", "void_share": 0.1}', r"void_share=0\.1: only scenes are drawn, use it with"),
        (
            '{"reading_share": 0.1, "sizes": [[512, 512, 1], [512, 128, 1]]}',
            "sizes: 128 px is too small",
        ),
        ('{"reading_share": 0.1, "sizes": [[96, 512, 0.5]]}', "sizes: 96 px .* give 160 px a side or more"),
        ('{"keeps": [0.5, 0.1]}', "0 < least <= most <= 1"),
        ('{"keeps": [1.0, 1.0]}', "least below 1"),
        ('{"keeps": [0.5]}', "two numbers"),
        ('{"keeps": ["a", "b"]}', "two numbers"),
        ('{"strategy": "gumbel"}', "use it with stage 2"),
        ('{"stage": 2, "target": "attention"}', "use it with stage 1 or 3"),
        ('{"pseudo_boxes": "x.json"}', "scenes know their boxes"),
        ('{"positive_weight": 0.0}', "above 0"),
        ('{"stepz": 4}', r"unknown settings \['stepz'\]"),
        ("{bad", "mine.json: not JSON"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tmp_path, given_json, says):
    (tmp_path / "mine.json").write_text(given_json)
    with pytest.raises(ValueError, match=says) as error:
        read_selector_config(tmp_path / "mine.json")
    assert "\n" not in str(error.value)


def test_a_size_that_the_processor_would_change_is_refused_where_the_model_sees_it(model, tmp_path):
    config = settings(model, stage=2, sizes=((640, 640, 1.0),))
    with pytest.raises(ValueError, match="would resize 640x640 px"):
        run(config, tmp_path)


def test_an_adapter_with_another_sight_is_not_gone_on_from(model, tmp_path):
    run(settings(model, steps=1), tmp_path / "one")
    with pytest.raises(ValueError, match="sight='textures', but the adapter to start from has 'glance'"):
        run(settings(model, sight="textures"), tmp_path / "two", init_from=tmp_path / "one")
    with pytest.raises(ValueError, match="glance_channels=32, but the adapter to start from has 96"):
        run(settings(model, glance_channels=32), tmp_path / "two", init_from=tmp_path / "one")


def test_strategies_are_those_that_there_are():
    assert set(STRATEGIES) == set(GRADIENT_STRATEGIES)


# ---------------------------------------------------------------- sizes


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(4, 900), st.integers(4, 900), st.sampled_from([2**14, 2**18, 2**20]))
def test_images_from_files_get_a_size_that_the_processor_leaves(height, width, most):
    """Whole cells within the processor's limits; boxes keep their place, for any shape that Qwen takes."""
    if max(height, width) > 200 * min(height, width):
        return
    box = (width * 0.25, height * 0.5, width * 0.75, height * 1.0)
    example = Example("x", np.zeros((height, width, 3), np.uint8), "?", "", (box,))
    sizes = ImageSizes(CELL, 4 * CELL * CELL, most)
    made = whole_cells(example, sizes)
    high, wide = made.image.shape[:2]
    assert sizes.nearest(high, wide) == (high, wide)
    assert high % CELL == wide % CELL == 0
    assert made.boxes is not None
    assert np.allclose(made.boxes[0], (wide * 0.25, high * 0.5, wide * 0.75, high * 1.0))


# ---------------------------------------------------------------- labels, and what the layer sees


def group_of(*rows: tuple[str, str, int]):
    """A group of 128 x 96 px images, one per (question, answer, seed)."""
    images = [np.asarray(tiny.picture(128, 96, seed)) for _, _, seed in rows]
    box = ((0.0, 0.0, 40.0, 40.0),)
    asked = [(n, Example(f"row {n}", images[n], question, answer, box)) for n, (question, answer, _) in enumerate(rows)]
    return make_group(images, asked, make_encoder(tiny.tokenizer()), 1.0)


ROWS = (("what?", "a red dog", 0), ("how many of them are there?", "3", 1), ("where is it?", "<|im_end|> on it", 2))


def answers_of(owner, group):
    """Cross-entropy of each row's answer with half of the cells kept."""
    inputs, labels = answered_inputs(owner.processor, group)
    output = owner(**inputs, labels=labels, keep=0.5, output_arr_coc_info=True, use_cache=False)
    return answer_cross_entropy(output.logits, output.arr_coc.compact.labels)


@torch.no_grad()
def test_a_row_in_a_batch_has_the_loss_that_it_has_alone():
    owner = tiny.wrapped(tiny.stock(), selector="arr_coc")
    together = answers_of(owner, group_of(*ROWS))
    alone = torch.cat([answers_of(owner, group_of(row)) for row in ROWS])
    assert torch.allclose(together, alone, atol=1e-4)
    assert len(set(alone.round(decimals=2).tolist())) == 3


@torch.no_grad()
def test_the_learner_has_the_loss_of_the_whole_forward_pass(model):
    """It makes logits of the answers alone."""
    config = settings(model, stage=2, adapt="none", keeps=(0.5, 0.5))
    made = make_learner(config, None, torch.device("cpu"))
    group = group_of(*ROWS)
    found = made.learner(group, 0, 0.0)
    assert float(found["answer"]) == pytest.approx(float(answers_of(made.owner, group).mean()), abs=1e-4)


def test_labels_are_the_answer_and_its_end_and_nothing_else():
    group, tokenizer = group_of(*ROWS), tiny.tokenizer()
    inputs, labels = answered_inputs(tiny.processor(), group)
    prompts = [encode(tiny.processor(), [Conversation([tiny.picture(128, 96, s)], q)]) for q, _, s in ROWS]
    for row, (_, answer, _) in enumerate(ROWS):
        taught = labels[row][labels[row] != IGNORE].tolist()
        assert tokenizer.decode(taught[:-1]) == answer
        assert taught[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in taught[:-1], "text that looks like a token stays text"
        seen = inputs["attention_mask"][row].bool()
        assert inputs["input_ids"][row][seen].tolist() == prompts[row]["input_ids"][0].tolist() + taught
        assert (inputs["input_ids"][row] == labels[row])[labels[row] != IGNORE].all()
        assert inputs["question_mask"][row].sum() == prompts[row]["question_mask"][0].sum()


@torch.no_grad()
def test_what_is_taught_is_what_generate_says(monkeypatch):
    """Teach each row the tokens that the model itself would say after its prompt: it is right already."""
    owner = tiny.wrapped(tiny.stock(), selector="arr_coc", keep=0.5)
    prompts = encode(owner.processor, [Conversation([tiny.picture(128, 96, s)], q) for q, _, s in ROWS])
    said = owner.generate(**prompts, max_new_tokens=4, do_sample=False)[:, -4:]
    assert tiny.varies(said)
    taught = {f"answer {row}": said[row].tolist() for row in range(3)}
    monkeypatch.setattr(selector_inputs, "text_ids", lambda _, text: taught[text])
    group = group_of(*((q, f"answer {row}", s) for row, (q, _, s) in enumerate(ROWS)))
    inputs, labels = answered_inputs(owner.processor, group)
    labels[:, -1] = IGNORE  # the end, which the model would not say here
    output = owner(**inputs, labels=labels, keep=0.5, output_arr_coc_info=True, use_cache=False)
    right = answers_right(output.logits, output.arr_coc.compact.labels)
    assert right.all()
    wrong = output.arr_coc.compact.labels.clone()
    wrong[:, -2] += 1
    assert not answers_right(output.logits, wrong).any()


@pytest.mark.parametrize(
    ("sight", "pooling"), [("textures", "mean"), ("stem", "learned"), ("glance", "lm"), ("look", "mean")]
)
@torch.no_grad()
def test_stage_1_sees_what_the_model_sees_when_it_is_asked(model, sight, pooling):
    config = settings(model, sight=sight, pooling=pooling)
    owner = make_learner(config, None, torch.device("cpu")).owner
    group = group_of(*((question, "", seed) for question, _, seed in ROWS))  # a look asks what a prompt ends with
    judgement = judge_group(owner, group)
    prepared = owner.prepare(**answered_inputs(owner.processor, group)[0], keep=0.5)
    for row, (selection,) in enumerate(prepared.images):
        # The model's own pixels went through its normalisation, and the spectral residual sees how they were rounded.
        assert torch.allclose(judgement.balance.relevance_BHW[row], selection.relevance, atol=1e-3)
        tensions = torch.tensor(list(selection.tensions.values()))
        assert torch.allclose(judgement.balance.tensions_BT[row], tensions, atol=1e-4)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "configs").glob("selector-*.json")), ids=lambda path: path.name
)
def test_every_committed_config_is_valid(path):
    assert read_selector_config(path, steps=2).steps == 2
