"""Clips and several images of the wide world: boxes as drawn, answers that hold, what is held out, words, batches."""

import json
import re
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from arr_coc_scenes.words import noun, with_article
from studies.answering import Answerer
from studies.cells import boxes_cells
from studies.mini.config import MiniTrainConfig
from studies.mini.data import MiniBatches
from studies.mini.model import mini_config, new_model
from studies.mini.shards import save_shards
from studies.mini.step import Learner
from studies.mini.train import ASSETS
from studies.mini.view_batches import shown_form, spread
from studies.mini.views import Form, ShownViews, prefix_of
from studies.turns import Turns
from studies.wide import clips, evaluate_views, held_out
from studies.wide.acting import BLINKS, ROLES, choose_part
from studies.wide.clip_words import CLIP_WORDINGS, ORDINALS, ORIGINS, SEVERAL_WORDINGS, view_words
from studies.wide.clips import CLIP_FORMS, make_clip
from studies.wide.evaluate import ask_wide
from studies.wide.several import SEVERAL_FORMS, make_several
from studies.wide.start import (
    EMBEDDING,
    first_vocabulary,
    known_entries,
    read_weights,
    widen_vocabulary,
    write_start,
)
from studies.wide.view_sheet import sheet
from studies.wide.wording import new_words

SMALL_CLIP, SMALL_PAIR = Form(((160, 128),), 8), Form(((256, 192), (192, 256)))


@pytest.fixture(scope="module")
def made() -> list[ShownViews]:
    return [make_clip(seed, "train", CLIP_FORMS[seed % len(CLIP_FORMS)]) for seed in range(70)]


@pytest.fixture(scope="module")
def rows() -> list[ShownViews]:
    return [make_several(seed, "train", SEVERAL_FORMS[seed % len(SEVERAL_FORMS)]) for seed in range(36)]


@pytest.fixture(scope="module")
def vocabulary() -> dict[str, int]:
    """Of mini's first world; that of the shipped tokenizer is it, widened."""
    shipped = json.loads((ASSETS / "tokenizer.json").read_text())["model"]["vocab"]
    first = first_vocabulary(shipped)
    assert len(first) < len(shipped)
    assert widen_vocabulary(first)[0] == shipped
    return first


def seen_in(clip: ShownViews, said: str) -> dict[int, tuple[int, int, int, int]]:
    """The boxes by frame of what a question calls `said`."""
    found = {}
    for frame, elements in enumerate(clip.elements):
        for element in elements:
            if said == ("sign" if element.text else element.name):
                found[frame] = element.box
    return found


# ---- clips -----------------------------------------------------------------------------------------------


def test_a_clip_repeats_and_has_the_form_that_was_asked_for(made):
    again = make_clip(9, "train", CLIP_FORMS[2])
    assert all(np.array_equal(a, b) for a, b in zip(made[9].pictures, again.pictures, strict=True))
    assert made[9].questions == again.questions
    for clip in made:
        assert len(clip.pictures) == len(clip.elements) == clip.form.frames
        assert {picture.shape[1::-1] for picture in clip.pictures} == set(clip.form.sizes)
        assert clip.form.cells <= 256


def test_boxes_are_where_the_ink_is_in_every_frame():
    judged = 0
    for seed in range(40):
        found = clips._attempt(Random(seed), "train", SMALL_CLIP)
        if found is None or found[0].chosen.rim or found[0].chosen.shadow:
            continue
        draft, cast = found
        look = draft.chosen
        if look.capture not in ("clean", "light"):
            continue
        whole = clips._frames(Random(1), look, SMALL_CLIP, cast)
        for actor in (one for one in cast if not one.is_sign):
            less = clips._frames(Random(1), look, SMALL_CLIP, [one for one in cast if one is not actor])
            for frame, (a, b) in enumerate(zip(whole, less, strict=True)):
                ink = np.abs(a.astype(int) - b.astype(int)).max(2) > 20
                box = actor.box(frame)
                assert ink.any() == (box is not None)
                if box is not None:
                    ys, xs = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
                    drawn = (xs[0], ys[0], xs[-1] + 1, ys[-1] + 1)
                    assert all(abs(int(d) - b) <= 3 for d, b in zip(drawn, box, strict=True))
                    judged += 1
    assert judged > 60


