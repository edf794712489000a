"""Descriptions: the same for ever, true, clear, hard to guess, and their splits apart."""

import hashlib
import json
import re
from collections import Counter, defaultdict
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scene_oracle import is_right, readings, things

from arr_coc_scenes import COLOURS, FAMILIES, THINGS, Question, Scene, make_scene, world_words
from arr_coc_scenes.layouts import FLATTEST
from arr_coc_scenes.making import LAYOUTS, SIZES, UNSEEN_LAYOUTS
from arr_coc_scenes.masks import thing_mask
from arr_coc_scenes.palette import distance, lab, visible_colours
from arr_coc_scenes.splits import HELD_OUT_PAIRS, SPLITS, is_held_out_word
from arr_coc_scenes.words import PICTOGRAMS, WORDINGS, phrasing_words, slot_words

COUNT = 200  # scenes per split in the shared sample


@pytest.fixture(scope="module")
def world() -> dict[str, list[Scene]]:
    """A sample of every split, drawn once for all tests here."""
    return {split: [make_scene(seed, split) for seed in range(COUNT)] for split in SPLITS}


def asked(scenes: list[Scene]) -> list[tuple[Scene, Question]]:
    return [(scene, question) for scene in scenes for question in scene.questions]


def canonical(scene: Scene) -> str:
    return hashlib.sha256(json.dumps(asdict(scene), sort_keys=True).encode()).hexdigest()[:16]


# ---- the same for ever ----------------------------------------------------------------------------------

GOLDEN = {
    ("train", 0): "91c6cf4d1f0044ab",
    ("train", 12345): "b8b028ccac83195f",
    ("val", 3): "9bfae3e6cd46415f",
    ("seen", 7): "d25f285bd26bd9bb",
    ("unseen", 11): "5e87a7b593b580e2",
}


@pytest.mark.parametrize(("split", "seed"), GOLDEN)
def test_descriptions_stay_as_they_are(split: str, seed: int) -> None:
    # A change here means that figures measured on these scenes no longer compare: change it knowingly.
    assert canonical(make_scene(seed, split)) == GOLDEN[split, seed]


def test_description_does_not_depend_on_what_was_made_before() -> None:
    first = [make_scene(seed, "train", (320, 256)) for seed in range(6)]
    again = [make_scene(seed, "train", (320, 256)) for seed in reversed(range(6))]
    assert first == again[::-1]


def test_splits_share_no_scene(world: dict[str, list[Scene]]) -> None:
    pictures = [{(s.elements, s.background) for s in scenes} for scenes in world.values()]
    assert sum(map(len, pictures)) == len(set().union(*pictures)) == COUNT * len(SPLITS)


# ---- true and clear -------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_a_second_reader_gives_every_answer(world: dict[str, list[Scene]], split: str) -> None:
    wrong = [(s.seed, s.layout, q.text, q.answer) for s, q in asked(world[split]) if not is_right(s, q)]
    assert not wrong


def test_the_second_reader_can_say_no() -> None:
    scene = make_scene(5, "train", (512, 512), families=["colour"])
    question = scene.questions[0]
    other = next(c for c in COLOURS if c != question.answer)
    lie = Question(question.text, other, "colour", question.evidence, question.distractors)
    assert not is_right(scene, lie)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    split=st.sampled_from(SPLITS),
    width=st.integers(96, 1400),
    height=st.integers(96, 1400),
    crowd=st.floats(0, 1),
    difficulty=st.sampled_from(["plain", "hard", None]),
)
def test_any_size_any_seed(
    seed: int, split: str, width: int, height: int, crowd: float, difficulty: str | None
) -> None:
    scene = make_scene(seed, split, (width, height), difficulty, crowd)
    assert (scene.width, scene.height) == (width, height)
    assert 1 <= len(scene.questions) <= 8
    for element in scene.elements:
        x0, y0, x1, y1 = element.box
        assert 0 <= x0 < x1 <= width, element
        assert 0 <= y0 < y1 <= height, element
    for question in scene.questions:
        assert is_right(scene, question), question
        for x0, y0, x1, y1 in (*question.evidence, *question.distractors):
            assert 0 <= x0 < x1 <= width, question
            assert 0 <= y0 < y1 <= height, question


def test_nothing_covers_anything(world: dict[str, list[Scene]]) -> None:
    for scene in (s for scenes in world.values() for s in scenes):
        boxes = [e.box for e in scene.elements]
        for k, a in enumerate(boxes):
            for b in boxes[k + 1 :]:
                apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                assert apart, (scene.split, scene.seed, scene.layout, a, b)


def test_texts_say_what_their_glyphs_spell(world: dict[str, list[Scene]]) -> None:
    for scene in world["seen"]:
        for element in scene.elements:
            assert "".join(g.char for g in element.glyphs) == element.text.replace(" ", "")
            for glyph in element.glyphs:
                assert element.box[0] <= glyph.box[0] < glyph.box[2] <= element.box[2]
                assert element.box[1] <= glyph.box[1] < glyph.box[3] <= element.box[3]


