"""Published sizes of Qwen3-VL with random weights: the right settings, the right counts, and weights that are real."""

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.qwen.shapes import SHAPES, build_random, build_shape, count_parts, shape_config

SMALL = {
    "text_config": {
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 96},
    },
    "vision_config": {
        **{"hidden_size": 128, "depth": 4, "intermediate_size": 64, "out_hidden_size": 64},
        **{"deepstack_visual_indexes": [0, 1, 2]},
    },
}


@pytest.fixture
def small_shape(monkeypatch):
    """A shape of the same family that is built in a moment."""
    like = SHAPES["qwen3-vl-2b"]
    monkeypatch.setitem(SHAPES, "small", like | {part: like[part] | changed for part, changed in SMALL.items()})
    return "small"


@pytest.mark.parametrize(
    ("name", "vision", "language"),
    [("qwen3-vl-2b", 407, 1_721), ("qwen3-vl-4b", 415, 4_022), ("qwen3-vl-8b", 576, 8_191)],
)
def test_published_sizes_have_the_published_parameters(name, vision, language):
    parts = count_parts(shape_config(name))
    assert round(parts["vision"] / 1e6) == vision
    assert round((parts["text"] + parts["embeddings"]) / 1e6) == language


def test_settings_reach_the_configuration():
    config = shape_config("qwen3-vl-8b")
    text, vision = config.text_config, config.vision_config
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim, text.vocab_size) == (32, 8, 128, 151936)
    assert text.rope_parameters["rope_theta"] == 5e6
    assert text.rope_parameters["mrope_section"] == [24, 20, 20]
    assert vision.out_hidden_size == text.hidden_size == 4096
    assert list(vision.deepstack_visual_indexes) == [8, 16, 24]
    assert not config.tie_word_embeddings
    assert shape_config("qwen3-vl-2b").tie_word_embeddings


def test_a_config_is_fresh_every_time():
    shape_config("qwen3-vl-2b").text_config.rope_parameters["rope_theta"] = 1.0
    assert shape_config("qwen3-vl-2b").text_config.rope_parameters["rope_theta"] == 5e6


@settings(max_examples=5, deadline=None)
@given(layers=st.integers(1, 3), heads=st.sampled_from([1, 2]), tied=st.booleans())
def test_counts_are_those_of_the_built_model(layers, heads, tied):
    config = tiny.config()
    config.text_config.num_hidden_layers, config.text_config.num_key_value_heads = layers, heads
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = tied
    model, parts = build_random(config, "cpu", torch.float32), count_parts(config)
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())
    assert parts["embeddings"] == (1 if tied else 2) * model.get_input_embeddings().weight.numel()
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_random_and_norms_are_one(small_shape, dtype):
    model = build_shape(small_shape, "cpu", dtype, seed=3)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert not model.training
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert 0.01 < parameter.float().std() < 0.03, name
        else:
            assert (parameter == (0.0 if name.endswith("bias") else 1.0)).all(), name


def test_the_seed_decides(small_shape):
    first, again, other = (build_shape(small_shape, "cpu", torch.float32, seed) for seed in (1, 1, 2))
    name = "model.visual.blocks.0.attn.qkv.weight"
    assert torch.equal(first.get_parameter(name), again.get_parameter(name))
    assert not torch.equal(first.get_parameter(name), other.get_parameter(name))


def test_rotary_frequencies_are_those_of_the_stock_model():
    built, stock = build_random(tiny.config(), "cpu", torch.bfloat16), tiny.stock()
    expected = dict(stock.named_buffers())
    assert expected
    for name, buffer in built.named_buffers():
        assert torch.equal(buffer, expected[name]), name


def test_it_answers_like_a_stock_model_with_the_same_weights():
    built, stock = build_random(tiny.config(), "cpu", torch.float32), tiny.stock()
    stock.load_state_dict(built.state_dict())
    inputs = tiny.stock_inputs(tiny.inputs(tiny.Conversation([tiny.picture()], "what is it?")))
    with torch.no_grad():
        assert torch.equal(built(**inputs).logits, stock(**inputs).logits)


def test_mistakes_are_told_in_one_line():
    with pytest.raises(ValueError, match=r"^shape 'qwen3-vl-3b': known shapes are qwen3-vl-2b, .*8b$"):
        build_shape("qwen3-vl-3b")


@pytest.mark.parametrize(("settings", "stock"), [(tiny.config, tiny.stock), (tiny.config35, tiny.stock35)])
@pytest.mark.parametrize("moe", [False, True])
def test_every_family_is_counted_and_built(settings, stock, moe):
    built, model = build_random(settings(moe), "cpu", torch.float32), stock(moe=moe)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    assert {name: weight.shape for name, weight in built.named_parameters()} == shapes
    assert sum(count_parts(settings(moe)).values()) == sum(weight.numel() for weight in model.parameters())
