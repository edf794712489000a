"""The loop of `arr-coc train selector` on a CPU: it learns, stops anywhere, goes on exactly, and loses nothing."""

import errno
import gc
import itertools
import json
import math
import os
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from training_runs import jsonl_folder, metrics, most_apart, repeat_one_batch, run, same, saved, settings, tiny_model

from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.adapting import load_adapted, weights_hash
from arr_coc.training import checkpoints
from arr_coc.training import step as selector_step
from arr_coc.training.checkpoints import NotSaved, is_complete, newest_checkpoint
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import SceneBatches, make_encoder
from arr_coc.training.learning import Learning, Team
from arr_coc.training.main import NotFinite, Stop
from arr_coc.training.making import make_learner
from arr_coc.training.step import MapLearner


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


SURE = {"hidden_share": 0.0, "noisy_share": 0.0}  # what is doubted is drawn for each group, however rows are grouped


def total(record):
    """All losses of a line about a step."""
    names = ("answer", "relevance", "mse", "iou", "participatory", "information", "perspectival", "budget")
    return sum(record.get(name, 0.0) for name in names)


# ---------------------------------------------------------------- it learns


@pytest.mark.parametrize(
    ("stage", "strategy", "adapt"),
    [
        (1, "score", "lora"),
        (2, "score", "none"),
        (2, "score", "last4"),
        (2, "straight_through", "lora"),
        (2, "gumbel", "all"),
        (2, "reinforce", "lora"),
    ],
)
def test_the_loss_of_a_repeated_batch_falls(model, tmp_path, monkeypatch, stage, strategy, adapt):
    repeat_one_batch(monkeypatch)
    rates = {"learning_rate": 5e-3, "base_rate": 2e-2 if adapt == "lora" else 5e-3, "clip": 5.0, "policy_rate": 1.0}
    run(settings(model, stage=stage, strategy=strategy, adapt=adapt, steps=20, **SURE, **rates), tmp_path)
    steps = [record for record in metrics(tmp_path) if "relevance" in record]
    assert len(steps) == 20
    maps = [total(record) - record.get("answer", 0.0) for record in steps]
    assert max(maps[-2:]) < 0.85 * min(maps[:2])
    if adapt != "none" and stage == 2:
        assert max(record["answer"] for record in steps[-2:]) < 0.8 * min(record["answer"] for record in steps[:2])


def test_the_adapter_of_a_run_is_used_by_its_model(model, tmp_path):
    run(settings(model), tmp_path)
    loaded = ARRCOCQwen.from_pretrained(tmp_path, device="cpu", keep=0.25)
    assert loaded.arr_coc_config.trained
    assert loaded.selector.name == "arr_coc"
    answer = loaded.ask(tiny.picture(128, 128), "what is there?", max_new_tokens=2)
    assert len(answer.selection[0].kept) == 4
    weights = saved(tmp_path)[1]["weights"]
    assert all(torch.equal(value, weights[f"layer.{name}"]) for name, value in loaded.layer.named_parameters())


def test_the_adapter_says_whether_it_learned_from_images_without_structure(model, tmp_path):
    """Maps that were shown none by the last stage that taught them may see things in noise."""
    said = {}
    for name, first, changes in (
        ("none", None, {}),
        ("voids", None, {"void_share": 0.5}),
        ("answers after voids", "voids", {"stage": 2}),
        ("none after voids", "voids", {"stage": 3}),
        ("voids at last", "none", {"stage": 3, "void_share": 0.5}),
    ):
        run(settings(model, steps=1, **changes), tmp_path / name, None if first is None else tmp_path / first)
        loaded = ARRCOCQwen.from_pretrained(tmp_path / name, device="cpu")
        said[name] = loaded.arr_coc_config.voids
        assert loaded.layer.voids == said[name]
    assert [name for name, voids in said.items() if voids] == ["voids", "answers after voids", "voids at last"]


