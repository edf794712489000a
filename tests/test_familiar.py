"""What mini knows and what it does not: words by another name, words of another world, photographs."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoTokenizer

from arr_coc import ARRCOCQwen
from arr_coc.cli.run import run
from arr_coc.qwen import familiar
from arr_coc.qwen.familiar import CALLED, PROBE, meant, outside_words, words_notices
from arr_coc.qwen.loading import resolve
from arr_coc.selectors import ARRCOCSelector
from arr_coc_scenes import draw_scene, make_scene
from studies.wide.making import make_wide

PHOTOGRAPH = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
TOKENIZER = AutoTokenizer.from_pretrained(resolve("mini"))
KNOWN = sorted(word for word in TOKENIZER.get_vocab() if word.isalpha() and word.isascii() and len(word) > 1)


@pytest.fixture(scope="module")
def mini():
    return ARRCOCQwen.from_pretrained("mini")


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("WHAT COLOUR IS THE HAND", "what colour is the hand"),
        ("Colour of the hand?", "What is the colour of the hand?"),
        ("What's beneath the cloud", "What is below the cloud"),
        ("which words are blue", "which word is blue"),
        ("How many stars?", "How many stars are there?"),
        ("Are there any leaves?", "Is there a leaf?"),
        ("Are there snowmen", "Is there a snowman?"),
        ("Which icon is violet?", "Which symbol is purple?"),
        ("IS THERE A SIGN THAT SAYS OPEN", "is there a sign that says OPEN"),
        ('Does the sign say "SHAPE"?', 'Does the sign say "SHAPE"?'),
    ],
)
def test_what_is_typed_is_read_in_words_that_mini_knows(typed, read):
    assert meant(TOKENIZER, typed) == read
    assert not outside_words(TOKENIZER, read)
    # Only other capitals need no word.
    assert bool(words_notices(TOKENIZER, typed)) == (typed.lower() != read.lower())


def test_every_other_name_stands_for_a_word_that_is_known():
    assert [name for name, word in CALLED.items() if name in KNOWN or word not in KNOWN] == []


@given(st.lists(st.sampled_from(KNOWN), min_size=1, max_size=6).map(" ".join))
def test_questions_of_known_words_stay_as_they_are(text):
    assert meant(TOKENIZER, f"Which {text}") == f"Which {text}"


def test_questions_of_the_world_stay_as_they_are():
    texts = {q.text for seed in range(60) for q in (*make_scene(seed, "unseen").questions,)}
    assert [text for text in texts if meant(TOKENIZER, text) != text] == []


@pytest.mark.timeout(20)
def test_a_question_without_end_is_read_at_once():
    """All that wait would wait for it."""
    for middle in ("!", "! ", "a", "a ", "!a"):
        for start in ("Colour of ", "How many ", "Are there ", ""):
            endless = f"{start}a{middle * 100_000}\nb"
            assert len(meant(TOKENIZER, endless)) >= len(endless) - len(start)


def test_another_model_reads_what_was_typed():
    class Large:
        def __len__(self) -> int:
            return 151_669

    assert meant(Large(), "Colour of the hand?") == "Colour of the hand?"
    assert words_notices(Large(), "Is there an automobile?") == []


# ---------------------------------------------------------------- asked


@pytest.mark.parametrize("question", ["What color is the hand?", "WHAT COLOUR IS THE HAND", "what colour is the hand"])
def test_the_hand_is_green_however_it_is_asked(mini, question):
    answer = mini.ask("arr_coc/assets/sample.png", question)
    assert (answer.text, answer.notices) == ("green", ())


def test_a_photograph_is_told_and_drawings_are_not(mini):
    answer = mini.ask(PHOTOGRAPH, "Is there a hat?")
    assert answer.notices == (
        "this looks like a photograph; mini knows drawings",
        "mini only knows drawn scenes, and not the words: hat",
    )
    several = [PHOTOGRAPH, "arr_coc/assets/sample.png", PHOTOGRAPH]
    assert mini.unfamiliar(several, "What color is the hand?") == [
        "image 1, 3 looks like a photograph; mini knows drawings"
    ]
    drawn = [draw_scene(make_scene(seed, "seen", (512, 384))) for seed in range(8)]
    drawn += [make_wide(seed, "seen", (384, 512)).pixels for seed in range(8)]
    told = [bool(mini.unfamiliar(Image.fromarray(np.array(pixels)))) for pixels in drawn]
    assert sum(told) <= 1


def test_an_image_is_judged_once(mini, monkeypatch):
    first = mini.unfamiliar(PHOTOGRAPH)
    monkeypatch.setattr(familiar, "impression", None)  # nothing looks again
    assert mini.unfamiliar(PHOTOGRAPH) == first != []
    with pytest.raises(TypeError):
        mini.unfamiliar(Image.new("RGB", (64, 64)))


@pytest.mark.parametrize("light", [0, 1])
def test_a_glance_of_the_selector_judges_as_well(mini, monkeypatch, light):
    """What is left by a choice differs little from what is made for it, so that an answer pays for one glance only.

    A copy of 64 cells is as large as what the probe judges where the image is square; others pay for their own.
    """
    own = (mini.model, mini.arr_coc_config, mini.layer, mini.processor)
    mini = ARRCOCQwen(*own, selector=ARRCOCSelector(mini.layer, light)).eval()
    pictures = [np.array(Image.open(PHOTOGRAPH).crop((0, 0, 512, 512 + 96 * n))) for n in range(2)]
    pictures += [draw_scene(make_scene(seed, "seen", (512 + 256 * seed, 512 + 128 * seed))) for seed in range(3)]
    inputs = [mini.encode_question(Image.fromarray(np.array(pixels)), "What colour is it?") for pixels in pictures]
    weight_X, bias = mini._probe
    for one in inputs:
        image = one["original_image"][0]
        (key,) = mini.impressions.keys([image], mini.model.model)
        assert mini.impressions.get(key) is None
        mini.choose(one, keep=0.25)
        left = mini.impressions.get(key)
        if image.shape[-2] != image.shape[-1]:
            assert left is None
            continue
        own = familiar.impression(mini.model, image, mini.geometry) @ weight_X + bias
        assert abs(left[0] @ weight_X + bias - own) < 0.5, "drawings are about 6 under a photograph"
    paid, pay = [], familiar.impression
    monkeypatch.setattr(familiar, "impression", lambda *given: paid.append(given) or pay(*given))
    assert [bool(mini.unfamiliar(one)) for one in inputs] == [True, True, False, False, False]
    assert len(paid) == 3


def test_a_model_without_a_probe_says_nothing_of_pictures(mini, monkeypatch):
    monkeypatch.setattr(mini.model.config, "_name_or_path", "somewhere/else")
    assert ARRCOCQwen(mini.model).unfamiliar(PHOTOGRAPH) == []


@pytest.mark.parametrize("said", ['{"weight": [1, 2], "bias": 0}', '{"bias": 0}', '{"weight": "a", "bias": {}}', "[1]"])
def test_a_damaged_probe_is_told_when_the_model_is_loaded(mini, monkeypatch, tmp_path, said):
    (tmp_path / PROBE).write_text(said)
    monkeypatch.setattr(mini.model.config, "_name_or_path", str(tmp_path))
    with pytest.raises(ValueError, match=r"familiar\.json: .*(copy the model again|move it away)"):
        ARRCOCQwen(mini.model)


def test_it_is_told_before_the_answer(capsys):
    assert run(["ask", str(PHOTOGRAPH), "How many stars?"]) == 0
    said = capsys.readouterr()
    assert said.out.strip().isdigit()
    first, second, *_ = said.err.splitlines()
    assert first == "this looks like a photograph; mini knows drawings"
    assert second == 'mini reads this as "How many stars are there?"'
