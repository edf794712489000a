"""How sure an answer is, and looking again where it is not."""

import json
import math

import pytest
import tiny
import torch
from PIL import Image

from arr_coc.cli.run import run
from arr_coc.evaluation.field.data import scene_pictures
from arr_coc.qwen import ARRCOCQwen, streaming, vision
from arr_coc.qwen.streaming import confidence, log_probability
from studies.answering import Answerer, Row
from studies.look_twice.asking_again import Tried
from studies.look_twice.rules import CANDIDATES, CHOSEN, Rule, auroc, reliability

QUESTION = "Which user is it?"


def wrapped(selector: str = "look_twice", **options) -> ARRCOCQwen:
    return ARRCOCQwen(tiny.stock(), processor=tiny.processor(), selector=selector, break_even=0, **options).eval()


@pytest.fixture
def never_sure(monkeypatch):
    monkeypatch.setattr(streaming, "UNSURE", 1.1)


# ---------------------------------------------------------------- confidence


def test_known_logits():
    logits_BV = torch.tensor([[0.0, math.log(3.0), -torch.inf], [2.0, 2.0, 2.0]])
    found_B = log_probability(logits_BV.bfloat16(), torch.tensor([1, 2]))
    assert found_B.dtype == torch.float32
    assert found_B.exp().tolist() == pytest.approx([0.75, 1 / 3], abs=2e-3)
    assert confidence(torch.tensor([0.9, 0.2, 0.99]).log()) == pytest.approx(0.2)
    assert confidence(torch.tensor([0.0, 1e-7])) == 1.0
    assert confidence(torch.tensor([-0.1, torch.nan])) == 0.0


@pytest.mark.parametrize("sampled", [False, True])
def test_it_is_the_probability_of_the_least_likely_token(sampled):
    ours = wrapped()
    inputs = ours.encode_question(tiny.picture(), QUESTION)
    how = {"max_new_tokens": 6, "do_sample": sampled, "temperature": 1.7 if sampled else None}
    told = {"return_dict_in_generate": True, "output_logits": True}
    torch.manual_seed(3)
    made = ours.generate(**inputs, keep=7, **how, **told)
    new_T = made.sequences[0, inputs["input_ids"].shape[1] :]
    by_hand = min(logits[0].softmax(-1)[token].item() for logits, token in zip(made.logits, new_T, strict=True))
    torch.manual_seed(3)
    answer = ours.ask(tiny.picture(), QUESTION, keep=7, **how)
    assert answer.confidence == pytest.approx(by_hand, abs=1e-5)
    assert [(look.tokens_kept, look.confidence) for look in answer.looks] == [(7, answer.confidence)]
    assert answer.looks[0].ms == pytest.approx(sum(ms for part, ms in answer.timings_ms.items() if part != "prefill"))


def test_recorded_is_eager():
    answers = [
        wrapped("arr_coc", fast=fast).ask(tiny.picture(), QUESTION, keep=5, max_new_tokens=8) for fast in (False, True)
    ]
    assert answers[0].text == answers[1].text
    assert answers[1].confidence == pytest.approx(answers[0].confidence, abs=1e-4)
    assert "select" in answers[1].timings_ms


def test_not_known_where_tokens_are_not_picked_one_by_one():
    ours = wrapped()
    assert ours.ask(tiny.picture(), QUESTION, keep=4, max_new_tokens=3, num_beams=2).confidence is None
    several = ours.ask(tiny.picture(), QUESTION, max_new_tokens=3, do_sample=True, num_return_sequences=2)
    assert several.confidence is None
    with pytest.raises(ValueError, match="leave out num_beams or look_again"):
        ours.ask(tiny.picture(), QUESTION, num_beams=2, look_again=True)


def test_batches_of_an_evaluation_are_as_sure_as_the_product():
    owner = ARRCOCQwen.from_pretrained("mini", device="cpu", dtype="float32", selector="even_grid", encoding="sparse")
    (picture,) = scene_pictures(4, 192, 5)
    pixels, answerer = picture.read(), Answerer(owner.model, owner.processor.tokenizer)
    for query in picture.queries:
        answer = owner.ask(Image.fromarray(pixels), query.text, keep=9)
        cells = tuple(answer.selection[0].kept.tolist())
        ((spoken,),) = answerer.speak([Row(pixels, (query.text,), cells)])
        assert spoken.text == answer.text
        assert CANDIDATES[CHOSEN](spoken.best_T2) == pytest.approx(answer.confidence, abs=1e-4)