# ---------------------------------------------------------------- a mean over all rows, however they are put together


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_accumulated_batches_are_one_batch_of_all(model, tmp_path, stage):
    """Rows of two image sizes, some of them hard, some without boxes in stage 2: groups of any size add up alike."""
    data = jsonl_folder(tmp_path / "data", 8)
    rows = [json.loads(line) for line in (tmp_path / "data" / "rows.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row |= {"hard": number % 2 == 0} | ({"boxes": None} if stage == 2 and number % 3 == 0 else {})
    (tmp_path / "data" / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = {"stage": stage, "data": data, "keeps": (0.3, 0.3), "hard_weight": 3.0, "steps": 1, **SURE}
    run(settings(model, examples=8, **common), tmp_path / "one")
    run(settings(model, examples=2, accumulate=4, **common), tmp_path / "four")
    assert most_apart(tmp_path / "one", tmp_path / "four", "optimizer") < 1e-6
    one, four = (next(r for r in metrics(tmp_path / name) if "relevance" in r) for name in ("one", "four"))
    assert all(math.isclose(one[name], four[name], abs_tol=1e-5) for name in one if name != "questions_per_second")
    if stage == 3:
        run(settings(model, examples=8, **common | {"hard_weight": 1.0}), tmp_path / "alike")
        assert most_apart(tmp_path / "one", tmp_path / "alike", "optimizer") > 1e-4


def test_hard_rows_get_their_weight_in_stage_3_alone(model):
    for stage, weight in ((1, 1.0), (3, 2.0)):
        config = settings(model, stage=stage, hard_share=0.5, cells_per_batch=320)
        group = SceneBatches(config, make_encoder(tiny.tokenizer()))[0][0]
        hard_R = torch.tensor([example.hard for example in group.examples])
        assert 0 < hard_R.sum() < len(hard_R)
        assert (group.weight_R == torch.where(hard_R, weight, 1.0)).all()


def images_of(group, first, last):
    """The group of some of the images, with their questions."""
    rows = ((group.image_R >= first) & (group.image_R < last)).nonzero().flatten()
    part = group.rows(rows)
    kept = {name: getattr(part, name)[first:last] for name in ("images_Bhw3", "standout_BHW")}
    return replace(part, image_R=part.image_R - first, **kept)


@pytest.mark.parametrize("target", ["boxes", "attention"])
def test_losses_are_means_over_questions_however_images_are_grouped(model, target):
    """Four images in one group; in three of one, two and one image; and those in batches that are accumulated."""
    config = settings(model, target=target, cells_per_batch=160, sizes=((160, 128, 1.0),), hard_share=0.0, **SURE)
    whole = SceneBatches(config, make_encoder(tiny.tokenizer()))[0][0].rows(torch.arange(1, 8))
    assert whole.image_R.bincount().tolist() == [1, 2, 2, 2]
    parts = [images_of(whole, *ends) for ends in ((0, 1), (1, 3), (3, 4))]
    found, moments = [], []
    for batches in ([[whole]], [parts], [[part] for part in parts], [parts[1:], parts[:1]]):
        torch.manual_seed(config.seed)
        made = make_learner(config, None, torch.device("cpu"))
        found.append(Learning(config, Team("cpu"), made).learn(0, list(enumerate(batches)), 0.0))
        moments.append(checkpoints.optimizer_tensors(made.optimizer, made.names))
    assert any(value.any() for value in moments[0].values())
    for one, state in zip(found[1:], moments[1:], strict=True):
        assert one == pytest.approx(found[0], abs=1e-5)
        assert all(torch.allclose(value, moments[0][name], atol=1e-6) for name, value in state.items())


# ---------------------------------------------------------------- it stops, and goes on exactly


def pretend_right(logits_BLV, labels_BL):
    """A tiny random model is never right; this is, of about half of the answers."""
    return labels_BL.clamp(min=0).sum(1) % 2 == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 1, "workers": 2},
        {"stage": 3, "target": "attention"},
        {"stage": 1, "accumulate": 2, "reading_share": 0.5, "sizes": ((160, 160, 1.0),)},
        {"stage": 2, "strategy": "reinforce", "adapt": "lora", "accumulate": 2},
        {"stage": 2, "strategy": "gumbel", "adapt": "all", "encoding": "dense", "checkpointing": True},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_a_run_stopped_by_ctrl_c_goes_on_bit_for_bit(model, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(selector_step.losses, "answers_right", pretend_right)
    config = settings(model, **changes)
    run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", stop_at=2)
    assert saved(tmp_path / "parts")[0] == 2
    assert not same(tmp_path / "whole", tmp_path / "parts")
    assert any("from step 2" in line for line in run(config, tmp_path / "parts"))
    assert same(tmp_path / "whole", tmp_path / "parts")
    if changes.get("strategy") == "reinforce":
        assert saved(tmp_path / "parts")[2]["baseline"] > 0


def test_a_second_press_of_ctrl_c_does_not_wait(monkeypatch):
    now, before = 100.0, signal.getsignal(signal.SIGINT)  # ignored, where tests run in the background
    monkeypatch.setattr("arr_coc.training.main.time.monotonic", lambda: now)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        now = 100.5
        os.kill(os.getpid(), signal.SIGINT)  # the same press, passed on by a launcher
        now = 102.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_repeated_changes_nothing(model, tmp_path):
    run(settings(model), tmp_path)
    adapter = load_file(tmp_path / "arr_coc.safetensors")
    before = {file: file.read_bytes() for file in (tmp_path / "checkpoints").rglob("*.*")}
    run(settings(model, steps=3), tmp_path)
    assert {file: file.read_bytes() for file in (tmp_path / "checkpoints").rglob("*.*")} == before
    again = load_file(tmp_path / "arr_coc.safetensors")
    assert all(torch.equal(again[name], value) for name, value in adapter.items())


def test_a_run_by_the_clock_goes_on_with_the_time_and_the_rate_that_are_left(model, tmp_path, monkeypatch):
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 0.02 * next(ticks))  # every look at it costs 20 ms
    for module in ("watching", "main", "run"):
        monkeypatch.setattr(f"arr_coc.training.{module}.time", clock)
    config = settings(model, seconds=2.0, steps=0)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, stop_at=3)
    run(config, tmp_path)
    steps = [record for record in metrics(tmp_path) if "progress" in record]
    assert [record["step"] for record in steps] == list(range(1, len(steps) + 1))
    for name, sign in (("progress", 1), ("rate", -1)):
        values = [sign * record[name] for record in steps]
        assert values == sorted(values)
    assert 0.9 < steps[-1]["progress"] < 1.2


def test_other_settings_and_other_weights_are_refused_by_name(model, tmp_path):
    run(settings(model, steps=1), tmp_path / "run")
    with pytest.raises(ValueError, match="other learning_rate, seed: give another --out"):
        run(settings(model, steps=2, seed=9, learning_rate=0.5), tmp_path / "run")
    shutil.copytree(model, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.visual.blocks.0.attn.proj.bias"][0] += 1
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    state = newest_checkpoint(tmp_path / "run" / "checkpoints") / "state.json"
    content = json.loads(state.read_text())
    content["config"]["model"] = str(tmp_path / "model")
    state.write_text(json.dumps(content))
    manifest = json.loads((state.parent / "manifest.json").read_text())
    (state.parent / "manifest.json").write_text(json.dumps(manifest | {"state.json": checkpoints.sha256(state)}))
    with pytest.raises(ValueError, match="not those that this run began with"):
        run(settings(tmp_path / "model", steps=2), tmp_path / "run")
    run(settings(model, steps=2, log_every=1.0, checkpoint_every=1.0), tmp_path / "other")


# ---------------------------------------------------------------- it loses nothing


@pytest.fixture(scope="module")
def whole_answers(model, tmp_path_factory):
    """A run of stage 2 that nothing disturbs."""
    config, folder = settings(model, stage=2, strategy="reinforce", accumulate=2, steps=3), tmp_path_factory.mktemp("2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selector_step.losses, "answers_right", pretend_right)
        run(config, folder)
    return config, folder


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_and_names_its_examples(whole_answers, tmp_path, monkeypatch, what):
    """The checkpoint left behind is the state before the bad step: mended data make it go on exactly."""
    monkeypatch.setattr(selector_step.losses, "answers_right", pretend_right)
    config, whole = whole_answers
    honest, seen = selector_step.map_losses, []

    def spoiled(judgement, group, *others):
        losses = honest(judgement, group, *others)
        seen.append([example.name for example in group.examples])
        if len(seen) == 3:  # the first batch of the second step
            relevance = judgement.balance.relevance_BHW
            zero = (relevance - relevance.detach()).abs().sqrt().sum()  # 0, and its gradient is not finite
            losses["relevance"] = losses["relevance"] + (zero if what == "gradient" else math.nan)
        return losses

    with monkeypatch.context() as patch:
        patch.setattr(selector_step, "map_losses", spoiled)
        with pytest.raises(NotFinite, match=r"not finite at step 1: its examples are in bad-batch\.json"):
            run(config, tmp_path)
    bad = json.loads((tmp_path / "bad-batch.json").read_text())
    assert bad["step"] == 1
    assert bad["examples"] == (seen[2] if what == "loss" else seen[2] + seen[3])
    step, tensors, _ = saved(tmp_path)
    assert step == 1
    assert all(value.isfinite().all() for file in tensors.values() for value in file.values())
    run(config, tmp_path)
    assert same(whole, tmp_path)


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_weights_that_are_not_finite_are_never_saved(model, tmp_path, monkeypatch, every):
    """An update that goes wrong in the second step is found at the next save, or by the next step."""
    update, steps = torch.optim.AdamW.step, []

    def overflowing(self):
        update(self)
        steps.append(self)
        if len(steps) == 2:
            self.param_groups[0]["params"][0].data.fill_(torch.inf)

    monkeypatch.setattr(torch.optim.AdamW, "step", overflowing)
    with pytest.raises(NotFinite, match="weights are not finite at step 2 and were not saved"):
        run(settings(model, checkpoint_every=every), tmp_path)
    newest = newest_checkpoint(tmp_path / "checkpoints")
    assert newest is None if every else newest.name == "step-00000001"
    assert (tmp_path / "bad-batch.json").exists() == (every > 0)


@pytest.fixture(scope="module")
def whole_maps(model, tmp_path_factory):
    """A run of stage 1 that nothing disturbs."""
    folder = tmp_path_factory.mktemp("1")
    run(settings(model), folder)
    return folder


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def full_disk_in_safetensors(*_, **__):
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("place", "fails"),
    [("save_file", full_disk_in_safetensors), ("save_file", full_disk), ("os.fsync", full_disk)],
)
def test_a_full_disk_leaves_the_old_checkpoint_intact(model, whole_maps, tmp_path, monkeypatch, place, fails):
    """The third save fails: of a file in the middle, or when all of it shall go to the disk."""
    config = settings(model, checkpoint_every=0.0)
    owner, name = (checkpoints, "save_file") if place == "save_file" else (checkpoints.os, "fsync")
    works, calls = getattr(owner, name), []

    def sometimes(*arguments, **keywords):
        calls.append(arguments)
        per_save = 2 if place == "save_file" else 6
        return (fails if len(calls) == 2 * per_save + 2 else works)(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, sometimes)
        with pytest.raises(NotSaved, match=r"step-00000003 could not be written .*No space left") as error:
            run(config, tmp_path)
    assert "\n" not in str(error.value)
    folders = sorted((tmp_path / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000001", "step-00000002"]
    assert all(is_complete(folder) for folder in folders)
    run(config, tmp_path)
    assert same(whole_maps, tmp_path)


def test_a_full_disk_at_the_very_end_is_told_too(model, tmp_path, monkeypatch):
    monkeypatch.setattr("arr_coc.qwen.storage.save_file", full_disk_in_safetensors)
    with pytest.raises(NotSaved, match=r"the adapter could not be written .*No space left"):
        run(settings(model, steps=1), tmp_path)
    assert saved(tmp_path)[0] == 1


@pytest.mark.parametrize("stage", [1, 3])
def test_the_base_is_proved_unchanged(model, tmp_path, monkeypatch, stage):
    run(settings(model, stage=stage, steps=1), tmp_path / "good")
    proof = metrics(tmp_path / "good")[-1]
    assert proof == {"base_unchanged": True, "base_sha256": weights_hash(tiny.stock())}
    honest = MapLearner.forward

    def meddling(self, *arguments):
        with torch.no_grad():
            self._owner[0].model.lm_head.weight[0, 0] += 1e-3
        return honest(self, *arguments)

    monkeypatch.setattr(MapLearner, "forward", meddling)
    with pytest.raises(RuntimeError, match="own weights have changed"):
        run(settings(model, stage=stage, steps=1), tmp_path / "bad")
    assert not (tmp_path / "bad" / "arr_coc.safetensors").exists()


def test_no_graph_is_kept_between_steps(model, tmp_path, monkeypatch):
    def graphs() -> int:
        gc.collect()
        return sum(type(one) is torch.Tensor and one.grad_fn is not None for one in gc.get_objects())

    learn, kept, before = Learning.learn, [], graphs()  # other tests may have left some

    def counting(self, *arguments):
        found = learn(self, *arguments)
        kept.append(graphs() - before)
        return found

    monkeypatch.setattr(Learning, "learn", counting)
    run(settings(model, stage=2, strategy="straight_through", steps=3), tmp_path)
    assert kept == [0, 0, 0]


# ---------------------------------------------------------------- it can be watched


def test_every_evaluation_draws_the_same_six_examples_and_writes_what_it_found(model, tmp_path):
    common = {"evaluate_questions": 40, "steps": 2, "sight": "textures"}
    lines = run(settings(model, evaluate_every=1e-9, **common), tmp_path / "watched")
    pictures = sorted((tmp_path / "watched" / "pictures").iterdir())
    assert [picture.name for picture in pictures] == ["step-00000001.png", "step-00000002.png"]
    sheets = [np.asarray(Image.open(picture)) for picture in pictures]
    assert sheets[0].shape == sheets[1].shape
    tall, wide = 295, 252  # px from one tile to the next: image, relevance and kept cells, of two examples in a row
    assert sheets[0].shape[:2] == (3 * tall + 12, 6 * wide + 12)
    for row in range(3):
        for column in range(6):
            first, second = (sheet[tall * row + 55 :, wide * column + 12 :][:240, :240] for sheet in sheets)
            assert first.std() > 1, "an empty tile"
            assert column % 3 or (first == second).all(), "another image"
    held = [record for record in metrics(tmp_path / "watched") if "held" in record]
    assert [record["step"] for record in held] == [1, 2, 2]
    assert held[0]["held"]["recall"].keys() == {"0.06", "0.1", "0.25"}
    assert all(0 < value < 1 for value in [*held[0]["held"]["recall"].values(), held[0]["held"]["auto_keep"]])
    assert held[1]["held"] == held[2]["held"] != held[0]["held"]
    assert sum(line.startswith("recall ") for line in lines) == 3
    run(settings(model, **common), tmp_path / "unwatched")
    assert same(tmp_path / "watched", tmp_path / "unwatched")


def test_every_step_says_where_it_stands(model, tmp_path):
    lines = run(settings(model, steps=2), tmp_path)
    assert "fits" in lines[0], "a memory estimate comes first"
    assert lines[1].startswith("325,927 parameters learn on cpu x 1, from step 0")
    assert [line.split("  ")[:2] for line in lines[2:4]] == [["step 1", " 50%"], ["step 2", "100%"]]
    assert all("questions/s" in line and "left 0:0" in line for line in lines[2:4])
    first = metrics(tmp_path)[0]
    assert SelectorTrainConfig(**{k: v for k, v in first["config"].items() if k not in ("sizes", "keeps")})


# ---------------------------------------------------------------- what stage 2 taught the model


@pytest.mark.parametrize("adapt", ["lora", "last4"])
def test_what_the_model_learned_is_kept_and_goes_on(model, tmp_path, adapt):
    config = settings(model, stage=2, adapt=adapt, base_rate=1e-2, steps=2)
    run(config, tmp_path / "two")
    learned = {
        name.removeprefix("model.").replace(".base_layer", ""): value
        for name, value in saved(tmp_path / "two")[1]["weights"].items()
        if name.startswith("model.")
    }
    again = dict(load_adapted(tiny.stock(), tmp_path / "two" / "base").named_parameters())
    assert learned
    assert all(torch.equal(value, again[name]) for name, value in learned.items())
    asked = dict(ARRCOCQwen.from_pretrained(tmp_path / "two").model.named_parameters())  # and is what answers
    assert all(torch.equal(value, asked[name]) for name, value in learned.items())
    lines = run(settings(model, stage=3, steps=1), tmp_path / "three", init_from=tmp_path / "two")
    assert any(line.startswith("base unchanged") for line in lines)
    files = sorted(path.name for path in (tmp_path / "two" / "base").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "three" / "base").iterdir())
    kept = dict(load_adapted(tiny.stock(), tmp_path / "three" / "base").named_parameters())
    assert all(torch.equal(value, kept[name]) for name, value in learned.items())
    run(settings(model, stage=2, adapt=adapt, base_rate=0.0, steps=1), tmp_path / "more", tmp_path / "two")
    more = dict(load_adapted(tiny.stock(), tmp_path / "more" / "base").named_parameters())
    assert all(torch.equal(value, more[name]) for name, value in learned.items())
    with pytest.raises(ValueError, match=f"was adapted with '{adapt}': use that"):
        run(settings(model, stage=2, adapt="all"), tmp_path / "other", tmp_path / "two")
