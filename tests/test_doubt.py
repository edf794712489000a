"""What a selector learns of trust: questions that are hidden, maps that are mistaken, looks that were not taken."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from training_runs import settings, tiny_model

from arr_coc.config import SCORERS, FirstLook
from arr_coc.data.examples import scene_examples
from arr_coc.qwen.batched import Frame, look_first
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.qwen.request import Request
from arr_coc.records import Judgement
from arr_coc.selectors import ARRCOCSelector
from arr_coc.training.data import make_encoder
from arr_coc.training.groups import GridGroup, make_group
from arr_coc.training.making import Makings, make_learner
from arr_coc.training.step import DoubtingSelector, judge_group, map_losses, with_doubt
from arr_coc_scenes import make_scene

SIZE = (160, 128)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Makings:
    config = settings(tiny_model(tmp_path_factory.mktemp("tiny")), sight="look")
    return make_learner(config, None, torch.device("cpu"))


@pytest.fixture(scope="module")
def group() -> GridGroup:
    """Two scenes with three questions each."""
    drawn = [scene_examples(make_scene(seed, "train", SIZE))[:3] for seed in (1, 2)]
    asked = [(number, example) for number, examples in enumerate(drawn) for example in examples]
    return make_group([examples[0].image for examples in drawn], asked, make_encoder(tiny.tokenizer()), 1.0)


def judged(made: Makings, group: GridGroup, seed: int = 0, **shares: float) -> Judgement:
    config = replace(made.learner.config, **{"hidden_share": 0.0, "noisy_share": 0.0, "light_share": 0.0} | shares)
    return judge_group(made.owner, group, DoubtingSelector(made.owner.layer, config, seed))


def test_many_looks_at_once_are_the_looks_of_each_conversation(made, group):
    owner, pixels = made.owner, group.images_Bhw3.permute(0, 3, 1, 2).float() / 255
    frame = Frame.of(owner.processor, owner.model.config.image_token_id)
    given = (pixels, group.grid, owner.geometry, FirstLook(), (group.ids_RL, group.mask_RL), group.image_R)
    looked_RMN, glance_BXHW = look_first(owner.model, frame, *given)
    looker = replace(owner.looker(), selector=ARRCOCSelector(owner.layer))
    for row, example in enumerate(group.examples):
        image = int(group.image_R[row])
        picture = Image.fromarray(group.images_Bhw3[image].numpy())
        inputs = encode(owner.processor, [Conversation([picture], example.question)])
        inputs.pop("mm_token_type_ids")
        request = Request.of(owner.model.config, owner.device, keep=0.5, original_image=None, **inputs)
        seen = looker.first_looker().look(request, [pixels[image]])
        assert torch.allclose(seen.looked[0], looked_RMN[row], atol=1e-5)
        assert torch.allclose(seen.glances[0], glance_BXHW[image], atol=1e-4)


def test_without_doubt_it_judges_as_the_product_does(made, group):
    plain, learning = judge_group(made.owner, group), judged(made, group)
    assert torch.allclose(plain.balance.relevance_BHW, learning.balance.relevance_BHW, atol=1e-6)
    assert torch.allclose(plain.balance.weights_BS, learning.balance.weights_BS, atol=1e-6)


def test_a_hidden_question_leaves_the_blind_maps_as_they_are(made, group):
    plain, hidden = judged(made, group), judged(made, group, hidden_share=1.0)
    assert (hidden.maps["participatory"] == 0.5).all()
    for name in ("information", "perspectival"):
        assert torch.allclose(plain.maps[name], hidden.maps[name], atol=1e-6)
    assert not torch.allclose(plain.balance.relevance_BHW, hidden.balance.relevance_BHW)


def test_a_mistaken_map_is_weighed_and_not_learned_from(made, group):
    plain, noisy = judged(made, group), judged(made, group, noisy_share=1.0)
    for name in SCORERS:
        assert torch.allclose(plain.maps[name], noisy.maps[name], atol=1e-6)
    assert not torch.allclose(plain.balance.relevance_BHW, noisy.balance.relevance_BHW)


def test_doubt_mixes_the_participatory_map_alone():
    scores, chance = torch.rand(5, 3, 4, 4) * 0.8 + 0.1, np.random.default_rng(1)
    order = np.random.default_rng(1).permutation(5)
    told = with_doubt(scores, torch.tensor([0.0, 1.0, 0.5, 0.0, 1.0]), chance)
    assert torch.equal(told[:, :2], scores[:, :2])
    assert torch.equal(told[[0, 3]], scores[[0, 3]])
    assert torch.allclose(told[1, 2], scores[order[1], 2], atol=1e-5)
    assert torch.allclose(told[2, 2].logit(), (scores[2, 2].logit() + scores[order[2], 2].logit()) / 2, atol=1e-4)


def test_a_light_batch_takes_no_look(made, group):
    light = judged(made, group, light_share=1.0)
    assert DoubtingSelector(made.owner.layer, replace(made.learner.config, light_share=1.0), 0).first_look is None
    wanted = judge_group(made.owner, group, ARRCOCSelector(made.owner.layer, light=1))
    assert torch.allclose(light.balance.relevance_BHW, wanted.balance.relevance_BHW, atol=1e-6)


def test_the_same_seed_doubts_the_same(made, group):
    shares = {"hidden_share": 0.5, "noisy_share": 0.5}
    one, again, other = (judged(made, group, seed, **shares).balance.relevance_BHW for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_every_way_of_knowing_and_the_policy_learn(made, group):
    layer = made.owner.layer
    found = map_losses(judged(made, group, hidden_share=0.3, noisy_share=0.3), group, layer, made.learner.config, None)
    sum(found.values()).backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
    for part in (layer.knowing.information, layer.knowing.perspectival, layer.knowing.participatory, layer.balancing):
        assert all(parameter.grad.abs().sum() > 0 for parameter in part.parameters())
    layer.zero_grad(set_to_none=True)


def test_the_policy_learns_slower_than_the_maps_it_weighs(made):
    peaks = {group["peak"]: {made.names[p] for p in group["params"]} for group in made.optimizer.param_groups}
    slow = peaks[made.learner.config.learning_rate * made.learner.config.policy_rate]
    assert {name.split(".")[1] for name in slow} == {"balancing"}
