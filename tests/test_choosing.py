"""Choosing without answering: the same choice for less, from a part of the model, and from what was seen before."""

import pytest
import tiny
import torch

from arr_coc.config import ARRCOCConfig
from arr_coc.images.clips import Clip
from arr_coc.images.reader import byte_tensor
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen, Chooser, vision
from arr_coc.qwen.memory import Memory
from arr_coc.qwen.processor import Conversation
from arr_coc.selectors import SELECTORS

ASKED = "what is this?"
WAYS = [name for name in sorted(SELECTORS) if name != "oracle"]


def same(one, two) -> bool:
    """Whether two selections are the same to the last bit."""
    told = [(image.grid, image.strategy, image.reason, image.periphery, image.kept.tolist()) for image in (one, two)]
    maps = [[] if image.relevance is None else [image.relevance, *image.maps.values()] for image in (one, two)]
    return told[0] == told[1] and all(torch.equal(a, b) for a, b in zip(*maps, strict=True))


@pytest.fixture
def encoder(monkeypatch):
    """Counts passes of whole images and of windows through the vision encoder."""
    passes = []
    for name in ("encode_dense", "encode_sparse"):
        run = getattr(vision, name)
        monkeypatch.setattr(vision, name, lambda *given, _run=run, _name=name: passes.append(_name) or _run(*given))
    return passes


@pytest.mark.parametrize("selector", WAYS)
@pytest.mark.parametrize("keep", [0.3, 1.0, "auto"])
def test_it_is_the_choice_of_an_answer(selector, keep):
    model = tiny.wrapped(tiny.stock(), selector=selector, break_even=0)
    pictures = [tiny.picture(160, 128), tiny.picture(96, 64, seed=1)]
    answer = model.ask(pictures, ASKED, keep=keep, max_new_tokens=1)
    chosen = model.choose(pictures, ASKED, keep)
    assert len(chosen) == 2
    assert all(same(*pair) for pair in zip(chosen, answer.selection, strict=True))


@pytest.mark.parametrize("encoding", ["sparse", "foveated", "dense", "weighted"])
def test_of_every_encoding(encoding):
    model = tiny.wrapped(tiny.stock(), config=ARRCOCConfig(hidden_dim=32, encoding=encoding), selector="look_twice")
    answer = model.ask(tiny.picture(320, 256), ASKED, keep=0.5, max_new_tokens=1)
    assert same(model.choose(tiny.picture(320, 256), ASKED, 0.5)[0], answer.selection[0])


def test_what_is_kept_is_not_encoded(encoder):
    model = tiny.wrapped(tiny.stock(), selector="arr_coc")
    model.choose(tiny.picture(), ASKED, 0.3)
    model.choose(tiny.picture(), ASKED, 1.0)
    assert encoder == []
    model.ask(tiny.picture(), ASKED, keep=0.3, max_new_tokens=1)
    assert encoder == ["encode_sparse"]


def test_of_inputs_and_of_several_rows():
    model = tiny.wrapped(tiny.stock(), selector="look_twice")
    pictures = [tiny.picture(seed=seed) for seed in range(3)]
    rows = tiny.inputs(Conversation(pictures[:2], ASKED), Conversation(pictures[2:], "and that?"))
    chosen = model.choose(rows, keep=[0.3, 0.6])
    alone = model.choose(pictures[:2], ASKED, 0.3) + model.choose(pictures[2:], "and that?", 0.6)
    assert [image.kept.tolist() for image in chosen] == [image.kept.tolist() for image in alone]
    history = [("a?", "b")]
    answer = model.ask(pictures[0], ASKED, keep=0.3, history=history, max_new_tokens=1)
    assert same(model.choose(pictures[0], ASKED, 0.3, history)[0], answer.selection[0])


# ---------------------------------------------------------------- remembering


