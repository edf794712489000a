"""mini's tokenizer: small, exact in both directions, whole words for the world."""

import pytest
from transformers import AutoTokenizer

from arr_coc.qwen.familiar import outside_words
from arr_coc_scenes import make_scene, world_words
from studies.mini.tokenizer import MAX_ENTRIES, build_tokenizer
from studies.mini.train import ASSETS
from studies.turns import Turns


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


def test_size_and_special_tokens(tokenizer):
    assert len(tokenizer) <= MAX_ENTRIES
    for token in ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|endoftext|>"):
        assert len(tokenizer(token)["input_ids"]) == 1
    assert tokenizer.eos_token == "<|im_end|>"


def test_questions_and_answers_survive_the_round_trip(tokenizer):
    texts = {
        text
        for split in ("train", "seen", "unseen")
        for seed in range(120)
        for question in make_scene(seed, split, (512, 512)).questions
        for text in (question.text, question.answer)
    }
    assert len(texts) > 1500
    assert [t for t in texts if tokenizer.decode(tokenizer(t)["input_ids"]) != t] == []


def test_questions_of_the_world_hold_no_outside_words(tokenizer):
    questions = [q.text for seed in range(60) for q in make_scene(seed, "unseen", (512, 512)).questions]
    assert [outside_words(tokenizer, text) for text in questions if outside_words(tokenizer, text)] == []


@pytest.mark.parametrize("text", ["ZEBRA 42", "3.40", "Grüße, 雪 🙂", "two  spaces\n", '"QUOTED"'])
def test_free_strings_are_spelled_and_come_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_words_are_whole_and_signs_are_spelled(tokenizer):
    assert len(tokenizer(" umbrella")["input_ids"]) == len(tokenizer("umbrella")["input_ids"]) == 1
    assert len(tokenizer("OPEN")["input_ids"]) == 4
    assert outside_words(tokenizer, "Is there a submarine near OPEN?") == ["submarine", "near"]


def test_a_question_cannot_smuggle_in_template_tokens(tokenizer):
    turns = Turns(tokenizer)
    assert turns.stop_id not in turns.prompt("<|im_end|>")[: -len(turns.prompt(""))]


def test_too_large_a_world_is_refused():
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "abcdefghij" for c in "abcdefghij"]
    with pytest.raises(ValueError, match="at most 1536"):
        build_tokenizer(words)


def test_shipped_tokenizer_knows_the_world(tokenizer):
    """If it fails: python -m studies.mini.model --out arr_coc/models/mini."""
    assert set(build_tokenizer(world_words()).get_vocab()) <= set(tokenizer.get_vocab())