def test_answers_about_motion_and_time_hold(made):
    asked = {"direction": 0, "order": 0, "often": 0, "count": 0}
    for clip in made:
        for question in clip.questions:
            text = question.text.lower()
            if question.family == "direction" and question.answer in ("left", "right", "up", "down"):
                boxes = [box for _, box in question.evidence]
                dx, dy = boxes[-1][0] - boxes[0][0], boxes[-1][1] - boxes[0][1]
                assert {"left": dx < 0, "right": dx > 0, "up": dy < 0, "down": dy > 0}[question.answer]
                assert min(abs(dx), abs(dy)) == 0
                asked["direction"] += 1
            elif question.family == "order" and ", " in question.answer:
                firsts = [list(seen_in(clip, name)) for name in question.answer.split(", ")]
                key = max if re.search("leave", text) else min
                assert all(key(a) < key(b) for a, b in pairwise(firsts))
                asked["order"] += 1
            elif question.family == "often" and question.answer.isdigit():
                frames = [frame for frame, _ in question.evidence]
                runs = 1 + sum(b - a > 1 for a, b in pairwise(frames))
                assert question.answer == str(runs)
                assert frames[0] >= 2
                asked["often"] += 1
            elif question.family == "count":
                frame = 0 if "start" in text else clip.form.frames - 1
                assert question.answer == str(sum(bool(e.name) for e in clip.elements[frame]))
                asked["count"] += 1
    assert min(asked.values()) >= 10, asked


def test_what_moves_or_comes_is_alone_in_doing_so(made):
    for clip in made:
        names = {e.name or "sign" for elements in clip.elements for e in elements}
        boxes = {name: seen_in(clip, name) for name in names}
        moving = {name for name, found in boxes.items() if len(set(found.values())) > 1}
        coming = {name for name, found in boxes.items() if 0 not in found}
        for question in clip.questions:
            if question.family == "moves" and question.answer in names and " not " not in question.text.lower():
                still = re.search("stays|still", question.text, re.IGNORECASE)
                assert (names - moving if still else moving) == {question.answer}, question
            if question.text.lower().startswith(("what appears?", "which thing appears in the clip")):
                assert coming == {question.answer}


