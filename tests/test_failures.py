"""If choosing fails, every token is kept, the reason is in the answer, and the answer comes: on every path."""

import math
from functools import lru_cache

import pytest
import tiny
import torch

from arr_coc.config import ARRCOCConfig
from arr_coc.demo.ask import ask as demo_ask
from arr_coc.demo.inputs import Inquiry
from arr_coc.demo.models import Models
from arr_coc.knowing import Knowing
from arr_coc.lmms.requests import answer_chats, read_chat
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import Conversation
from arr_coc.selectors import look_twice, make_selector

QUESTION = "what is this?"
PICTURES = [tiny.picture(), tiny.picture(96, 96, 1)]
NEW = 6

# What is broken: the maps of the trained layer, and the product of the selector that looks twice.
SOUND = {"arr_coc": Knowing.forward, "look_twice": look_twice.multiply}


def raises(sound, *given):
    raise RuntimeError("the scorer broke")


def not_a_number(sound, *given):
    return sound(*given) * math.nan


def infinite(sound, *given):
    return sound(*given) + math.inf


def one_column_short(sound, *given):
    return sound(*given)[..., :-1]


def one_row_too_many(sound, *given):
    return torch.nn.functional.pad(sound(*given), (0, 0, 0, 1))


def out_of_memory(sound, *given):
    raise torch.OutOfMemoryError("CUDA out of memory")


FAULTS = {
    "raises": (raises, "choosing failed (RuntimeError)"),
    "NaN": (not_a_number, "the scores were not finite"),
    "infinity": (infinite, "the scores were not finite"),
    "a column short": (one_column_short, "choosing failed (ValueError)"),
    "a row too many": (one_row_too_many, "choosing failed (ValueError)"),
    "out of memory": (out_of_memory, "choosing failed (OutOfMemoryError)"),
}


def break_it(monkeypatch, name, fault):
    """One of the selectors fails from now on."""
    place = (Knowing, "forward") if name == "arr_coc" else (look_twice, "multiply")
    monkeypatch.setattr(*place, lambda *given: fault(SOUND[name], *given))


@pytest.fixture(scope="module", params=SOUND)
def ours(request) -> ARRCOCQwen:
    config = ARRCOCConfig(32, sight="glance", glance_dim=32, trained=True, encoding="sparse")
    return ARRCOCQwen(tiny.stock(), config, processor=tiny.processor(), selector=request.param).eval()


def told(images) -> list[tuple[int, int, str, str]]:
    return [(image.tokens_kept, image.tokens_total, image.strategy, image.reason) for image in images]


def ask(ours, pictures, keep):
    answer = ours.ask(pictures, QUESTION, keep=keep, max_new_tokens=NEW, do_sample=False)
    return [answer.text], told(answer.selection)


def stream(ours, pictures, keep):
    text = "".join(ours.stream(pictures, QUESTION, keep=keep, max_new_tokens=NEW, do_sample=False))
    return [text], told(ours.choose(pictures, QUESTION, keep))


def batch(ours, pictures, keep):
    conversations = [Conversation(pictures, QUESTION), Conversation(pictures[:1], "and " + QUESTION)]
    inputs = {name: value for name, value in tiny.inputs(*conversations).items() if name != "mm_token_type_ids"}
    new = ours.generate(**inputs, keep=keep, max_new_tokens=NEW, do_sample=False)[:, -NEW:]
    return new.tolist(), [one for images in ours.prepare(**inputs, keep=keep).images for one in told(images)]


def chats(ours, pictures, keep):
    before, ours.keep = ours.keep, keep
    try:
        parts = [{"type": "image", "url": picture} for picture in pictures]
        chat = read_chat([{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}])
        (reply,) = answer_chats(ours, [chat], {"max_new_tokens": NEW, "do_sample": False})
    finally:
        ours.keep = before
    return [reply.text], [
        (reply.visual_kept, reply.visual_total, *one[2:]) for one in told(ours.choose(pictures, QUESTION, keep))
    ]