# ---------------------------------------------------------------- looking again


def test_twice_the_tokens_until_all(never_sure):
    ours = wrapped()
    images = [tiny.picture(), tiny.picture(seed=1)]  # 20 cells each
    answer = ours.ask(images, QUESTION, keep=4, max_new_tokens=4, look_again=True)
    assert [look.tokens_kept for look in answer.looks] == [4, 8, 16, 32, 40]
    assert answer.tokens_kept == answer.tokens_total == 40
    assert answer.confidence == answer.looks[-1].confidence
    assert answer.text == ours.ask(images, QUESTION, keep=1.0, max_new_tokens=4).text
    for keep, looks in ((1.0, [20]), (20, [20]), (0.75, [15, 20])):
        one = ours.ask(images[0], QUESTION, keep=keep, max_new_tokens=2, look_again=True)
        assert [look.tokens_kept for look in one.looks] == looks


def test_only_while_unsure_and_only_if_asked_for(monkeypatch):
    ours = wrapped()
    given = {"keep": 4, "max_new_tokens": 3}
    looks = [ours.ask(tiny.picture(), QUESTION, keep=k, max_new_tokens=3) for k in (4, 8, 16)]
    sure = max(one.confidence for one in looks[1:])
    monkeypatch.setattr(streaming, "UNSURE", sure)
    wanted = 1 + next(place for place, one in enumerate(looks) if one.confidence >= sure)
    answer = ours.ask(tiny.picture(), QUESTION, look_again=True, **given)
    assert len(answer.looks) == wanted
    assert (answer.text, answer.confidence) == (looks[wanted - 1].text, looks[wanted - 1].confidence)
    assert len(ours.ask(tiny.picture(), QUESTION, **given).looks) == 1


@pytest.mark.parametrize("fast", [False, True])
def test_only_the_final_answer_is_streamed(never_sure, fast):
    ours = wrapped("arr_coc", fast=fast)
    given = {"keep": 3, "max_new_tokens": 6}
    whole = ours.ask(tiny.picture(), QUESTION, look_again=True, **given)
    assert len(whole.looks) == 4
    assert whole.text != ours.ask(tiny.picture(), QUESTION, **given).text
    assert "".join(ours.stream(tiny.picture(), QUESTION, look_again=True, **given)) == whole.text


def test_the_small_copy_is_encoded_once_for_all_looks(never_sure, monkeypatch):
    ours, encoded = wrapped(), []
    dense = vision.encode_dense
    monkeypatch.setattr(vision, "encode_dense", lambda *given: encoded.append(1) or dense(*given))
    answer = ours.ask(tiny.picture(), QUESTION, keep=8, max_new_tokens=2, look_again=True)
    assert [look.tokens_kept for look in answer.looks] == [8, 16, 20]
    assert len(encoded) == 1


def test_the_command_tells_of_every_look(never_sure, capsys):
    assert run(["ask", "What colour is the hand?", "--keep", "64", "--look-again", "--json"]) == 0
    out, err = capsys.readouterr()
    looks = json.loads(out)["looks"]
    assert [look["tokens_kept"] for look in looks] == [64, 128, 256]
    told = "; ".join(f"{look['tokens_kept']} tokens, {look['confidence']:.0%} sure" for look in looks[:1])
    assert f"looked 3 times: {told}, " in err
    assert run(["ask", "What colour is the hand?", "--keep", "64"]) == 0
    assert "looked" not in capsys.readouterr().err


# ---------------------------------------------------------------- the study


def test_rules_by_hand():
    sure, unsure = [[0.99, 0.01], [0.95, 0.02]], [[0.6, 0.3], [0.99, 0.0]]
    scores = {k: float(k >= 52) for k in (15, 26, 38, 51, 52, 64, 90, 128, 256)}
    one = Tried(0, "colour", 26, scores, {26: unsure, 52: sure, 256: sure})
    assert Rule(False, "double", 0.8).walk(one) == (1.0, 78, 2)
    assert Rule(True, "all", 0.8).walk(one) == (1.0, 282, 2)
    assert Rule(True, "double", 0.5).walk(one) == (0.0, 26, 1)
    assert auroc([0.9, 0.8, 0.8, 0.1], [True, True, False, False]) == 0.875
    (low,) = reliability([one], 26)["bins"]
    assert low == {"from": 0.6, "n": 1, "confidence": 0.6, "right": 0.0}