def test_evidence_is_in_the_frames_and_cells_count_through_the_views(made):
    for clip in made:
        width, height = clip.form.sizes[0]
        known = [{element.box for element in elements} for elements in clip.elements]
        for question in clip.questions:
            assert all(box in known[frame] for frame, box in question.evidence)
            assert all(0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height for _, (x0, y0, x1, y1) in question.evidence)
            assert all(0 <= cell < clip.form.cells for cell in clip.evidence(question))
    clip = made[0]
    last = next(q for q in clip.questions if q.evidence)
    per_view = clip.form.cells // (clip.form.frames // 2)
    views = {cell // per_view for cell in clip.evidence(last)}
    assert views == {frame // 2 for frame, _ in last.evidence}


@pytest.mark.parametrize("role", ROLES)
def test_parts_leave_time_to_see_them(role):
    for seed in range(30):
        for frames in (4, 8, 32):
            part = choose_part(Random(seed), role, frames, set())
            assert part is not None
            assert len(part.there) == frames
            changes = [f for f, (a, b) in enumerate(pairwise(part.there), 1) if a != b]
            assert all(b - a >= 2 for a, b in pairwise([0, *changes, frames])) or role != BLINKS
            assert (role == BLINKS and frames >= 8) == (part.role == BLINKS)


# ---- several images --------------------------------------------------------------------------------------


def things_of(row: ShownViews) -> list[set[tuple[str, str]]]:
    return [{(e.colour, e.name) for e in elements if e.name} for elements in row.elements]


def test_which_image_and_how_many_hold(rows):
    judged = 0
    for row in rows:
        images = things_of(row)
        names = {with_article(noun(name)): name for image in images for _, name in image}
        for question in row.questions:
            said = re.search(r"(?:has|shows|have|show|there|see) (an? [a-z ]+?)\??$", question.text)
            if said is None or said.group(1) not in names:
                continue
            holding = [n for n, image in enumerate(images) if names[said.group(1)] in {name for _, name in image}]
            if question.family == "which image":
                assert [question.answer] == [f"the {ORDINALS[n]} image" for n in holding]
                judged += 1
            if question.family == "how many images":
                assert question.answer == str(len(holding))
                judged += 1
    assert judged > 20


def test_a_question_about_one_image_names_it_and_points_at_it(rows):
    own = 0
    for row in rows:
        for question in row.questions:
            named = [n for n, word in enumerate(ORDINALS) if f"{word} " in question.text.lower()]
            if len(named) == 1 and question.family != "differs" and question.evidence:
                assert {number for number, _ in question.evidence} == set(named), question
                own += 1
    assert own > 60


def test_copies_differ_where_the_evidence_is_and_nowhere_else(rows):
    judged = 0
    for row in rows:
        for question in (q for q in row.questions if q.family == "differs"):
            pictures = [picture.astype(int) for picture in row.pictures]
            odd = max(range(len(pictures)), key=lambda n: np.abs(pictures[n] - pictures[(n + 1) % len(pictures)]).sum())
            apart = np.abs(pictures[odd] - pictures[(odd + 1) % len(pictures)]).max(2) > 24
            (x0, y0, x1, y1) = question.evidence[0][1]
            assert apart[y0:y1, x0:x1].any()
            apart[max(0, y0 - 16) : y1 + 16, max(0, x0 - 16) : x1 + 16] = False
            assert not apart.any()  # but for the rim and the shadow that belong to it
            judged += 1
    assert judged > 5


# ---- what is held out, and words -------------------------------------------------------------------------


def test_training_never_shows_what_is_held_out(made, rows):
    unseen = {key: pair[1] for table in (CLIP_WORDINGS, SEVERAL_WORDINGS) for key, pair in table.items()}
    for shown in (*made, *rows):
        for element in (e for elements in shown.elements for e in elements):
            assert element.font not in (*held_out.FONTS, *held_out.ICON_SETS)
            assert (element.colour, element.name) not in held_out.PAIRS
        for question in shown.questions:
            assert question.text not in {text for texts in unseen.values() for text in texts if "{" not in text}


@pytest.mark.parametrize("split", ["pairs", "wordings", "styles"])
def test_each_axis_shows_what_it_holds_out(split):
    clip, row = make_clip(1, split, CLIP_FORMS[1]), make_several(2, split, SEVERAL_FORMS[0])
    if split == "pairs":
        things = [(e.colour, e.name) for shown in (clip, row) for some in shown.elements for e in some if e.name]
        assert sum(pair in held_out.PAIRS for pair in things) > 0.5 * len(things)
    if split == "wordings":
        shapes = [re.escape(t) for key in CLIP_WORDINGS for t in CLIP_WORDINGS[key][1]]
        pattern = re.compile("|".join(re.sub(r"\\\{\w\\\}", ".+", shape) for shape in shapes))
        assert all(pattern.fullmatch(question.text) for question in clip.questions)
    assert clip.questions != make_clip(1, "seen", CLIP_FORMS[1]).questions


def test_every_word_and_timestamp_has_tokens_and_old_numbers_stay(vocabulary, made, rows):
    wider, _ = widen_vocabulary(vocabulary)
    assert all(wider[entry] == number for entry, number in vocabulary.items())
    first = [wider[word] for word in new_words() if word not in vocabulary]
    second = [wider[word] for word in ORIGINS]
    assert max(first) < min(second)
    assert all(word in wider for word in view_words())
    assert all(mark in wider for mark in "0123456789.<>")
    for shown in (*made, *rows):
        for question in shown.questions:
            for word in re.findall(r"\b[a-z]{2,}\b", f"{question.text} {question.answer}"):
                assert word in wider or f"Ġ{word}" in wider, question


def test_weights_of_either_vocabulary_are_widened(vocabulary):
    wider, _ = widen_vocabulary(vocabulary)
    tiles = [-(-size // 64) * 64 for size in (len(vocabulary), len(wider))]
    assert known_entries(tiles[0], vocabulary) == len(vocabulary)
    assert known_entries(tiles[1], vocabulary) == len(wider)
    middle = known_entries(1152, vocabulary)
    assert len(vocabulary) < middle < min(wider[word] for word in ORIGINS) + 1
    with pytest.raises(ValueError, match="fits no vocabulary"):
        known_entries(640, vocabulary)


def test_weights_alone_become_a_model_with_the_words_they_know(tmp_path, vocabulary):
    """The shipped weights know all words; those of before the clips, 1,152 rows of them, get no more."""
    write_start(ASSETS, ASSETS, tmp_path / "all", widened=False)
    assert read_weights(tmp_path / "all").keys() == read_weights(ASSETS).keys()
    assert (tmp_path / "all" / "tokenizer.json").read_text() == (ASSETS / "tokenizer.json").read_text()
    weights = read_weights(ASSETS)
    weights[EMBEDDING] = weights[EMBEDDING][:1152].contiguous()
    save_shards(weights, tmp_path / "few")
    write_start(tmp_path / "few", ASSETS, tmp_path / "own", widened=False)
    known = json.loads((tmp_path / "own" / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(known) == known_entries(1152, vocabulary)
    assert len(read_weights(tmp_path / "own")[EMBEDDING]) == 1152


# ---- batches and evaluation --------------------------------------------------------------------------------


def small_config(**shares: float) -> MiniTrainConfig:
    return MiniTrainConfig(
        world="studies.wide.training:WIDE",
        world_share=1.0,
        sizes=((256, 256, 1.0),),
        early_sizes=(),
        curriculum=(0.0, 0.0),
        max_images=2,
        precision="float32",
        compile=False,
        hidden=64,
        layers=(4, 2),
        **shares,
    )


@pytest.fixture(scope="module")
def turns() -> Turns:
    return Turns(AutoTokenizer.from_pretrained(ASSETS))


@pytest.mark.parametrize("share", ["clip_share", "several_share", "foveated_share"])
def test_batches_of_views_train(turns, share):
    config = small_config(**{share: 1.0})
    batch = MiniBatches(config, turns)[0]
    form = shown_form(batch)
    whole = batch.get("dense_prompt", torch.from_numpy(prefix_of(turns, form).kept(None)[0])[:, None])
    assert batch["sparse_prompt"].shape[1] == 2
    kept = batch["sparse_slots"].shape[1]
    assert batch["sparse_prompt"].shape[2] == whole.shape[2] - form.cells + kept
    assert int(batch["sparse_text"][2].min()) == int(whole[1:].max()) + 1
    assert bool(batch["targets"].any())
    vocabulary = AutoTokenizer.from_pretrained(ASSETS).get_vocab()
    learner = Learner(config, new_model(mini_config(vocabulary, 64, (4, 2)), 0), turns, torch.device("cpu"))
    for use in ("dense", "sparse"):
        before = learner.step(batch, use, 1e-3)
        for _ in range(4):
            learner.step(batch, use, 1e-3)
        assert float(learner.losses(batch, use).answers.detach()) < float(before.answers)


def test_kept_cells_hold_the_evidence_of_what_is_asked(turns):
    config = small_config(clip_share=1.0)
    again = MiniBatches(config, turns)[3]
    batch = MiniBatches(config, turns)[3]
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    rng, grids = np.random.default_rng(0), ((4, 4),) * 4
    for _ in range(30):
        cells = spread({3, 17, 40}, 12, grids, rng)
        assert {3, 17, 40} <= set(cells)
        assert cells == sorted(set(cells))
        assert len(cells) == 12


def test_shares_are_checked():
    with pytest.raises(ValueError, match="at most 1 in all"):
        small_config(clip_share=0.7, several_share=0.7)
    with pytest.raises(ValueError, match="name the world"):
        MiniTrainConfig(clip_share=0.5)


def test_controls_keep_the_questions_and_change_the_pictures():
    rows = evaluate_views.ask_views("clips", ("seen",), 60)
    assert sum(len(row.questions) for row in rows) == 60
    timed, mixed = evaluate_views.in_time(rows), evaluate_views.shuffled(rows)
    assert [row.questions for row in timed] == [row.questions for row in mixed]
    for a, b in zip(timed, mixed, strict=True):
        assert sorted(p.sum() for p in a.shown.pictures) == sorted(p.sum() for p in b.shown.pictures)
    assert any(not np.array_equal(a.shown.pictures[0], b.shown.pictures[0]) for a, b in zip(timed, mixed, strict=True))
    assert all(len(np.unique(p)) == 1 for row in evaluate_views.blank(rows) for p in row.shown.pictures)
    for row in evaluate_views.another(rows):
        own = next(one for one in rows if one.questions == row.questions)
        assert not np.array_equal(own.shown.pictures[-1], row.shown.pictures[-1])
    for row in evaluate_views.with_evidence(rows):
        assert row.shown.evidence(row.questions[0]) <= set(row.cells or ())


def test_what_is_missed_is_not_shown():
    """Half of the evidence is left out and does not come back with the even grid; a small copy is paid for."""
    asked = ask_wide("seen", 12, (512, 512))
    wanted = [boxes_cells(q.evidence, 16, 16) for a in asked for q in a.questions]
    for copied, first in ((False, 0), (True, 25)):
        whole = evaluate_views.window_rows(asked, 0.25, copied=copied, missed=0.0)
        missed = evaluate_views.window_rows(asked, 0.25, copied=copied, missed=0.5)
        for row, half, cells in zip(whole, missed, wanted, strict=True):
            shown, left = ({c - first for c in one.cells if c >= first} for one in (row, half))
            assert cells <= shown
            assert len(left) == max(64 - first, len(cells & left))
            assert row.cells[:first] == half.cells[:first] == tuple(range(first))
        kept = sum(len(c & {x - first for x in half.cells}) for c, half in zip(wanted, missed, strict=True))
        assert 0.35 < kept / sum(map(len, wanted)) < 0.65


def test_a_model_is_asked_about_every_row(turns):
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = new_model(mini_config(tokenizer.get_vocab(), 64, (4, 2)), 0).eval()
    answerer = Answerer(model, tokenizer, most_tokens=4)
    rows = evaluate_views.ask_views("several", ("pairs", "layouts"), 7)
    found = evaluate_views.view_outcomes(answerer, [*rows, *evaluate_views.with_evidence(rows)])
    assert [o.expected for o in found] == 2 * [q.answer for row in rows for q in row.questions]
    assert {o.difficulty for o in found} == {"pairs", "layouts"}


@pytest.mark.parametrize("mistake", [Form(((128, 128),), 5), Form(((128, 128),), 2)])
def test_mistakes_are_told(mistake):
    with pytest.raises(ValueError, match="even number from 4"):
        make_clip(0, "train", mistake)
    with pytest.raises(ValueError, match="use 2 to 4"):
        make_several(0, "train", Form(((256, 256),)))
    for make in (make_clip, make_several):
        with pytest.raises(ValueError, match="unknown split"):
            make(0, "validation", SMALL_CLIP if make is make_clip else SMALL_PAIR)


def test_a_sheet_shows_rows_and_questions():
    assert sheet("several", "train", 0, 1, 2).width >= 768
    assert sheet("clips", "styles", 0, 1, 2).height > 256