PATHS = {"ask": ask, "stream": stream, "batch": batch, "lmms plugin": chats}


@lru_cache
def sound(ours, path, images):
    """What is said with every token kept, where nothing is broken; then tokens are dropped, too."""
    _, kept = PATHS[path](ours, PICTURES[:images], 0.3)
    assert kept[0][0] < kept[0][1]
    return PATHS[path](ours, PICTURES[:images], 1.0)[0]


ONE_IMAGE = [("ask", PICTURES[:1])]  # every other path is tried with several


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("path", "pictures"), [*ONE_IMAGE, *((path, PICTURES) for path in PATHS)])
@pytest.mark.parametrize("fast", [False, True], ids=["eager", "recorded"])
def test_the_answer_comes_with_every_token_and_the_reason(ours, monkeypatch, path, fast, pictures, fault):
    ours.fast = fast
    wanted = sound(ours, path, len(pictures))
    broken, reason = FAULTS[fault]
    break_it(monkeypatch, ours.selector.name, broken)
    ours.fast_runner = None  # recordings hold the scorer as it was
    found, kept = PATHS[path](ours, pictures, 0.3)
    ours.fast_runner = None
    assert found == wanted
    for tokens, total, strategy, why in kept:
        assert tokens == total
        assert strategy == "keep_all"
        assert why.startswith(reason)
        assert why.endswith("every token was kept")


def test_the_recorded_path_says_that_it_was_left(ours, monkeypatch):
    ours.fast, ours.fast_runner = True, None
    break_it(monkeypatch, ours.selector.name, raises)
    ask(ours, PICTURES[:1], 0.3)
    assert "the fast path is left: choosing failed (RuntimeError)" in ours.notices


@pytest.mark.parametrize("fast", [False, True], ids=["eager", "recorded"])
def test_a_selector_of_the_field_that_breaks_keeps_every_token(fast, monkeypatch):
    ours = tiny.wrapped(tiny.stock(), selector="training_free", fast=fast)
    wanted, _ = ask(ours, PICTURES[:1], 1.0)
    monkeypatch.setattr("arr_coc.selectors.training_free.word_match", lambda *_: torch.full((1, 20), math.nan))
    found, kept = ask(ours, PICTURES[:1], 0.3)
    assert found == wanted
    assert kept[0][:3] == (20, 20, "keep_all")


def test_in_training_a_broken_scorer_is_an_error(ours, monkeypatch):
    break_it(monkeypatch, ours.selector.name, raises)
    ours.fast = False
    try:
        with pytest.raises(RuntimeError, match="the scorer broke"):
            batch(ours.train(), PICTURES[:1], 0.3)
    finally:
        ours.eval()


def test_what_the_caller_did_wrong_is_not_a_failure_of_the_choice(ours):
    told_nothing = tiny.wrapped(ours.model, selector=make_selector("oracle", ours.arr_coc_config, ours.layer))
    with pytest.raises(ValueError, match="must be told where the answer is"):
        ask(told_nothing, PICTURES[:1], 0.3)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_page_answers_with_every_token_and_the_reason(demo_models, monkeypatch, fault):
    asked = Inquiry(PICTURES[0], "What colour is the hand?", 0.1)
    broken, reason = FAULTS[fault]
    *_, sound_one = demo_ask(demo_models, "mini", asked)
    assert sound_one.stats.startswith("**2** of 20")
    *_, whole = demo_ask(demo_models, "mini", Inquiry(asked.image, asked.question, 1.0))
    break_it(monkeypatch, "arr_coc", broken)
    *_, told_one = demo_ask(demo_models, "mini", asked)
    assert told_one.answer == whole.answer
    assert told_one.stats.startswith("**20** of 20")
    assert reason in told_one.stats
    assert reason in told_one.notices


@pytest.fixture(scope="module")
def demo_models():
    return Models(["mini"])
