"""Product, evaluation and training read a question alike and choose alike, however it is pooled."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.config import POOLINGS
from arr_coc.data.examples import Example
from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import scene_pictures
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import text_ids
from arr_coc.qwen.request import Request
from arr_coc.training.data import make_group
from arr_coc.training.step import judge_group
from studies.asked import ask_about
from studies.selector.selection import Chooser
from studies.turns import Turns

KEEP, SIDE = 0.2, 256


@pytest.fixture(scope="module")
def mini():
    return ARRCOCQwen.from_pretrained("mini", device="cpu", encoding="sparse", fast=False)


@pytest.fixture(params=POOLINGS)
def owner(mini, request):
    """mini with a fresh layer of that pooling before it; its policy listens, so that the pooling matters."""
    torch.manual_seed(3)
    config = replace(mini.arr_coc_config, pooling=request.param, trained=True)
    layer = ARRCOCLayer.from_config(config)
    with torch.no_grad():
        layer.balancing.decide[-1].weight.mul_(50)
    return ARRCOCQwen(mini.model, config, layer, mini.processor, fast=False).eval()


def cells(selector, judgement, count) -> list[int]:
    kept = selector.choose(judgement, torch.tensor([round(KEEP * count)])).keep_BHW[0]
    return kept.flatten().nonzero().flatten().tolist()


@torch.no_grad()
def test_the_product_evaluation_and_training_choose_alike(owner):
    (picture,) = scene_pictures(3, SIDE, 0)
    (asked,) = ask_about("seen", 3, (SIDE, SIDE))
    assert np.array_equal(picture.read(), asked.image)
    for number, query in enumerate(picture.queries):
        inputs = owner.encode_question(Image.fromarray(asked.image), query.text)
        prepared = owner.prepare(**inputs, keep=KEEP)
        wanted = prepared.images[0][0].kept.tolist()
        request = Request.of(owner.model.config, owner.device, keep=KEEP, **inputs)
        question = owner.looker().question_of(request)

        looked = make_batch(owner, [replace(picture, queries=picture.queries[number : number + 1])])
        evaluated, _ = looked.judge(owner.selector)
        assert torch.equal(looked.question()[0].tokens_BLD, question.tokens_BLD)
        assert cells(owner.selector, evaluated, 64) == wanted

        example = Example("", asked.image, query.text, "", None)
        group = make_group([asked.image], [(0, example)], lambda text: text_ids(owner.processor.tokenizer, text), 1.0)
        learned = judge_group(owner, group)
        assert torch.equal(owner.looker().question(group.ids_RL, group.mask_RL).tokens_BLD, question.tokens_BLD)
        assert cells(owner.selector, learned, 64) == wanted

        chooser = Chooser(owner.model, Turns(owner.processor.tokenizer), owner.layer)
        assert torch.equal(chooser.question([query.text]).tokens_BLD, question.tokens_BLD)
        assert cells(owner.selector, chooser.judge([asked.image], [(0, query.text)]), 64) == wanted


@torch.no_grad()
def test_the_pooling_is_heard(mini):
    """The same layer under another pooling weighs otherwise: what is compared above can differ."""
    torch.manual_seed(3)
    layer = ARRCOCLayer.from_config(mini.arr_coc_config)
    with torch.no_grad():
        layer.balancing.decide[-1].weight.mul_(50)
    (asked,) = ask_about("seen", 1, (SIDE, SIDE))
    weights = []
    for pooling in ("mean", "last", "lm"):
        layer.pool.pooling = pooling
        config = replace(mini.arr_coc_config, pooling=pooling, trained=True)
        owner = ARRCOCQwen(mini.model, config, layer, mini.processor, fast=False).eval()
        (image,) = owner.choose(Image.fromarray(asked.image), asked.questions[0].text, KEEP)
        weights.append(tuple(image.weights.values()))
    assert len(set(weights)) == 3
