"""The wide world: boxes as drawn, what is held out, words, the hook of the trainer, where training starts."""

import re
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import SceneBatches, draw_examples
from arr_coc_scenes.masks import FURTHER_FILES
from arr_coc_scenes.types import Box, Question
from arr_coc_scenes.words import WORDINGS
from studies.mini import eight_bit
from studies.mini.config import MiniTrainConfig
from studies.mini.data import MiniBatches, find_world
from studies.mini.shards import save_shards
from studies.selector.train import draw_mixed
from studies.wide import held_out
from studies.wide.draft import WideDraft
from studies.wide.evaluate import ask_wide
from studies.wide.faces import TEXT_FILES, text_fonts
from studies.wide.grounds import KINDS
from studies.wide.icons import SETS
from studies.wide.layouts import WIDE_LAYOUTS
from studies.wide.making import TRAINED, Wide, make_wide
from studies.wide.pose import carried_corners, choose_pose, inner_size, map_between
from studies.wide.start import widen_rows, widen_vocabulary
from studies.wide.wording import SYNONYMS, new_words, reworded

SIZE = (320, 320)


@pytest.fixture(scope="module")
def trained() -> list[Wide]:
    return [make_wide(seed, "train", SIZE) for seed in range(60)]


def changed_box(a: np.ndarray, b: np.ndarray) -> Box | None:
    """The box of the pixels that differ clearly."""
    apart = np.abs(a.astype(int) - b.astype(int)).max(2) > 24
    if not apart.any():
        return None
    rows, columns = np.flatnonzero(apart.any(1)), np.flatnonzero(apart.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


# ---- boxes ---------------------------------------------------------------------------------------------


def test_boxes_are_where_the_ink_is(trained: list[Wide]) -> None:
    judged = 0
    for wide in trained[:24]:
        whole = wide.picture()
        slack = 0 if wide.pose is None else 2
        for number in range(0, len(wide.scene.elements), 3):
            element = wide.scene.elements[number]
            found = changed_box(whole, wide.picture(without=number))
            if found is None or any(e is not element and _meet(e.box, element.box) for e in wide.scene.elements):
                continue  # ink of the ground's own tone, or one that another covers
            # Nothing of it lies outside its box, and nearly all of the box is used (rims are soft).
            assert all(f >= b - slack for f, b in zip(found[:2], element.box[:2], strict=True)), (
                wide.scene.seed,
                element,
            )
            assert all(f <= b + slack for f, b in zip(found[2:], element.box[2:], strict=True)), (
                wide.scene.seed,
                element,
            )
            assert sum(abs(f - b) for f, b in zip(found, element.box, strict=True)) <= 8 + slack, (
                wide.scene.seed,
                element,
            )
            judged += 1
    assert judged > 60


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_everything_lies_in_the_picture_and_questions_point_at_it(trained: list[Wide]) -> None:
    for wide in trained:
        assert wide.pixels.shape == (SIZE[1], SIZE[0], 3)
        assert wide.pixels.dtype == np.uint8
        for element in wide.scene.elements:
            x0, y0, x1, y1 = element.box
            assert -2 <= x0 < x1 <= SIZE[0] + 2, (wide.scene.layout, element)
            assert -2 <= y0 < y1 <= SIZE[1] + 2, (wide.scene.layout, element)
            assert len(element.glyphs) == len(element.text.replace(" ", ""))
        known = {e.box for e in wide.scene.elements}
        known |= {box for bar in wide.draft.bars for box in (bar.tip, *bar.scale)}
        assert all(box in known for question in wide.scene.questions for box in question.evidence)


def test_the_same_seed_draws_the_same_picture() -> None:
    first, second = make_wide(3, "train", SIZE), make_wide(3, "train", SIZE)
    assert first.scene == second.scene
    assert np.array_equal(first.pixels, second.pixels)
    assert make_wide(3, "seen", SIZE).scene.elements != first.scene.elements


def test_a_pose_carries_corners_and_keeps_the_drawing_inside() -> None:
    square = np.array([(0, 0), (10, 0), (10, 10), (0, 10)], float)
    moved = map_between(square, square * 2 + 5)
    assert carried_corners(moved, (1, 2, 3, 4)) == (7, 9, 11, 13)
    for seed in range(40):
        pose = choose_pose(Random(seed), SIZE)
        x0, y0, x1, y1 = carried_corners(pose, (0, 0, *inner_size(SIZE)))
        assert x0 >= 0
        assert y0 >= 0
        assert x1 <= SIZE[0]
        assert y1 <= SIZE[1]


# ---- what is held out ------------------------------------------------------------------------------------


def test_training_never_draws_what_is_held_out(trained: list[Wide]) -> None:
    for wide in trained:
        look = wide.draft.chosen
        assert wide.scene.layout not in held_out.LAYOUTS
        assert look.ground not in held_out.GROUNDS
        assert look.capture not in held_out.CAPTURES
        for icons, fill, _ in wide.draft.dress.values():
            assert icons not in held_out.ICON_SETS
            assert fill not in held_out.FILLS
        for element in wide.scene.elements:
            assert element.font not in held_out.FONTS
            assert (element.colour, element.name) not in held_out.PAIRS


def test_each_axis_draws_what_it_holds_out() -> None:
    layouts = [make_wide(seed, "layouts", SIZE) for seed in range(6)]
    assert all(wide.scene.layout in held_out.LAYOUTS for wide in layouts)
    styles = [make_wide(seed, "styles", SIZE) for seed in range(6)]
    assert all(wide.draft.chosen.ground in held_out.GROUNDS for wide in styles)
    pairs = [make_wide(seed, "pairs", SIZE, families=("colour",)) for seed in range(6)]
    shown = [(e.colour, e.name) in held_out.PAIRS for wide in pairs for e in wide.scene.elements if e.name]
    assert sum(shown) > 0.6 * len(shown)
    if set(held_out.FONTS) & set(FURTHER_FILES):
        fonts = [make_wide(seed, "fonts", SIZE) for seed in range(4)]
        assert all(e.font in held_out.FONTS for wide in fonts for e in wide.scene.elements if e.text)


def test_held_out_names_exist() -> None:
    assert set(held_out.ICON_SETS) < set(SETS)
    assert set(held_out.GROUNDS) < set(KINDS)
    assert set(held_out.FONTS) < set(TEXT_FILES)
    assert len(TEXT_FILES) - len(held_out.FONTS) >= 30
    assert not set(WIDE_LAYOUTS) & set(held_out.LAYOUTS)
    assert not set(TRAINED) & set(held_out.LAYOUTS)
    assert not set(text_fonts(False)) & set(held_out.FONTS)


def _as_pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w\}", template.rstrip("?."))
    return re.compile(".+".join(map(re.escape, parts)) + r"[?.]?", re.IGNORECASE)