@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
def test_a_second_question_sees_nothing_again(selector, monkeypatch):
    config = ARRCOCConfig(hidden_dim=32, sight="glance", glance_dim=32)
    layer = ARRCOCLayer.from_config(config).eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model, fresh = (tiny.wrapped(tiny.stock(), config=config, layer=layer, selector=selector) for _ in range(2))
    fresh.memory = Memory(0)
    pictures = [tiny.picture(seed=seed) for seed in range(2)]
    model.choose(pictures[:1], ASKED, 0.3)
    seen, see = [], type(model.selector).see
    monkeypatch.setattr(
        type(model.selector), "see", lambda self, *given: seen.append(len(given[0])) or see(self, *given)
    )
    for question in (ASKED, "where?", ""):
        again = model.choose(pictures[:1], question or "who?", 0.3)[0]
        assert not seen
        assert same(again, fresh.choose(pictures[:1], question or "who?", 0.3)[0])
        seen.clear()
    both = model.choose(pictures, ASKED, 0.3)  # one is known, one is new
    assert seen == [1]
    for one, two in zip(both, fresh.choose(pictures, ASKED, 0.3), strict=True):
        assert one.kept.tolist() == two.kept.tolist()
        torch.testing.assert_close(one.relevance, two.relevance)


def test_other_weights_see_again():
    model = tiny.wrapped(tiny.stock(), selector="arr_coc")
    before = model.choose(tiny.picture(), ASKED, 0.3)[0].relevance
    with torch.no_grad():
        model.layer.sight.stem.look.weight.add_(0.5)
    changed = model.choose(tiny.picture(), ASKED, 0.3)[0].relevance
    model.memory.clear()
    assert torch.equal(model.choose(tiny.picture(), ASKED, 0.3)[0].relevance, changed)
    assert not torch.equal(before, changed)


def test_what_is_remembered_is_bounded_and_counted():
    model = tiny.wrapped(tiny.stock(), selector="arr_coc")
    model.choose(tiny.picture(), ASKED, 0.3)
    one = model.memory.size
    assert one > 0
    model.memory = Memory(3 * one)
    for seed in range(9):
        model.choose(tiny.picture(seed=seed), ASKED, 0.3)
    assert 0 < model.memory.size <= 3 * one
    model.choose(tiny.picture(seed=8), "and now?", 0.3)
    assert (model.memory.hits, model.memory.misses) == (1, 9)


def test_gradients_are_not_remembered():
    model = tiny.wrapped(tiny.stock(), config=ARRCOCConfig(hidden_dim=32, straight_through=True), selector="arr_coc")
    model(**tiny.inputs(Conversation([tiny.picture()], ASKED)), keep=0.3).logits.sum().backward()
    assert model.memory.size == 0
    assert any(parameter.grad is not None for parameter in model.layer.parameters())


# ---------------------------------------------------------------- a part of the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tiny.wrapped(tiny.stock()).model.save_pretrained(path)
    tiny.processor().save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("selector", "layers"), [("look_twice", 3), ("arr_coc", 0), ("fastv", 4), ("training_free", 0)]
)
def test_a_front_end_holds_what_choosing_needs(folder, selector, layers):
    whole = ARRCOCQwen.from_pretrained(folder, selector=selector, break_even=0)
    part = Chooser.from_pretrained(folder, selector=selector, break_even=0)
    part.layer.load_state_dict(whole.layer.state_dict())
    assert len(part.model.model.language_model.layers) == layers
    assert not any("lm_head" in name for name, _ in part.named_parameters())
    for keep in (0.3, "auto", 1.0):
        pair = (owner.choose(tiny.picture(), ASKED, keep)[0] for owner in (part, whole))
        assert same(*pair)
    assert not hasattr(part, "ask")


def test_a_front_end_looks_at_clips_with_the_layers_that_it_holds(folder):
    """Of clips the whole decoder would be read; nothing is kept for want of layers."""
    part = Chooser.from_pretrained(folder, selector="auto", break_even=0)
    frames = torch.stack([byte_tensor(tiny.picture(seed=n)) for n in range(4)])
    part.strict = True
    chosen = part.choose(None, ASKED, 0.3, video=Clip(frames, (0.0, 0.5, 1.0, 1.5)))
    assert sum(one.tokens_kept for one in chosen) == round(0.3 * sum(one.tokens_total for one in chosen))


def test_a_front_end_that_must_read_questions_is_refused(folder, tmp_path):
    whole = ARRCOCQwen.from_pretrained(folder)
    ARRCOCQwen(whole.model, ARRCOCConfig(hidden_dim=32, pooling="lm", base_model=str(folder))).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="load it as ARRCOCQwen"):
        Chooser.from_pretrained(tmp_path)
