"""The formulas against what torch really keeps: tensors saved for the backward pass, and the peak of live tensors."""

import weakref
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from transformers import Qwen3VLConfig

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.adapting import adapt, enable_checkpointing
from arr_coc.qwen.processor import Conversation
from arr_coc.qwen.shapes import build_random, shape_config
from arr_coc.records import QuestionTokens
from arr_coc.timing import Stopwatch
from arr_coc.training.memory import (
    RESERVE_GB,
    WORKSPACE,
    MemoryEstimate,
    Plan,
    describe,
    estimate_plan,
    largest_batch,
    logit_bytes,
    lora_parameters,
    text_saved,
    trained_parameters,
    vision_saved,
)

KEEP, SIDE = 0.5, 256
PARAMETERS = 700_000  # of a selector at the width of 2B
PRODUCTS = {  # whose 16-bit forms take CPUs a hundred times as long
    *(torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default),
    *(torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default),
}


def small_config(vocabulary: int = 2048) -> Qwen3VLConfig:
    """2B's proportions at an eighth of its width."""
    marks = tiny.config()
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 8, 8]},
    }
    vision = {
        "depth": 6,
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_heads": 2,
        "out_hidden_size": 256,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [1, 2, 3],
    }
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(marks, name) for name in names}
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)


def batch(count: int = 2) -> dict[str, Tensor]:
    """Questions of different lengths, so that there is padding and with it a mask."""
    questions = ["w" * (60 - number) for number in range(count)]
    return tiny.inputs(*(Conversation([tiny.picture(SIDE, SIDE, i)], text) for i, text in enumerate(questions)))


def answers(inputs: dict[str, Tensor]) -> Tensor:
    labels = inputs["input_ids"].clone()
    labels[:, :-10] = -100
    return labels