def test_held_out_wordings_are_not_said_in_training(trained: list[Wide]) -> None:
    patterns = {key: [_as_pattern(t) for t in held_out.WORDINGS[key]] for key in ("colour", "count", "larger", "title")}
    own = {"colour": "colour", "count": "count", "title": "title", "larger": "larger"}
    for wide in trained:
        for question in wide.scene.questions:
            for pattern in patterns.get(own.get(question.family, ""), ()):
                assert not pattern.fullmatch(question.text), question.text


def test_the_wordings_split_uses_them() -> None:
    wide = make_wide(0, "wordings", SIZE)
    assert wide.draft.wording is WORDINGS["unseen"]


# ---- words -----------------------------------------------------------------------------------------------


def test_rewording_keeps_answer_and_evidence_and_varies_the_text() -> None:
    question = Question("What is the colour of the telephone?", "red", "colour", ((1, 2, 3, 4),), ())
    said = [reworded(question, Random(seed)) for seed in range(200)]
    assert all((q.answer, q.evidence) == ("red", question.evidence) for q in said)
    texts = {q.text for q in said}
    assert any("color" in t for t in texts)
    assert any("phone?" in t and "telephone" not in t for t in texts)
    assert any(t[0].islower() for t in texts)
    assert any(not t.endswith("?") for t in texts)


def test_new_words_take_the_next_numbers_and_old_ones_stay() -> None:
    old = {word: number for number, word in enumerate(("<|im_end|>", *_old_words()))}
    wider, origins = widen_vocabulary(old)
    assert all(wider[word] == number for word, number in old.items())
    assert sorted(wider.values()) == list(range(len(wider)))
    assert set(origins) == set(range(len(old), len(wider)))
    assert {"color", "Ġgray", "Ġmonday"} <= set(wider)
    again, none = widen_vocabulary(wider)
    assert again == wider
    assert not none


def _old_words() -> list[str]:
    from arr_coc_scenes.words import world_words

    words = sorted(word for word in world_words() if word.isalpha())
    return [entry for word in words for entry in (word, f"Ġ{word}")]


def test_old_rows_keep_their_weights() -> None:
    import torch

    rows = torch.randn(6, 4)
    wider = widen_rows(rows, {6: 2, 7: 0}, 64)
    assert torch.equal(wider[:6], rows)
    assert wider.shape == (64, 4)
    assert torch.nn.functional.cosine_similarity(wider[6], rows[2], dim=0) > 0.9
    assert not wider[8:].any()


def test_every_synonym_has_a_token() -> None:
    known = {*new_words(), *(w for w in _old_words() if not w.startswith("Ġ"))}
    for others in SYNONYMS.values():
        assert all(word in known for phrase in others for word in phrase.split())


# ---- the trainer and the tests ---------------------------------------------------------------------------


