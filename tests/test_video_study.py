"""The study of clips: answers that are made many at a time are the product's, and fewer questions are told as such."""

from dataclasses import replace

import pytest
import torch

from arr_coc.qwen import ARRCOCQwen
from studies.answering import Answerer
from studies.video.study import compared, drawn, product_answers, told
from studies.wide.evaluate_views import ViewAnswerer


@pytest.mark.parametrize(("name", "keep", "encoding"), [("look_twice", 0.1, "sparse"), ("vidcom2", 0.1, "dense")])
@torch.no_grad()
def test_many_at_a_time_are_answered_and_kept_as_one_by_one(name, keep, encoding):
    model = ARRCOCQwen.from_pretrained("mini", break_even=0)
    model.arr_coc_config = replace(model.arr_coc_config, encoding=encoding)
    answerer = ViewAnswerer(Answerer(model.model, model.processor.tokenizer, most_tokens=24))
    asked = drawn(5)
    many = compared(model, answerer, [asked], name, keep)
    assert many == product_answers(model, asked, keep)
    assert any(row["right"] for row in many)


def test_a_method_that_was_asked_less_is_compared_on_what_it_was_asked():
    right, wrong = ({"right": is_right, "kept": 0.1, "family": "order"} for is_right in (True, False))
    records = {"all@1.0": [right] * 4, "look_twice@0.1": [right, wrong, wrong, wrong], "evs@0.1": [wrong, wrong]}
    found = told(records, [0, 1, 2, 3])
    assert [found[name]["questions"] for name in records] == [4, 4, 2]
    assert [found[name]["of_full"] for name in records] == [1.0, 0.25, 0.0]
    assert found["evs@0.1"]["ours_ahead"] == 0.5