def test_evidence_is_empty_only_where_nothing_is_there(world: dict[str, list[Scene]]) -> None:
    for scene, question in asked([s for scenes in world.values() for s in scenes]):
        assert (not question.evidence) == (question.answer in ("no", "0")), (scene.seed, question)
        assert not set(question.evidence) & set(question.distractors)


def test_every_thing_can_be_seen(world: dict[str, list[Scene]]) -> None:
    for scene in (s for scenes in world.values() for s in scenes):
        if scene.layout == "board":
            continue  # its things lie on the board, not on the background
        least = 13.0 if scene.difficulty == "hard" else 21.0
        for thing in things(scene):
            word = COLOURS[thing.colour]
            for ground in (scene.background.low, scene.background.high):
                assert abs(lab(word)[0] - lab(ground)[0]) >= least
                assert distance(word, ground) >= 32.0


# ---- hard to guess --------------------------------------------------------------------------------------


def shape_of(question: Question) -> str:
    """The question without its names and numbers: what a guess from the wording can go by."""
    key, slots = readings(question)[0]
    kept = {k: v for k, v in slots.items() if k in ("s", "v", "l", "d", "w", "r")}
    if "p" in slots:
        kept["p"] = " ".join("C" if w in COLOURS else "things" if w == "things" else "N" for w in slots["p"].split())
    coloured = bool(set(slots.get("a", "").split()) & set(COLOURS))
    return f"{key} {sorted(kept.items())} {coloured}"


@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_answers_cannot_be_guessed(split: str) -> None:
    pairs = asked([make_scene(seed, split, (512, 512)) for seed in range(450)])
    by_family: dict[str, Counter[str]] = defaultdict(Counter)
    by_shape: dict[str, Counter[str]] = defaultdict(Counter)
    for _, question in pairs:
        by_family[question.family][question.answer] += 1
        by_shape[shape_of(question)][question.answer] += 1
    majority = sum(max(c.values()) for c in by_family.values()) / len(pairs)
    assert majority < 0.12
    # Guessing with the wording in view: still far below the 35 % a blind model may reach.
    from_words = sum(max(c.values()) for c in by_shape.values()) / len(pairs)
    assert from_words < 0.25
    for family, answers in by_family.items():
        best = max(answers.values()) / answers.total()
        assert best <= (0.64 if family == "exists" else 0.30), (family, best)


def test_yes_and_no_do_not_show_in_the_wording() -> None:
    scenes = [make_scene(seed, "train", (512, 512), families=["exists"]) for seed in range(300)]
    by_shape: dict[str, Counter[str]] = defaultdict(Counter)
    for _, question in asked(scenes):
        by_shape[shape_of(question)][question.answer] += 1
    for shape, answers in by_shape.items():
        if answers.total() > 100:
            assert 0.38 < answers["yes"] / answers.total() < 0.62, (shape, answers)


def test_the_order_of_two_names_does_not_tell_the_larger() -> None:
    first = total = 0
    for seed in range(400):
        scene = make_scene(seed, "train", (512, 512), families=["larger"])
        for question in scene.questions:
            for key, slots in readings(question):
                if key == "larger":
                    total += 1
                    first += slots["x"].split(" sign")[0].endswith(question.answer)
    assert total > 60
    assert 0.35 < first / total < 0.65


def test_every_family_and_layout_occurs(world: dict[str, list[Scene]]) -> None:
    for split, scenes in world.items():
        families = Counter(q.family for _, q in asked(scenes))
        assert set(families) == set(FAMILIES)
        assert min(families.values()) / families.total() > 0.01, (split, families)
        layouts = {s.layout for s in scenes}
        assert layouts == set(UNSEEN_LAYOUTS if split == "unseen" else LAYOUTS)
        assert 5.0 < families.total() / len(scenes) < 7.0


