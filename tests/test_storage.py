"""Saving and loading: what fits comes back, what does not is refused by name, nothing is executed."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from arr_coc import ARRCOCConfig, ARRCOCQwen
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.loading import ModelNotFound, find_adapter, resolve
from arr_coc.qwen.storage import load_adapter, save_adapter

WEIGHTS = "arr_coc.safetensors"


@pytest.fixture
def saved(tmp_path):
    """A whole model with a layer marked as trained, on disk."""
    torch.manual_seed(1)
    config = ARRCOCConfig(hidden_dim=32, trained=True)
    ours = tiny.wrapped(tiny.stock(), config=config, layer=ARRCOCLayer.from_config(config))
    ours.save_pretrained(tmp_path / "whole", save_base=True)
    return tmp_path / "whole"


def test_a_saved_model_answers_as_before(saved):
    loaded = ARRCOCQwen.from_pretrained(saved, keep=6, device="cpu")
    config, layer = load_adapter(saved)
    before = tiny.wrapped(tiny.stock(), config=config, layer=layer, keep=6)
    assert loaded.selector.name == "arr_coc"
    assert loaded.encoding == "sparse"
    inputs = tiny.inputs(tiny.Conversation([tiny.picture()], "what?"))
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, before(**inputs).logits)
    loaded.model.generation_config.eos_token_id = None
    assert loaded.ask(tiny.picture(), "what?", max_new_tokens=3).tokens_kept == 6


def test_an_adapter_alone_finds_its_base(saved, tmp_path):
    whole = ARRCOCQwen.from_pretrained(saved, device="cpu")
    whole.arr_coc_config = replace(whole.arr_coc_config, base_model=str(saved))
    whole.save_pretrained(tmp_path / "adapter")
    wanted = {"README.md", WEIGHTS, "arr_coc_config.json", "config.json"}
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == wanted
    assert ARRCOCQwen.from_pretrained(tmp_path / "adapter", device="cpu").arr_coc_config.trained
    whole.arr_coc_config = replace(whole.arr_coc_config, base_model="")
    whole.save_pretrained(tmp_path / "orphan", save_base=False)
    with pytest.raises(ValueError, match="base_model"):
        ARRCOCQwen.from_pretrained(tmp_path / "orphan")


def test_an_adapter_of_the_embedded_model_finds_it_from_any_folder(tmp_path):
    config = ARRCOCConfig(hidden_dim=8, base_model="mini")
    save_adapter(tmp_path, config, ARRCOCLayer.from_config(config))
    base, found, _ = find_adapter(tmp_path)
    assert (Path(base) / "config.json").is_file()
    assert found == config


def test_without_an_adapter_the_model_looks_twice_with_one_notice(tmp_path, caplog):
    stock = tiny.stock()
    stock.save_pretrained(tmp_path)
    tiny.processor().save_pretrained(tmp_path)
    loaded = ARRCOCQwen.from_pretrained(tmp_path, device="cpu")
    assert loaded.selector.name == "look_twice"
    assert loaded.encoding == "sparse"
    loaded.ask(tiny.picture(), "what?", keep=1.0, max_new_tokens=2)
    assert "no trained adapter" not in caplog.text, "nothing was chosen yet"
    for _ in range(2):
        loaded.ask(tiny.picture(), "what?", keep=0.5, max_new_tokens=2)
    assert caplog.text.count("no trained adapter") == 1
    words = ARRCOCQwen.from_pretrained(tmp_path, device="cpu", encoding="sparse", selector="training_free")
    with pytest.raises(ValueError, match="encoding='dense'"):
        words.ask(tiny.picture(), "what?", keep=0.5)
    assert loaded.model.dtype == torch.float32


def test_stem_and_glance_come_back_with_the_channels_of_each(tmp_path):
    config = ARRCOCConfig(hidden_dim=32, sight="glance", sight_channels=3, glance_channels=5, glance_dim=7)
    layer = ARRCOCLayer.from_config(config)
    save_adapter(tmp_path, config, layer)
    again, loaded = load_adapter(tmp_path)
    assert again == config
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in layer.state_dict().items())
    assert loaded.sight.glance.weight.shape == (5, 7, 1, 1)
    path = tmp_path / "arr_coc_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sight_channels": 5, "glance_channels": 3}))
    with pytest.raises(ValueError, match=rf"{WEIGHTS}.*sight"):
        load_adapter(tmp_path)


def test_the_card_says_what_it_is(saved):
    card = (saved / "README.md").read_text()
    for part in ("library_name: arr-coc", "pipeline_tag: image-text-to-text", "parameters added", "keep=1.0"):
        assert part in card


def break_truncate(folder):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def break_header(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[:8] = (1 << 40).to_bytes(8, "little")
    (folder / WEIGHTS).write_bytes(bytes(data))


def break_empty(folder):
    (folder / WEIGHTS).write_bytes(b"")


def break_shape(folder):
    weights = load_file(folder / WEIGHTS)
    weights["knowing.participatory.bias"] = torch.zeros(3)
    save_file(weights, folder / WEIGHTS)


def break_missing(folder):
    weights = load_file(folder / WEIGHTS)
    del weights["attending.steepness"]
    save_file(weights, folder / WEIGHTS)


def break_extra(folder):
    save_file({**load_file(folder / WEIGHTS), "more": torch.zeros(1)}, folder / WEIGHTS)


def break_nan(folder):
    weights = load_file(folder / WEIGHTS)
    weights["attending.steepness"] = torch.tensor(float("nan"))
    save_file(weights, folder / WEIGHTS)


def break_other_config(folder):
    path = folder / "arr_coc_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_dim": 48}))


def break_older_config(folder):
    path = folder / "arr_coc_config.json"
    data = json.loads(path.read_text()) | {"format_version": 0}
    del data["pooling"]
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (break_truncate, WEIGHTS),
        (break_header, WEIGHTS),
        (break_empty, WEIGHTS),
        (break_shape, f"{WEIGHTS}.*knowing.participatory.bias"),
        (break_missing, f"{WEIGHTS}.*attending.steepness"),
        (break_extra, f"{WEIGHTS}.*more"),
        (break_nan, f"{WEIGHTS}.*attending.steepness"),
        (break_other_config, f"{WEIGHTS}.*balancing"),
        (break_older_config, "arr_coc_config.json.*format_version"),
    ],
)
def test_a_damaged_adapter_is_refused_by_file_and_key(saved, damage, named):
    damage(saved)
    with pytest.raises(ValueError, match=named):
        ARRCOCQwen.from_pretrained(saved)


class Touch:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("name", [WEIGHTS, "arr_coc.bin", "arr_coc.pt"])
def test_a_pickle_is_never_opened(saved, tmp_path, name):
    (saved / WEIGHTS).unlink()
    (saved / name).write_bytes(pickle.dumps(Touch(tmp_path / "executed")))
    with pytest.raises(ValueError, match=WEIGHTS):
        ARRCOCQwen.from_pretrained(saved)
    assert not (tmp_path / "executed").exists()


def test_a_pickled_base_is_never_opened(saved, tmp_path):
    (saved / "model.safetensors").unlink()
    (saved / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(tmp_path / "executed")))
    with pytest.raises(ValueError, match="safetensors"):
        ARRCOCQwen.from_pretrained(saved)
    assert not (tmp_path / "executed").exists()


def test_other_models_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match=r"no Qwen3-VL or Qwen3\.5"):
        ARRCOCQwen.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="width"):
        ARRCOCQwen(tiny.stock(), ARRCOCConfig(hidden_dim=64))


def test_a_model_that_is_not_there_is_answered_with_the_ways_to_get_one(tmp_path):
    for source in (tmp_path / "nothing", "nobody/nothing", tmp_path):
        with pytest.raises(ModelNotFound, match="mini"):
            ARRCOCQwen.from_pretrained(source)


def test_a_damaged_weight_file_of_the_base_is_refused_by_name(saved):
    whole = (saved / "model.safetensors").read_bytes()
    (saved / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"model.safetensors"):
        ARRCOCQwen.from_pretrained(saved)


def test_a_missing_shard_of_the_base_is_named(tmp_path):
    folder = Path(resolve("mini"))
    for file in folder.iterdir():
        if file.name != "model-00002-of-00003.safetensors":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors: not in the model's folder"):
        ARRCOCQwen.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("[1]")
    with pytest.raises(ValueError, match="not an index of weights"):
        ARRCOCQwen.from_pretrained(tmp_path)