def test_the_trainer_draws_from_the_named_world() -> None:
    from pathlib import Path

    from transformers import AutoTokenizer

    from studies.turns import Turns

    mini = Path(__file__).parents[1] / "arr_coc" / "models" / "mini"
    config = MiniTrainConfig(
        world="studies.wide.training:WIDE",
        world_share=1.0,
        sizes=((256, 256, 1.0),),
        early_sizes=(),
        curriculum=(0.0, 0.0),
        max_images=4,
        practice=("bar_value", "spatial"),
        binding_share=0.5,
    )
    batches = MiniBatches(config, Turns(AutoTokenizer.from_pretrained(mini)))
    batch = batches[0]
    assert batch["images"].shape == (4, 256, 256, 3)
    assert batches.world is not None
    drawn = batches.world.draw(5, (256, 256), 1.0, None)
    assert isinstance(drawn.draft, WideDraft)
    assert drawn.scene.split == "train"
    assert int((batch["dense_answers"][1] >= 0).sum()) > 4
    assert bool(batch["targets"].any())


def test_a_world_needs_its_share() -> None:
    assert find_world("") is None
    with pytest.raises(ValueError, match="world_share"):
        MiniTrainConfig(world="studies.wide.training:WIDE")


def test_tests_ask_as_many_questions_as_wanted() -> None:
    asked = ask_wide("seen", 14, SIZE)
    assert sum(len(a.questions) for a in asked) == 14
    assert all(a.scene.seed < b.scene.seed for a, b in pairwise(asked))


@pytest.mark.parametrize(("split", "size"), [("validation", SIZE), ("train", (64, 512))])
def test_mistakes_are_told(split: str, size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="use"):
        make_wide(0, split, size)


# ---- checkpoints in 8 bits ---------------------------------------------------------------------------------


def test_a_checkpoint_in_8_bits_is_what_it_was_but_for_half_a_step(tmp_path) -> None:
    tensors = {"matrix": torch.randn(6, 4, 3), "vector": torch.randn(5), "model.zero": torch.zeros(2, 3)}
    save_shards(tensors, tmp_path / "whole")
    save_file({"head.weight": torch.randn(3, 4)}, str(tmp_path / "whole" / eight_bit.HEAD))
    eight_bit.main(["pack", str(tmp_path / "whole"), str(tmp_path / "packed.safetensors.xz")])
    eight_bit.main(["unpack", str(tmp_path / "packed.safetensors.xz"), str(tmp_path / "again")])
    (shard,) = (tmp_path / "again").glob("model-*.safetensors")
    again = load_file(str(shard))
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        largest = tensor.flatten(1).abs().amax(1) if tensor.ndim > 1 else tensor.abs()
        step = (largest / 127).view(-1, *[1] * (tensor.ndim - 1))
        assert ((again[name].float() - tensor).abs() <= 0.6 * step + 0.005 * tensor.abs() + 1e-6).all()
    assert load_file(str(tmp_path / "again" / eight_bit.HEAD))["head.weight"].shape == (3, 4)
    with pytest.raises(ValueError, match="holds no model"):
        eight_bit.pack(tmp_path, tmp_path / "nothing.safetensors")


def test_a_selector_learns_from_both_worlds():
    """Its scenes are the plain ones, or for a share of the seeds wide ones, with boxes where the answers are."""
    plain = draw_mixed(0.0, 7, (256, 256), False, None)
    assert [one.question for one in plain] == [one.question for one in draw_examples(7, (256, 256), False, None)]
    wide = draw_mixed(1.0, 7, (256, 256), False, None)
    assert np.array_equal(wide[0].image, make_wide(7, "train", (256, 256)).pixels)
    assert all(one.image is wide[0].image and one.answer for one in wide)
    boxes = [box for one in wide for box in one.boxes]
    assert boxes
    assert all(0 <= x0 < x1 <= 256 and 0 <= y0 < y1 <= 256 for x0, y0, x1, y1 in boxes)
    half = [draw_mixed(0.5, seed, (160, 160), False, ("colour",))[0].name.startswith("wide/") for seed in range(24)]
    assert 4 < sum(half) < 20


def test_batches_are_of_what_draws_them():
    asked = []

    def draw(seed, size, hard, families):
        asked.append((seed, size))
        return draw_mixed(1.0, seed, size, hard, families)

    config = SelectorTrainConfig(cells_per_batch=512, questions=2, sizes=((256, 256, 1.0),))
    (group,) = SceneBatches(config, lambda text: (len(text),), draw=draw)[0]
    assert len(asked) == len(group.images_Bhw3) == 4
    assert {size for _, size in asked} == {(256, 256)}
    wanted = draw_mixed(1.0, *asked[0], False, None)[0].image
    assert np.array_equal(np.asarray(group.images_Bhw3[0]), wanted)
