"""What of the model learns, that the rest provably does not, and that what was trained comes back bit for bit."""

import sys

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3VLForConditionalGeneration

from arr_coc.config import ARRCOCConfig
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.adapting import (
    adapt,
    enable_checkpointing,
    load_adapted,
    save_adapted,
    trainable,
    weights_hash,
)
from arr_coc.qwen.processor import Conversation

HOWS = ["none", "lora", "last4", "all"]
TOWERS = ("model.visual.blocks.", "model.language_model.layers.")


def batch() -> dict[str, Tensor]:
    """Two questions about images of two sizes, the last tokens as their answers."""
    inputs = tiny.inputs(
        Conversation([tiny.picture()], "what is it?"), Conversation([tiny.picture(96, 128, 1)], "where is the dog?")
    )
    inputs.pop("mm_token_type_ids")
    labels = inputs["input_ids"].clone()
    labels[:, :-6] = -100
    return inputs | {"labels": labels}


def logits(model: nn.Module) -> Tensor:
    """What the stock forward makes of one picture."""
    inputs = tiny.stock_inputs(tiny.inputs(Conversation([tiny.picture()], "what is it?")))
    with torch.no_grad():
        return model.eval()(**inputs).logits


def owner_of(model: nn.Module) -> ARRCOCQwen:
    """ARR-COC around the model, as stage 2 has it: sparse, half of the cells kept, gated."""
    config = ARRCOCConfig(hidden_dim=32, straight_through=True, encoding="sparse", trained=True)
    torch.manual_seed(1)
    return ARRCOCQwen(model, config, processor=tiny.processor(), selector="arr_coc").train()