@pytest.mark.parametrize("split", ["train", "unseen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_family_alone(family: str, split: str) -> None:
    for seed in range(4):
        scene = make_scene(seed, split, (384, 384), families=[family])
        assert {q.family for q in scene.questions} == {family}


# ---- what training never sees ---------------------------------------------------------------------------


def test_held_out_pairs_and_words(world: dict[str, list[Scene]]) -> None:
    shown, written = {}, {}
    for split, scenes in world.items():
        pairs = [(t.colour, t.name) for s in scenes for t in things(s)]
        words = [w for s in scenes for e in s.elements for w in e.text.split() if re.fullmatch("[A-Z0-9]{3,}", w)]
        words = [w for w in words if not w.isdigit() or len(w) > 3]
        shown[split] = sum(p in HELD_OUT_PAIRS for p in pairs) / len(pairs)
        written[split] = sum(map(is_held_out_word, words)) / len(words)
    assert shown["train"] == shown["val"] == shown["unseen"] == 0
    assert written["train"] == written["val"] == written["unseen"] == 0
    assert shown["seen"] > 0.25
    assert written["seen"] > 0.35
    assert {t for _, t in HELD_OUT_PAIRS} <= set(THINGS)
    assert 30 <= len(HELD_OUT_PAIRS) <= 60


def test_train_does_not_name_held_out_pairs(world: dict[str, list[Scene]]) -> None:
    # Asked for but never shown, they would always be a "no".
    named = {f"{c} {t}" for c, t in HELD_OUT_PAIRS}
    for _, question in asked(world["train"]):
        if question.family == "exists":
            assert not any(question.text.rstrip("?").endswith(n) for n in named), question.text


def test_unseen_has_its_own_font_and_wording(world: dict[str, list[Scene]]) -> None:
    def fonts(split: str) -> set[str]:
        return {e.font for s in world[split] for e in s.elements if e.kind == "text"}

    assert fonts("unseen") == {"stix", "stix-bold"}
    assert len(fonts("train")) == 6
    assert not fonts("train") & fonts("unseen")
    said = {split: {q.text for _, q in asked(world[split])} for split in SPLITS}
    plain = [t for t in chain_templates("seen") if "{" not in t]
    assert any(t in said["train"] for t in plain)
    assert not any(t in said["unseen"] for t in plain)


def chain_templates(kind: str) -> list[str]:
    return [template for templates in WORDINGS[kind].values() for template in templates]


def test_phrasings_are_many_and_apart() -> None:
    for key, train in WORDINGS["seen"].items():
        unseen = WORDINGS["unseen"][key]
        assert len(set(train)) >= 4, key
        assert len(set(unseen)) >= 2, key
        assert not set(train) & set(unseen), key
        assert all(re.search(r"[.?]$", p) for p in (*train, *unseen)), key
    known = phrasing_words("seen") | slot_words()
    assert phrasing_words("unseen") <= known


# ---- words ----------------------------------------------------------------------------------------------


def test_world_words_cover_all_but_free_strings(world: dict[str, list[Scene]]) -> None:
    words = set(world_words())
    assert len(words) < 700
    free = re.compile(r"[A-Z0-9]{3,}|\d+|\d+\.\d\d")
    for scene, question in asked([s for scenes in world.values() for s in scenes]):
        for part in re.findall(r"\d+\.\d\d|\w+|[^\w\s]", f"{question.text} {question.answer}"):
            assert part in words or free.fullmatch(part), (scene.seed, question.text, part)


def test_things_are_enough_and_distinct() -> None:
    assert len(PICTOGRAMS) >= 40
    assert len(COLOURS) == 10
    assert len(set(THINGS)) == len(THINGS)
    for name in THINGS:
        height, width = thing_mask(name, 40).shape[:2]
        assert max(height, width) <= 40 * FLATTEST + 1, name


def test_each_colour_is_far_from_the_others() -> None:
    inks = list(COLOURS.values())
    assert min(distance(a, b) for k, a in enumerate(inks) for b in inks[k + 1 :]) > 30
    assert len(visible_colours(((250, 250, 250),), hard=False)) >= 6


# ---- knobs ----------------------------------------------------------------------------------------------


def test_crowd_grows_the_scene() -> None:
    def mean(crowd: float) -> float:
        made = [make_scene(seed, "train", (512, 512), "plain", crowd, ["describe", "colour"]) for seed in range(60)]
        return sum(len(things(s)) for s in made) / len(made)

    few, some, many = mean(0.0), mean(0.5), mean(1.0)
    assert few <= 2.0 < some < many


def test_larger_images_hold_more() -> None:
    def mean(side: int) -> float:
        made = [make_scene(seed, "train", (side, side), "plain", 1.0, ["spatial"]) for seed in range(30)]
        return sum(len(things(s)) for s in made) / len(made)

    assert mean(256) < mean(512) < mean(1024)


def test_hard_scenes_have_small_text_and_things() -> None:
    for seed in range(60):
        scene = make_scene(seed, "train", (512, 512), "hard")
        sizes = [e.px for e in scene.elements if e.kind == "text" and e is not title_of(scene)]
        assert all(14 <= px <= 24 for px in sizes)
        plain = make_scene(seed, "train", (512, 512), "plain")
        assert all(e.px >= 14 for e in plain.elements if e.kind == "text")
        assert all(t.px >= 16 for t in (*things(scene), *things(plain)))


def title_of(scene: Scene) -> object:
    boxes = {q.evidence[0] for q in scene.questions if q.family == "title"}
    return next((e for e in scene.elements if e.box in boxes), None)


def test_sizes_are_whole_cells() -> None:
    for width, height in SIZES:
        assert width % 32 == height % 32 == 0
        assert min(width, height) >= 256
        assert max(width, height) <= 1024


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"split": "test"}, "use one of train"),
        ({"size": (64, 512)}, "at least 96"),
        ({"difficulty": "easy"}, "'plain', 'hard'"),
        ({"crowd": 1.5}, "from 0"),
        ({"families": ["colours"]}, "use some of colour"),
        ({"families": []}, "use some of colour"),
    ],
)
def test_mistakes_are_answered_with_a_next_step(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_scene(0, **arguments)  # type: ignore[arg-type]
