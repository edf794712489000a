"""Adapters travel: to another folder, another base by name, a hub; and are refused where they do not belong."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from huggingface_hub import HfApi
from test_questions_alone import questions_alone
from training_runs import run, settings, tiny_model

from arr_coc import ARRCOCQwen
from arr_coc.qwen import loading


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A base, an adapter that was trained on it by questions alone, and another base of the same shape."""
    folder = tmp_path_factory.mktemp("travelling")
    base, other = tiny_model(folder / "base"), tiny_model(folder / "other")
    tiny.stock(seed=1).save_pretrained(other)
    data = questions_alone(folder / "data")
    how = {"data": data, "examples": 4, "max_pixels": 128 * 128, "evaluate_questions": 4, "steps": 2}
    run(settings(base, **how), folder / "run")
    return folder


def asked(model) -> tuple[str, list[int]]:
    answer = model.ask(tiny.picture(), "what is this?", keep=5, max_new_tokens=3)
    return answer.text, answer.selection[0].kept.tolist()


def test_an_adapter_loads_from_anywhere_with_its_base_or_a_base_that_is_named(places, tmp_path, monkeypatch):
    said = json.loads((places / "run" / "arr_coc_config.json").read_text())
    assert said["base_model"] == str((places / "base").resolve())
    assert len(said["base_fingerprint"]) == 16
    assert (said["max_pixels"], said["min_pixels"]) == (128 * 128, 0)
    monkeypatch.chdir(tmp_path)
    moved = shutil.copytree(places / "run", tmp_path / "moved")
    wanted = asked(ARRCOCQwen.from_pretrained(places / "run"))
    assert asked(ARRCOCQwen.from_pretrained("moved")) == wanted
    assert asked(ARRCOCQwen.from_pretrained(places / "base", adapter=moved)) == wanted
    copied = shutil.copytree(places / "base", tmp_path / "copy of the base")
    assert asked(ARRCOCQwen.from_pretrained(copied, adapter="moved")) == wanted
    again = ARRCOCQwen.from_pretrained(copied, adapter="moved")
    again.save_pretrained(tmp_path / "again", save_base=False)
    assert asked(ARRCOCQwen.from_pretrained("again")) == wanted


def test_pixels_are_those_of_training_unless_others_are_asked_for(places):
    large = tiny.picture(320, 320)
    trained = ARRCOCQwen.from_pretrained(places / "run").choose(large, "what?", keep=1.0)[0]
    assert trained.grid == (4, 4)
    wide = ARRCOCQwen.from_pretrained(places / "run", max_pixels=320 * 320).choose(large, "what?", keep=1.0)[0]
    assert wide.grid == (10, 10)
    small = ARRCOCQwen.from_pretrained(places / "base", min_pixels=256 * 256)
    assert small.choose(tiny.picture(64, 64), "what?", keep=1.0)[0].grid == (8, 8)
    with pytest.raises(ValueError, match=r"min_pixels=90000, max_pixels=10000: expected 1024 to .* 4 times the least"):
        ARRCOCQwen.from_pretrained(places / "base", min_pixels=90_000, max_pixels=10_000)


def test_another_base_is_refused_by_name(places, tmp_path):
    with pytest.raises(ValueError, match="made for 'base', and 'other' has other weights: give that model"):
        ARRCOCQwen.from_pretrained(places / "other", adapter=places / "run")
    with pytest.raises(ValueError, match="base: no adapter; give the folder or the hub id"):
        ARRCOCQwen.from_pretrained(places / "other", adapter=places / "base")
    moved = shutil.copytree(places / "run", tmp_path / "cut")
    weights = moved / "arr_coc.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"arr_coc\.safetensors: not a whole safetensors file") as refused:
        ARRCOCQwen.from_pretrained(places / "base", adapter=moved)
    assert "\n" not in str(refused.value)


def test_a_base_that_is_gone_is_told_with_what_to_do(places, tmp_path):
    base, moved = shutil.copytree(places / "base", tmp_path / "base"), shutil.copytree(places / "run", tmp_path / "run")
    settings_file = moved / "arr_coc_config.json"
    settings_file.write_text(settings_file.read_text().replace(str(places / "base"), str(base)))
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(
        loading.ModelNotFound, match="run: the base of this adapter, 'base', is not where it was: write"
    ):
        ARRCOCQwen.from_pretrained(moved)
    assert asked(ARRCOCQwen.from_pretrained(tmp_path / "elsewhere", adapter=moved))
    settings_file.write_text(settings_file.read_text().replace(str(base), str(tmp_path / "elsewhere")))
    assert asked(ARRCOCQwen.from_pretrained(moved))


def test_an_adapter_is_no_base_to_train_on(places, tmp_path):
    """Its layer would not be heard, and what comes out would name a base that is none."""
    with pytest.raises(
        ValueError, match=r"run is an adapter: give its base, .*base, as the model, and go on .*--init-from"
    ):
        run(settings(places / "run", steps=1), tmp_path / "out")


def test_whoever_may_read_an_adapters_folder_may_read_its_weights(places):
    modes = {path.name: path.stat().st_mode for path in (places / "run").glob("arr_coc*")}
    assert modes["arr_coc.safetensors"] == modes["arr_coc_config.json"]


def test_a_hub_holds_an_adapter_by_id(places, tmp_path, monkeypatch):
    """Sent as a folder, found by its id, with no path of this machine on its card."""
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: type("Made", (), {"repo_id": repo_id}))
    monkeypatch.setattr(
        HfApi,
        "upload_folder",
        lambda self, *, repo_id, folder_path, **_: shutil.copytree(folder_path, tmp_path / repo_id),
    )
    ARRCOCQwen.from_pretrained(places / "run").push_to_hub("me/adapter", save_base=False)
    card = (tmp_path / "me" / "adapter" / "README.md").read_text()
    assert str(places) not in card
    assert "| base model | base |" in card

    def cached(source: str, name: str, **_) -> str | None:
        path = tmp_path / source / name
        return str(path) if path.is_file() else None

    monkeypatch.setattr(loading, "cached_file", cached)
    monkeypatch.setattr(loading, "snapshot_download", lambda source, **_: str(tmp_path / source))
    monkeypatch.chdir(places)
    wanted = asked(ARRCOCQwen.from_pretrained(places / "run"))
    assert asked(ARRCOCQwen.from_pretrained("base", adapter="me/adapter")) == wanted
    assert asked(ARRCOCQwen.from_pretrained("me/adapter")) == wanted
    with pytest.raises(ValueError, match="nothing: no adapter"):
        ARRCOCQwen.from_pretrained("base", adapter="me/nothing")


def test_a_card_tells_what_was_measured(places, tmp_path):
    config = settings(places / "base", steps=1, evaluate_questions=6)
    run(config, tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| figures | recall of the evidence of 6 questions held back, by the share kept: 0." in card
    loaded = ARRCOCQwen.from_pretrained(tmp_path / "run")
    loaded.save_pretrained(tmp_path / "again", save_base=False)
    assert "questions held back" in (Path(tmp_path) / "again" / "README.md").read_text()
    assert torch.isfinite(next(loaded.layer.parameters())).all()
