"""What mini is taught: cells of boxes, dense targets, packed turns, batches."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from arr_coc_scenes import make_scene
from arr_coc_scenes.masks import TRAIN_FONTS
from studies.cells import box_cells, boxes_cells, even_order, fill_evenly
from studies.mini.config import MiniTrainConfig, read_config
from studies.mini.data import MiniBatches
from studies.mini.letters import letter_sheet
from studies.mini.listing import list_question
from studies.mini.packing import PackedText, pack_row
from studies.mini.targets import CLASSES, dense_targets
from studies.mini.train import ASSETS
from studies.turns import IGNORE, Turns

MINI = Path(__file__).parents[1] / "studies" / "mini"


@pytest.fixture(scope="module")
def turns():
    return Turns(AutoTokenizer.from_pretrained(ASSETS))


def test_box_cells_counts_touched_cells_only():
    assert box_cells((0, 0, 32, 32), 4, 4) == [0]
    assert box_cells((31, 31, 33, 33), 4, 4) == [0, 1, 4, 5]
    assert box_cells((120, 0, 500, 10), 4, 4) == [3]


@given(st.integers(1, 20), st.integers(1, 20), st.data())
def test_fill_keeps_the_evidence_and_the_budget(height, width, data):
    cells = height * width
    evidence = data.draw(st.sets(st.integers(0, cells - 1)))
    budget = data.draw(st.integers(1, cells))
    without = data.draw(st.sets(st.integers(0, cells - 1))) - evidence
    kept = fill_evenly(evidence, budget, height, width, without)
    assert kept == sorted(set(kept))
    assert len(kept) == max(min(budget, cells - len(without)), len(evidence))
    assert evidence <= set(kept)
    assert not without & set(kept)
    assert sorted(even_order(height, width)) == list(range(cells))


def test_dense_targets_mark_every_thing_and_letter():
    for seed in range(20):
        scene = make_scene(seed, "train", (512, 512))
        targets = dense_targets(scene.elements, 16, 16)
        assert targets.shape == (256, CLASSES)
        for element in scene.elements:
            marked = targets[sorted(boxes_cells([element.box], 16, 16))].sum()
            assert marked >= (2 if element.name and element.colour else 0)
            assert not element.glyphs or marked > 0


def test_packed_labels_spell_the_answers(turns):
    questions = make_scene(3, "train", (512, 512)).questions
    packed = PackedText.empty(1, 256, turns.pad_id)
    written = pack_row(packed, 0, questions, turns)
    assert written == list(questions)
    labels = [int(label) for label in packed.labels_BA[0] if label != IGNORE]
    # The token after each source is its label: next-token prediction.
    sources = packed.sources_BA[0][: len(labels)]
    assert packed.ids_BT[0][sources + 1].tolist() == labels
    answers: list[list[int]] = [[]]
    for label in labels:
        answers[-1].append(label)
        if label == turns.stop_id:
            answers.append([])
    assert [turns.decode(answer) for answer in answers[:-1]] == [q.answer for q in questions]
    assert packed.trimmed().ids_BT.shape[1] % 16 == 0


def test_batches_depend_on_seed_and_index_alone(turns):
    config = MiniTrainConfig(cells_per_batch=64, early_sizes=((128, 128, 1.0),))
    first, again = MiniBatches(config, turns)[5], MiniBatches(config, turns)[5]
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = MiniBatches(config, turns)[6]
    assert not torch.equal(first["images"], other["images"])


def test_sparse_cells_hold_the_evidence_of_what_is_asked(turns):
    config = MiniTrainConfig(cells_per_batch=256, sizes=((256, 256, 1.0),), early_sizes=(), curriculum=(0, 0))
    batch = MiniBatches(config, turns)[0]
    cells = batch["cells"].numpy()
    assert (np.diff(cells, axis=1) > 0).all()
    assert cells.min() >= 0
    assert cells.max() < 64
    assert (batch["sparse_text"][1] >= 0).any()


@pytest.mark.parametrize("name", ["stock-1", "stock-2"])
def test_the_control_never_sees_an_image_with_a_cell_missing(name, turns):
    config = read_config(MINI / f"{name}.json", seconds=100.0)
    assert config.sparse_shares == (1.0,)
    assert config.distractor_share == 0
    few = dataclasses.replace(config, seconds=0.0, world="", world_share=0.0, max_images=2)
    for index in range(2):
        batch = MiniBatches(few, turns)[index]
        assert torch.equal(batch["cells"], torch.arange(batch["targets"].shape[1]).expand_as(batch["cells"]))


def test_lists_name_what_is_drawn():
    rng = np.random.default_rng(0)
    for seed in range(30):
        scene = make_scene(seed, "train", (512, 512))
        question = list_question(scene, rng)
        if question is not None:
            assert all(part for part in question.answer.split(", "))
            assert len(question.answer.split(", ")) == len(question.evidence)


def test_config_says_what_is_wrong(tmp_path):
    file = tmp_path / "c.json"
    file.write_text('{"stepz": 3}')
    with pytest.raises(ValueError, match=r"stepz.*known are"):
        read_config(file)
    with pytest.raises(ValueError, match="multiples of 32"):
        MiniTrainConfig(sizes=((100, 100, 1.0),))
    with pytest.raises(ValueError, match="KEPT"):
        MiniTrainConfig(sparse_shares=(25.0,))


def test_schedules():
    config = MiniTrainConfig(warmup_steps=10)
    assert config.rate(0, 0.0) == pytest.approx(1e-4)
    assert config.rate(50, 0.0) == pytest.approx(1e-3)
    assert config.rate(50, 1.0) == pytest.approx(2e-5)
    assert [config.crowd(p) for p in (0.0, 0.15, 0.5, 1.0)] == [0.0, 0.0, 1.0, 1.0]
    assert config.batch_images(256) == 256
    assert config.batch_images(1024) == 64


def test_sheets_are_full_of_letters_that_training_may_show():
    letters = 0
    for seed in range(40):
        sheet = letter_sheet(seed, (256, 256))
        assert sheet == letter_sheet(seed, (256, 256))
        texts = {element.text for element in sheet.elements}
        assert all(question.answer in texts and question.evidence for question in sheet.questions)
        for element in sheet.elements:
            assert element.font in TRAIN_FONTS
            x0, y0, x1, y1 = element.box
            assert 0 <= x0 < x1 <= 256
            assert 0 <= y0 < y1 <= 256
        letters += sum(len(element.glyphs) for element in sheet.elements)
    assert letters > 40 * 50


def test_batches_with_sheets(turns):
    config = MiniTrainConfig(
        cells_per_batch=512, sizes=((256, 256, 1.0),), early_sizes=(), curriculum=(0, 0), sheet_shares=(1.0, 1.0)
    )
    batch = MiniBatches(config, turns)[0]
    assert (batch["dense_text"][1] >= 0).any()
    assert config.sheet_share(0.5, 512, 512) == 1.0
    assert config.sheet_share(0.5, 1024, 512) == 0.0
    with pytest.raises(ValueError, match="sheet_shares"):
        MiniTrainConfig(sheet_shares=(2.0, 0.0))
