"""Practice of binding: questions about pairs, further questions, links in the dense targets, other fonts."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scene_oracle import is_right
from transformers import AutoTokenizer

from arr_coc.qwen.familiar import outside_words
from arr_coc_scenes.making import UNSEEN_LAYOUTS, lay_scene, make_scene
from arr_coc_scenes.masks import UNSEEN_FONTS, char_mask, load_font
from arr_coc_scenes.words import WORDINGS
from studies.cells import boxes_cells
from studies.mini.binding import WAYS, binding_question
from studies.mini.config import MiniTrainConfig, read_config
from studies.mini.data import MiniBatches, _within_budget
from studies.mini.dense_head import load_head, new_head, save_head
from studies.mini.facts import value_columns
from studies.mini.letters import letter_sheet
from studies.mini.links import LINK_WORDS, links_of
from studies.mini.phrasings import PRACTICE_PHRASINGS
from studies.mini.practice import practice_questions
from studies.mini.step import label_loss
from studies.mini.styles import PRACTICE_FILES, PRACTICE_FONTS, PRACTICE_LAYOUTS, lay_practice
from studies.mini.styles import practice_style as Style
from studies.mini.targets import CLASSES, FIRST_LINK, dense_targets
from studies.mini.train import ASSETS
from studies.turns import Turns

CONFIGS = Path(__file__).parents[1] / "configs"
SEEDS = range(40)
ABOUT = ("lookup", "chart")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


@pytest.fixture(scope="module")
def laid():
    """(scene, draft) of tables, receipts and charts."""
    return [lay_scene(seed, "train", (512, 512), families=ABOUT) for seed in SEEDS]


def every_way(draft, rng):
    return [way(column, rng) for column in value_columns(draft) for way in WAYS]


def assert_pairs_hold(scene, draft):
    """Every question that names one label and one value names a pair of the scene; returns how many did."""
    pairs = {(e.word, e.value) for column in value_columns(draft) for e in column.entries}
    compared = 0
    for question in scene.questions:
        numbers = re.findall(r"\d+\.?\d*", question.answer if question.answer[0].isdigit() else question.text)
        words = {w for w, _ in pairs if re.search(rf"\b{w}\b", f"{question.text} {question.answer}")}
        if len(words) == 1 and numbers:
            assert (words.pop(), numbers[0].rstrip(".")) in pairs
            compared += 1
    return compared


def test_pairs_agree_with_what_the_scene_says(laid):
    rng, compared = np.random.default_rng(0), 0
    for scene, draft in laid:
        pairs = {(e.word, e.value) for column in value_columns(draft) for e in column.entries}
        compared += assert_pairs_hold(scene, draft)
        for question in every_way(draft, rng):
            for part in question.answer.split(", "):
                if " " in part:
                    first, second = part.split(" ")
                    assert (first, second) in pairs or (second, first) in pairs
    assert compared > 40


def test_sorted_and_compared_answers(laid):
    rng = np.random.default_rng(1)
    for _, draft in laid:
        for column in value_columns(draft):
            value = {e.word: float(e.value) for e in column.entries}
            texts = {q.text: q.answer for q in (way(column, rng) for way in WAYS)}
            for text, answer in texts.items():
                if text.endswith(" to lowest."):
                    listed = [float(part.split(" ")[1]) for part in answer.split(", ")]
                    assert listed == sorted(value.values(), reverse=True)[: len(listed)]
                if text.startswith("Which has the highest"):
                    named = [word for word in value if re.search(rf"\b{word}\b", text)]
                    assert answer == max(named, key=value.__getitem__)


def test_no_new_word_and_no_unseen_wording(laid, tokenizer):
    rng, turns = np.random.default_rng(2), Turns(tokenizer)
    held_out = [re.sub(r"\\\{\w\\\}", ".+", re.escape(t)) for unseen in WORDINGS["unseen"].values() for t in unseen]
    for _, draft in laid:
        for question in every_way(draft, rng):
            assert not outside_words(tokenizer, f"{question.text} {question.answer}")
            assert not any(re.fullmatch(pattern, question.text) for pattern in held_out)
            ids, before = turns.answered(question.text, question.answer)
            assert len(ids) - before <= 64
            assert question.evidence


def test_scenes_without_pairs_have_no_such_question():
    draft = lay_scene(0, "train", (512, 512), families=("larger",))[1]
    assert binding_question(draft, np.random.default_rng(0)) is None
    assert not links_of(draft)
    assert not practice_questions(draft, ("row_of_value", "extreme", "bar_value", "which_bar", "value_of_row"), 3, ())


@pytest.mark.parametrize("kind", ["row_of_value", "value_of_row", "extreme", "bar_value", "which_bar"])
def test_practice_asks_right_questions_of_a_kind(kind):
    asked = 0
    for seed in SEEDS:
        scene, draft = lay_scene(seed, "train", (512, 512), families=ABOUT)
        found = practice_questions(draft, (kind,), 3, scene.questions)
        assert all(is_right(scene, question) for question in found)
        assert len({(q.answer, q.evidence) for q in (*scene.questions, *found)}) == len(scene.questions) + len(found)
        numbers = [question.answer[0].isdigit() for question in found]
        assert all(numbers) if kind in ("value_of_row", "bar_value") else not any(numbers)
        asked += len(found)
    assert asked > 5


def test_practice_leaves_the_scene_alone():
    scene, draft = lay_scene(5, "train", (512, 512), families=ABOUT)
    practice_questions(draft, ("row_of_value", "extreme"), 4, scene.questions)
    binding_question(draft, np.random.default_rng(0))
    assert scene == make_scene(5, "train", (512, 512), families=ABOUT)
    assert len(scene.elements) == len(draft.elements)


def test_practice_style_turns_labels_and_keeps_the_held_out_font_away():
    turned = 0
    for seed in SEEDS:
        scene, draft = lay_practice(seed, (512, 512), Style(PRACTICE_FONTS, mirrored=True), families=ABOUT)
        assert all(is_right(scene, question) for question in scene.questions)
        fonts = {
            e.font.partition("*")[0] for e in (*scene.elements, *letter_sheet(seed, (256, 256), draft.style).elements)
        }
        assert not fonts & set(UNSEEN_FONTS)
        for bar in draft.bars:
            assert bar.label.box[3] < bar.element.box[1]
        if scene.layout == "table":
            turned += all(v.box[2] < row.label.box[0] for row in draft.rows for v in row.values.values())
    assert turned
    assert not {f.partition("*")[0] for f in PRACTICE_FONTS} & set(UNSEEN_FONTS)


def test_practice_wordings_are_new_in_known_words(tokenizer):
    known = {template for kind in WORDINGS.values() for part in kind.values() for template in part}
    assert PRACTICE_PHRASINGS.keys() == WORDINGS["seen"].keys() == WORDINGS["unseen"].keys()
    fill = dict.fromkeys("acdgklnprsvwxyb", "star")
    for key, templates in PRACTICE_PHRASINGS.items():
        slots = {slot for kind in WORDINGS.values() for t in kind[key] for slot in re.findall(r"{(\w)}", t)}
        for template in templates:
            assert template not in known, template
            assert set(re.findall(r"{(\w)}", template)) <= slots, template
            assert not outside_words(tokenizer, template.format(**fill)), template


def test_practice_layouts_say_what_they_are_asked_and_are_not_of_the_unseen_test():
    style = Style(rephrased=0.0, layouts=True)
    met = set()
    for seed in range(120):
        scene, draft = lay_practice(seed, (512, 512), style, families=ABOUT)
        assert scene.layout not in UNSEEN_LAYOUTS
        if scene.layout not in PRACTICE_LAYOUTS:
            continue
        met.add(scene.layout)
        assert_pairs_hold(scene, draft)
        for row in draft.rows:  # a label stands over its values
            assert all(row.label.box[3] <= value.box[1] + 4 for value in row.values.values())
        for bar in draft.bars:  # and over its bar, which lies
            assert bar.label.box[3] <= bar.element.box[1] + 4
        lengths = sorted((bar.value, bar.element.box[2] - bar.element.box[0]) for bar in draft.bars)
        assert [length for _, length in lengths] == sorted(length for _, length in lengths)
    assert met == set(PRACTICE_LAYOUTS)


def test_rephrased_scenes_ask_the_same_things():
    plain, other = lay_scene(3, "train", (512, 512)), lay_practice(3, (512, 512), Style(rephrased=1.0))
    world = {template for kind in WORDINGS.values() for part in kind.values() for template in part}
    shapes = [re.compile(re.sub(r"\\{\w\\}", ".+", re.escape(template)) + "$") for template in world]
    assert plain[0].layout == other[0].layout
    assert all(any(shape.match(q.text) for shape in shapes) for q in plain[0].questions)
    assert any(not any(shape.match(q.text) for shape in shapes) for q in other[0].questions)


def test_stretched_characters_are_wider():
    plain, wide, narrow = (char_mask(f"serif{width}", 30, "M") for width in ("", "*118", "*82"))
    assert narrow.ink.shape[1] < plain.ink.shape[1] < wide.ink.shape[1]
    assert narrow.advance < plain.advance < wide.advance
    assert abs(narrow.ink.shape[0] - plain.ink.shape[0]) <= 1


def test_links_mark_values_with_their_labels(laid):
    marked = 0
    for scene, draft in laid:
        targets = dense_targets(scene.elements, 16, 16, links_of(draft))
        assert np.array_equal(targets[:, :FIRST_LINK], dense_targets(scene.elements, 16, 16)[:, :FIRST_LINK])
        for row in draft.rows:
            for value in row.values.values():
                cells = sorted(boxes_cells([value.box], 16, 16))
                classes = [FIRST_LINK + LINK_WORDS.index(row.word) + quarter * len(LINK_WORDS) for quarter in range(4)]
                assert targets[cells][:, classes].any()
                marked += 1
        if draft.bars:
            highest = max(draft.bars, key=lambda bar: bar.value)
            link = next(link for link in links_of(draft) if link.words[0] == highest.word)
            assert "highest" in link.words
            assert f"ones {highest.value % 10}" in link.words
    assert marked > 50


def test_links_count_in_dense_steps_alone():
    merged, targets = torch.randn(6, 16), torch.zeros(6, CLASSES)
    head = new_head(16, 0)
    targets[:, FIRST_LINK:] = 1
    counted = (torch.arange(CLASSES) < FIRST_LINK).float()
    part = label_loss(merged, targets, (head.weight, head.bias, counted), torch.float32)
    whole = label_loss(merged, targets, (head.weight, head.bias, torch.ones(CLASSES)), torch.float32)
    assert whole - part > 6 * (CLASSES - FIRST_LINK) * 6


def test_a_smaller_head_is_widened(tmp_path):
    whole, head = new_head(256, 1), new_head(256, 0)
    load_head(whole, CONFIGS / "mini-head.safetensors")
    assert not torch.equal(whole.weight, new_head(256, 1).weight)
    smaller = {"weight": whole.weight[:FIRST_LINK].clone(), "bias": whole.bias[:FIRST_LINK].clone()}
    save_file({name: value.detach() for name, value in smaller.items()}, tmp_path / "smaller.safetensors")
    load_head(head, tmp_path / "smaller.safetensors")
    assert head.bias[FIRST_LINK:].eq(-7.0).all()
    assert torch.equal(head.weight[:FIRST_LINK], whole.weight[:FIRST_LINK])
    save_head(head, tmp_path / "again.safetensors")
    again = new_head(256, 1)
    load_head(again, tmp_path / "again.safetensors")
    assert torch.equal(again.weight, head.weight)
    save_file({"weight": torch.zeros(4, 9), "bias": torch.zeros(4)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="holds a head of"):
        load_head(head, tmp_path / "other.safetensors")


def test_distractors_stay_in_sparse_rows(tokenizer):
    questions = make_scene(2, "train", (512, 512), families=("chart",)).questions
    plain, _ = _within_budget(questions, 6, 256, (16, 16))
    asked, kept = _within_budget(questions, 6, 256, (16, 16), searching=True)
    assert asked == plain == list(questions)
    assert boxes_cells([box for q in questions for box in (*q.evidence, *q.distractors)], 16, 16) == kept
    few, cells = _within_budget(questions, 6, 20, (16, 16), searching=True)
    assert len(few) < len(questions)
    assert len(cells) <= 20

    def cells_at(share):
        config = MiniTrainConfig(
            cells_per_batch=1024, sizes=((256, 256, 1.0),), early_sizes=(), curriculum=(0, 0), distractor_share=share
        )
        return MiniBatches(config, Turns(tokenizer))[0]["cells"].numpy()

    assert (np.diff(cells_at(1.0), axis=1) > 0).all()
    assert not np.array_equal(cells_at(0.0), cells_at(1.0))


@pytest.mark.parametrize("name", ["mini-4-binding", "mini-5-all", "mini-6-variety"])
def test_prepared_configs_make_batches(tokenizer, name):
    config = read_config(CONFIGS / f"{name}.json", steps=10)
    small = {"cells_per_batch": 512, "sizes": ((256, 256, 1.0),), "sheet_shares": (0.0, 0.0)}
    settings = {field: getattr(config, field) for field in config.__slots__} | small
    turns = Turns(tokenizer)
    batch = MiniBatches(MiniTrainConfig(**settings), turns)[0]
    again = MiniBatches(MiniTrainConfig(**settings), turns)[0]
    assert all(torch.equal(batch[key], again[key]) for key in batch)
    assert (batch["dense_text"][1] >= config.questions - 2).any()
    assert batch["targets"][..., FIRST_LINK:].any()


def test_a_missing_practice_font_is_named_at_once(tokenizer, monkeypatch):
    monkeypatch.setitem(PRACTICE_FILES, "modern", "nowhere.ttf")
    load_font.cache_clear()
    MiniBatches(MiniTrainConfig(), Turns(tokenizer))
    with pytest.raises(ValueError, match=r"no nowhere\.ttf in"):
        MiniBatches(MiniTrainConfig(style_share=0.1), Turns(tokenizer))


def test_unknown_kinds_are_refused():
    with pytest.raises(ValueError, match="practice: unknown kinds"):
        MiniTrainConfig(practice=("colours",))
    with pytest.raises(ValueError, match="_share"):
        MiniTrainConfig(binding_share=2.0)