class SavedTensors:
    """Bytes of all storages that autograd saves, each once, without those of parameters and inputs."""

    def __init__(self, *known: Tensor) -> None:
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.storages: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.known:
            self.storages[storage.data_ptr()] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of tensors as they come and go, as an allocator would."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.now += self.sizes[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.forget, key)

    def forget(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        half = function in PRODUCTS and any(leaf.dtype == torch.bfloat16 for leaf in tensors_of(args))
        wide = tree_map_only(Tensor, Tensor.float, args) if half else args  # not seen by anybody, so not counted
        output = function(*wide, **(kwargs or {}))
        output = tree_map_only(Tensor, Tensor.bfloat16, output) if half else output
        for leaf in tensors_of(output):
            self.count(leaf)
        return output


def tensors_of(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


# ---------------------------------------------------------------- against torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["lora", "last4", "all"])
def test_saved_tensors_are_those_of_the_formulas(how, dtype):
    config, inputs = small_config(), batch()
    model = build_random(config, "cpu", dtype).train()
    adapt(model, how, rank=16)
    saved = SavedTensors(*model.parameters(), *inputs.values())
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        model(**tiny.stock_inputs(inputs), labels=answers(inputs), use_cache=False)
    rows, columns = inputs["input_ids"].shape
    more = {"encoding": "dense", "gated": False}
    plan = Plan(config, how, 2, rows, SIDE, 1.0, columns - (SIDE // 32) ** 2, dtype, False, 0, **more)
    log_softmax = 4 * rows * columns * config.text_config.vocab_size
    expected = vision_saved(plan)[0] + text_saved(plan)[0] + log_softmax
    assert saved.bytes == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("how", "checkpointing", "dtype", "encoding"),
    [
        ("none", False, torch.float32, "dense"),
        ("none", True, torch.bfloat16, "sparse"),
        ("lora", False, torch.bfloat16, "sparse"),
        ("lora", True, torch.float32, "sparse"),
        ("lora", True, torch.bfloat16, "dense"),
        ("last4", True, torch.float32, "sparse"),
        ("all", False, torch.float32, "sparse"),
        ("all", True, torch.bfloat16, "sparse"),
    ],
)
def test_the_peak_of_stage_2_is_the_estimate(how, checkpointing, dtype, encoding):
    config, inputs = small_config(), batch()
    model = build_random(config, "cpu", dtype)
    adapt(model, how, rank=16)
    if checkpointing:
        enable_checkpointing(model)
    arr_coc = ARRCOCConfig(hidden_dim=256, straight_through=True, encoding=encoding, trained=True)
    owner = ARRCOCQwen(model, arr_coc, processor=tiny.processor(), selector="arr_coc").train()
    inputs.pop("mm_token_type_ids")
    labels = answers(inputs)
    optimizer = torch.optim.AdamW([p for p in owner.parameters() if p.requires_grad], lr=1e-4, foreach=True)
    with LiveTensors() as live:
        for tensor in (*owner.parameters(), *inputs.values()):
            live.count(tensor)
        for _ in range(2):
            output = owner(**inputs, labels=labels, keep=KEEP, use_cache=False)
            output.loss.backward()
            columns = output.logits.shape[1]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del output
    kept = round(KEEP * (SIDE // 32) ** 2)
    run = (config, how, 2, len(labels), SIDE, KEEP, columns - kept, dtype, checkpointing, count(owner.layer))
    expected = estimate_plan(Plan(*run, encoding=encoding, sight="stem"))
    assert live.peak == pytest.approx(expected.total - WORKSPACE, rel=0.1)


def stage_1_peak(layer: ARRCOCLayer, images: int, questions: int, length: int) -> int:
    """The most bytes of live tensors in two steps of stage 1, from the moment on at which the ViT has glanced."""
    rows, grid = images * questions, (SIDE // 32, SIDE // 32)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4, foreach=True)
    with LiveTensors() as live:
        for parameter in layer.parameters():
            live.count(parameter)
        for _ in range(2):
            glance = layer.sight.glance and torch.randn(images, layer.sight.glance.in_channels, *grid)
            seen = layer.see(torch.rand(images, 3, SIDE, SIDE), grid, glance, Stopwatch(torch.device("cpu")))
            rows_of_image = torch.arange(rows) % images
            question = QuestionTokens.of(torch.randn(rows, length, 256), None)
            if (looked := layer.knowing.participatory.looked) is not None:
                question = replace(question, looked_BMHW=torch.rand(rows, looked.in_channels - 1, *grid))
            judged = layer.weigh(seen.rows(rows_of_image), question, Stopwatch(torch.device("cpu")))
            del seen
            sum(part.square().mean() for part in judged.maps.values()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del judged, glance
    return live.peak


def stage_1_estimate(layer: ARRCOCLayer, images: int, questions: int, length: int, **sight: Any) -> int:
    """What is expected of `stage_1_peak`, where the model itself is not loaded."""
    run = (small_config(), "none", 1, images * questions, SIDE, KEEP, length, torch.float32, False, count(layer))
    found = estimate_plan(Plan(*run, questions_per_image=questions, **sight))
    return found.total - WORKSPACE - (found.weights - 4 * count(layer))


@pytest.mark.parametrize("questions", [1, 3])
def test_the_peak_of_stage_1_is_the_estimate(questions):
    layer, shape = ARRCOCLayer(256), (2, questions, 12)
    assert stage_1_peak(layer, *shape) == pytest.approx(stage_1_estimate(layer, *shape, sight="stem"), rel=0.1)


@pytest.mark.parametrize(("images", "questions"), [(2, 3), (1, 6)])
def test_every_channel_of_a_glance_costs_what_the_estimate_says(images, questions):
    shape, peaks, expected = (images, questions, 12), [], []
    for channels in (32, 288):
        layer = ARRCOCLayer(256, sight="glance", glance_channels=channels, glance_dim=128)
        own = 3 * 4 * count(layer)  # weights and optimizer, counted exactly elsewhere
        peaks.append(stage_1_peak(layer, *shape) - own)
        expected.append(stage_1_estimate(layer, *shape, sight="glance", glance_channels=channels) - own)
        assert peaks[-1] == pytest.approx(expected[-1], rel=0.1)
    assert peaks[1] - peaks[0] == pytest.approx(expected[1] - expected[0], rel=0.1)


@pytest.mark.parametrize(("images", "questions"), [(2, 3), (1, 12)])
@pytest.mark.parametrize(("channels", "maps"), [(40, 20), (13, 288), (40, 288)])
def test_more_textures_and_a_look_cost_what_the_estimate_says(channels, maps, images, questions):
    shape, sight = (images, questions, 12), {"sight": "look", "look_dim": maps, "texture_channels": channels}
    layer = ARRCOCLayer(256, glance_dim=128, **sight)
    assert stage_1_peak(layer, *shape) == pytest.approx(stage_1_estimate(layer, *shape, **sight), rel=0.1)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("how", ["none", "lora", "last4", "all"])
def test_counts_of_what_learns_are_exact(how):
    config = small_config()
    model = build_random(config, "cpu", torch.float32)
    base = count(model)
    _, learning = adapt(model, how, rank=5)
    plan = Plan(config, how, 2, 1, SIDE, KEEP, 8, torch.float32, False, 0, rank=5)
    own = lora_parameters(plan) if how == "lora" else 0
    assert sum(p.numel() for p in learning.values()) == trained_parameters(plan) + own
    found = estimate_plan(plan)
    assert found.weights == 4 * (base + own)
    assert found.optimizer == 2 * found.gradients == 8 * sum(p.numel() for p in learning.values())


# ---------------------------------------------------------------- at the size of 2B


def two_billion(how: str = "lora", stage: int = 2, **changes: Any) -> MemoryEstimate:
    plan = Plan(shape_config("qwen3-vl-2b"), how, stage, 4, 512, KEEP, 64, torch.bfloat16, True, PARAMETERS)
    return estimate_plan(replace(plan, **changes))


def test_parts_add_up_at_the_end_of_the_forward_pass():
    found = two_billion()
    assert found.moment == "end of the forward pass"
    parts = found.weights + found.optimizer + found.activations + found.logits
    assert found.total == pytest.approx(parts + WORKSPACE, abs=4)
    assert two_billion(accumulate=True).total == found.total + found.gradients
    assert found.logits == logit_bytes(found.plan) == 4 * (128 + 64) * 151936 * 14


def test_weights_dominate_stage_1_and_a_full_run_fits_no_small_card():
    first = two_billion("none", 1, checkpointing=False)
    assert 4.25e9 < first.weights < first.total < 1.2 * first.weights
    assert first.logits == 0
    everything = two_billion("all")
    assert everything.moment == "optimizer step"
    assert everything.total > 5 * everything.gradients > 21e9


@settings(max_examples=40, deadline=None)
@given(
    how=st.sampled_from(["none", "lora", "last4", "all"]),
    checkpointing=st.booleans(),
    gated=st.booleans(),
    name=st.sampled_from(["batch", "image_side", "text_tokens", "keep", "rank", "glance_channels"]),
)
def test_more_never_needs_less(how, checkpointing, gated, name):
    less = two_billion(how, checkpointing=checkpointing, gated=gated).plan
    more = {"batch": 5, "image_side": 1024, "text_tokens": 65, "keep": 0.75, "rank": 64}
    more["glance_channels"] = 128
    assert estimate_plan(replace(less, **{name: more[name]})).total >= estimate_plan(less).total


@settings(max_examples=20, deadline=None)
@given(
    how=st.sampled_from(["none", "lora", "last4", "all"]), batch=st.integers(1, 64), side=st.sampled_from([256, 1024])
)
def test_what_saves_memory_saves_it(how, batch, side):
    plan = two_billion(how, batch=batch, image_side=side, checkpointing=False).plan
    found = estimate_plan(plan)
    assert estimate_plan(replace(plan, checkpointing=True)).total <= found.total
    assert estimate_plan(replace(plan, answer_tokens=8)).total <= found.total
    assert estimate_plan(replace(plan, encoding="dense")).total >= found.total
    assert estimate_plan(replace(plan, gated=False)).total <= found.total


def test_a_budget_is_never_more_than_all_cells():
    assert two_billion(keep=300).plan.kept == 256


# ---------------------------------------------------------------- for people


@pytest.mark.parametrize("how", ["lora", "all"])
def test_the_largest_batch_fits_and_one_more_does_not(how):
    plan = two_billion(how, checkpointing=False).plan
    most = largest_batch(plan, 32)
    room = (32 - RESERVE_GB) * 1e9
    assert most > 0
    assert estimate_plan(replace(plan, batch=most)).total <= room < estimate_plan(replace(plan, batch=most + 1)).total


def test_the_table_says_what_fits():
    told = describe(two_billion("all")).splitlines()
    assert "stage 2" in told[0]
    assert "128 of 256 visual tokens" in told[0]
    assert [line.split()[0] for line in told[1:7]] == [
        *("weights", "gradients", "optimizer"),
        *("activations", "logits", "peak"),
    ]
    assert told[7].strip() == "16 GB card  does not fit, not even batch 1"
    assert told[8].strip().startswith("24 GB card  fits, largest batch ")
    assert len(told) == 10
    tight = describe(two_billion("lora", batch=400)).splitlines()
    assert "does not fit, largest batch" in tight[-1]


@pytest.mark.parametrize("settings", [tiny.config, tiny.config35])
def test_every_family_is_estimated_and_lora_is_counted_exactly(settings):
    for moe in (False, True):
        plan = Plan(settings(moe), "lora", 2, 1, 128, 0.5, 64, torch.float32, False, 0, rank=3)
        model = build_random(settings(moe), "cpu", torch.float32)
        _, learning = adapt(model, "lora", rank=3)
        assert lora_parameters(plan) == sum(parameter.numel() for parameter in learning.values())
        assert estimate_plan(plan).total > estimate_plan(replace(plan, how="none")).total