def disturb(model: nn.Module, seed: int = 0) -> None:
    """Move all that learns, so that no adapter is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable(model).values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


# ---------------------------------------------------------------- what learns


def test_lora_starts_as_the_base_itself():
    model, before = tiny.stock(), logits(tiny.stock())
    adapt(model, "lora", rank=2)
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("how", HOWS)
def test_only_what_was_asked_for_learns(how):
    model, learning = adapt(tiny.stock(), how, rank=2)
    assert type(model) is Qwen3VLForConditionalGeneration
    assert set(learning) == {name for name, p in model.named_parameters() if p.requires_grad}
    if how == "none":
        assert not learning
    elif how == "all":
        assert len(learning) == len(list(model.parameters()))
    elif how == "last4":
        assert {name.split(".")[1] for name in learning} == {"language_model"}
        assert "model.language_model.norm.weight" in learning
        assert not any("embed" in name or "lm_head" in name for name in learning)
    else:
        assert all("lora_" in name and parameter.dtype == torch.float32 for name, parameter in learning.items())
        matrices = {name.rsplit(".lora_", 1)[0] for name in learning}
        assert len(matrices) == 4 * 4 + 4 * 7  # every attention and MLP matrix of four blocks and four layers
        assert all(name.startswith(TOWERS) for name in matrices)


def test_last4_leaves_the_layers_below():
    config = tiny.config()
    config.text_config.num_hidden_layers = 6
    _, learning = adapt(Qwen3VLForConditionalGeneration(config), "last4")
    assert {name.split(".")[3] for name in learning if ".layers." in name} == {"2", "3", "4", "5"}


def test_lora_settings_are_used():
    model, learning = adapt(tiny.stock(), "lora", rank=3, alpha=12.0, dropout=0.25)
    wrapped = model.model.language_model.layers[0].self_attn.q_proj
    assert wrapped.scaling["default"] == 4.0
    assert wrapped.lora_dropout["default"].p == 0.25
    assert learning["model.visual.blocks.0.attn.qkv.lora_A.default.weight"].shape[0] == 3


# ---------------------------------------------------------------- the base stays as it is


@pytest.mark.parametrize("how", HOWS)
def test_a_step_changes_the_base_only_where_that_was_asked_for(how):
    model = tiny.stock()
    before = weights_hash(model)
    adapt(model, how, rank=2)
    assert weights_hash(model) == before
    owner = owner_of(model)
    optimizer = torch.optim.AdamW([p for p in owner.parameters() if p.requires_grad], lr=1e-2)
    losses = []
    for _ in range(3):
        loss = owner(**batch(), keep=0.5).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert (weights_hash(model) == before) == (how in ("none", "lora"))
    assert losses[-1] < losses[0] or how == "none"


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_hash_notices_any_change(data):
    model = tiny.stock()
    before = weights_hash(model)
    name, parameter = data.draw(st.sampled_from(list(model.named_parameters())), label="parameter")
    place = data.draw(st.integers(0, parameter.numel() - 1), label="place")
    with torch.no_grad():
        parameter.view(-1)[place].mul_(-1).add_(1e-3)
    assert weights_hash(model) != before, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_hash_is_of_bytes_names_and_shapes(dtype):
    model = tiny.stock().to(dtype)
    assert weights_hash(model) == weights_hash(tiny.stock().to(dtype))
    assert weights_hash(model) != weights_hash(tiny.stock().to(torch.float16))
    assert weights_hash(nn.Linear(2, 3, bias=False)) != weights_hash(nn.Linear(3, 2, bias=False))
    bare = weights_hash(model)
    adapt(model, "lora", rank=2)
    assert weights_hash(model) == bare != weights_hash(model, skip_adapters=False)


# ---------------------------------------------------------------- through ARRCOCQwen


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointing_changes_neither_loss_nor_gradients(dropout):
    found = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model, learning = adapt(tiny.stock(), "lora", rank=2, dropout=dropout)
        disturb(model)
        if checkpointing:
            enable_checkpointing(model)
        owner = owner_of(model)
        torch.manual_seed(2)
        output = owner(**batch(), keep=0.5, use_cache=False, output_arr_coc_info=True)
        assert output.arr_coc.compact.dropped
        output.loss.backward()
        found.append((output.loss, learning, dict(owner.layer.named_parameters())))
    (loss, *plain), (again, *recomputed) = found
    assert torch.equal(loss, again)
    for parameters, others in zip(plain, recomputed, strict=True):
        for name, parameter in parameters.items():
            torch.testing.assert_close(others[name].grad, parameter.grad, msg=name)
    for tower in TOWERS:
        assert all(p.grad.abs().sum() > 0 for name, p in plain[0].items() if name.startswith(tower))
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in plain[1].values())


def test_checkpointing_reaches_both_towers():
    model = tiny.stock()
    enable_checkpointing(model)
    blocks = [*model.model.visual.blocks, *model.model.language_model.layers]
    assert all(block.gradient_checkpointing for block in blocks)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("how", HOWS)
def test_what_was_trained_comes_back_bit_for_bit(how, tmp_path):
    model, learning = adapt(tiny.stock(), how, rank=2)
    disturb(model)
    save_adapted(model, how, tmp_path)
    files = {"adapter_config.json", "adapter_model.safetensors"} if how == "lora" else {"delta.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == files
    fresh = load_adapted(tiny.stock(), tmp_path)
    expected = model.state_dict()
    assert set(fresh.state_dict()) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in fresh.state_dict().items())
    assert torch.equal(logits(fresh), logits(model))
    if how == "lora":
        assert set(trainable(fresh)) == set(learning)  # ready to go on
    else:
        assert set(load_file(tmp_path / "delta.safetensors")) == set(learning)


def test_lora_is_put_back_into_a_model_that_has_it(tmp_path):
    model, _ = adapt(tiny.stock(), "lora", rank=2)
    disturb(model)
    wanted = weights_hash(model, skip_adapters=False)
    save_adapted(model, "lora", tmp_path)
    disturb(model, seed=1)
    assert weights_hash(model, skip_adapters=False) != wanted
    assert weights_hash(load_adapted(model, tmp_path), skip_adapters=False) == wanted


def test_peft_itself_reads_the_adapter(tmp_path):
    from peft import PeftModel

    model, _ = adapt(tiny.stock(), "lora", rank=2)
    disturb(model)
    save_adapted(model, "lora", tmp_path)
    theirs = PeftModel.from_pretrained(tiny.stock(), str(tmp_path))
    assert torch.equal(logits(theirs), logits(model))
    assert not torch.equal(logits(model), logits(tiny.stock()))


# ---------------------------------------------------------------- mistakes


def test_settings_that_cannot_be_meant():
    with pytest.raises(ValueError, match=r"^adapting 'some': expected one of none, lora, last4, all$"):
        adapt(tiny.stock(), "some")
    for wrong in ({"rank": 0}, {"alpha": 0.0}, {"dropout": 1.0}, {"dropout": -0.1}):
        with pytest.raises(ValueError, match="expected rank >= 1"):
            adapt(tiny.stock(), "lora", **wrong)
    model, _ = adapt(tiny.stock(), "lora", rank=2)
    with pytest.raises(ValueError, match="has LoRA adapters already"):
        adapt(model, "all")


def test_files_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"neither adapter_config.json nor delta.safetensors"):
        load_adapted(tiny.stock(), tmp_path)
    with pytest.raises(ValueError, match="does not fit a model without LoRA"):
        save_adapted(tiny.stock(), "lora", tmp_path)
    model, learning = adapt(tiny.stock(), "last4")
    name = next(iter(learning))
    path = tmp_path / "delta.safetensors"
    for tensors, message in (
        ({"elsewhere": torch.zeros(1)}, "'elsewhere' is unknown to this model"),
        ({name: torch.zeros(1, 1)}, r"has shape \(1, 1\), the model has"),
        ({name: torch.full_like(learning[name].detach(), torch.nan)}, "not finite"),
    ):
        save_file(tensors, path)
        with pytest.raises(ValueError, match=message):
            load_adapted(model, tmp_path)
    path.write_bytes(b"no tensors here")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_adapted(model, tmp_path)


def test_an_adapter_of_another_shape_is_refused(tmp_path):
    model, _ = adapt(tiny.stock(), "lora", rank=2)
    save_adapted(model, "lora", tmp_path)
    other, _ = adapt(tiny.stock(), "lora", rank=3)
    with pytest.raises(ValueError, match=r"adapter_model.safetensors: .* has shape"):
        load_adapted(other, tmp_path)


def test_without_peft_the_next_step_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r'^LoRA needs PEFT: pip install "arr-coc\[train\]"$'):
        adapt(tiny.stock(), "lora")
    adapt(tiny.stock(), "last4")
