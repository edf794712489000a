"""`python -m studies.mini.train` on a CPU: it learns, stops anywhere, goes on exactly, and writes a stock model."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

from arr_coc.cli import run as cli
from arr_coc.training.checkpoints import is_complete, newest_checkpoint, save_checkpoint
from arr_coc.training.watching import Clock
from studies.answering import Answerer, Row, patchify
from studies.asked import ask_about
from studies.mini.config import MiniTrainConfig, read_config
from studies.mini.data import USES, MiniBatches, batch_stream
from studies.mini.evaluation import dense_rows, evaluate, outcomes, sparse_rows
from studies.mini.model import MAX_PARAMETERS, count_parameters, mini_config, new_model
from studies.mini.shards import SHARD_BYTES, export_weights, load_weights
from studies.mini.step import Learner
from studies.mini.train import ASSETS, Places, main, train_mini
from studies.turns import Turns


def tiny(steps, **changes):
    """A run of a few seconds: two sizes, two layers, everything in float32 in this process."""
    settings = {
        "steps": steps,
        "sizes": ((128, 128, 0.5), (160, 128, 0.5)),
        "early_sizes": (),
        "cells_per_batch": 48,
        "workers": 0,
        "compile": False,
        "precision": "float32",
        "evaluate_questions": 0,
        "hidden": 128,
        "layers": (2, 2),
        "curriculum": (0.0, 0.0),
        "warmup_steps": 2,
    }
    return MiniTrainConfig(**settings | changes)


def run(config, folder, **places):
    lines = []
    train_mini(config, Places(folder, folder / "checkpoints", **places), lines.append)
    return lines


def final_state(folder):
    checkpoint = newest_checkpoint(folder / "checkpoints")
    return {path.name: load_file(path) for path in checkpoint.glob("*.safetensors")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(tiny(8), folder)


def test_a_stopped_run_goes_on_bit_for_bit(whole, tmp_path, monkeypatch):
    saves = []

    def stop_after_save(*arguments, **keywords):
        saves.append(save_checkpoint(*arguments, **keywords))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("studies.mini.train.save_checkpoint", stop_after_save)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(8, checkpoint_every=1e-9), tmp_path)
    assert saves[0].name == "step-00000002"
    lines = run(tiny(8), tmp_path)
    assert "from step 2" in lines[0]
    wanted, found = final_state(whole[0]), final_state(tmp_path)
    assert wanted.keys() == found.keys() == {"model.safetensors", "head.safetensors", "optimizer.safetensors"}
    for name, tensors in wanted.items():
        assert tensors.keys() == found[name].keys()
        assert all(torch.equal(tensors[key], found[name][key]) for key in tensors)


def test_the_command_makes_a_model_to_ask(tmp_path, capsys):
    settings = {"hidden": 64, "layers": [1, 1], "sizes": [[128, 128, 1.0]], "early_sizes": [], "cells_per_batch": 32,
                "workers": 0, "compile": False, "precision": "float32", "evaluate_questions": 0}  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(settings))
    main(["--out", str(tmp_path / "run"), "--config", str(tmp_path / "tiny.json"), "--steps", "2", "--quiet"])
    assert capsys.readouterr() == ("", "")
    assert list((tmp_path / "run").glob("model-*.safetensors"))
    question = ["ask", "What colour is the hand?", "--model", str(tmp_path / "run"), "--max-new-tokens", "2"]
    assert cli.run(question) == 0
    with pytest.raises(SystemExit, match=r"no-such\.json"):
        main(["--out", str(tmp_path / "other"), "--config", "no-such.json"])


def test_loss_falls(tmp_path):
    lines = run(tiny(24, learning_rate=3e-3, evaluate_questions=4, evaluate_every=0.0, log_every=0.0), tmp_path)
    assert lines[-1].startswith("val ")
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["parameters"] > 1_000_000
    assert records[-1]["val"]["n"] == 4
    answers = [record["answers"] for record in records if "answers" in record]
    assert sum(answers[-3:]) < 0.85 * sum(answers[:3])


def test_a_profile_is_written_and_changes_no_weight(whole, tmp_path):
    run(tiny(2, learning_rate=0.0, profile=True), tmp_path, init_from=whole[0])
    text = (tmp_path / "profile.txt").read_text()
    assert "dense: " in text
    assert "sparse: " in text
    old, new = (load_file(f / "model-00001-of-00001.safetensors") for f in (whole[0], tmp_path))
    assert all(torch.equal(old[name], new[name]) for name in old)


def test_the_head_has_a_rate_of_its_own():
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    config, turns = tiny(2, head_rate=5.0), Turns(tokenizer)
    model = new_model(mini_config(tokenizer.get_vocab(), config.hidden, config.layers), seed=0)
    learner = Learner(config, model, turns, torch.device("cpu"))
    learner.step(MiniBatches(config, turns)[0], "dense", 1e-3)
    assert [group["lr"] for group in learner.optimizer.param_groups] == pytest.approx([1e-3, 1e-3, 5e-3, 5e-3])
    assert sum(len(group["params"]) for group in learner.optimizer.param_groups) == len(learner.names)


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"model": {"a": torch.ones(3)}}, {"step": step})
    newest = newest_checkpoint(tmp_path)
    assert newest.name == "step-00000002"
    with (newest / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert not is_complete(newest)
    assert newest_checkpoint(tmp_path).name == "step-00000001"
    shutil.rmtree(tmp_path / "step-00000001")
    assert newest_checkpoint(tmp_path) is None


def test_warm_restart_starts_from_the_weights(whole, tmp_path):
    assert "from step 0" in run(tiny(2, learning_rate=0.0), tmp_path, init_from=whole[0])[0]
    old, new = (load_file(f / "model-00001-of-00001.safetensors") for f in (whole[0], tmp_path))
    assert all(torch.equal(old[name], new[name]) for name in old)
    with pytest.raises(ValueError, match=r"studies\.mini\.train"):
        run(tiny(2), tmp_path / "other", init_from=tmp_path / "nowhere")


def test_weights_are_a_stock_model(whole, tmp_path):
    """`from_pretrained` and `generate` of transformers give the answers of the batched forward."""
    model_folder = tmp_path / "model"
    shutil.copytree(ASSETS, model_folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    config = mini_config(tokenizer.get_vocab(), hidden=128, layers=(2, 2))
    (model_folder / "config.json").write_text(config.to_json_string())
    for file in whole[0].glob("model*"):
        shutil.copy(file, model_folder)
    model = Qwen3VLForConditionalGeneration.from_pretrained(model_folder, dtype=torch.float32).eval()
    asked = ask_about("val", 3, (128, 128))
    answers = Answerer(model, tokenizer, most_tokens=6).answer(dense_rows(asked))
    pad = model.config.image_token_id
    for row, texts in zip(dense_rows(asked), answers, strict=True):
        pixels = patchify(torch.from_numpy(row.image)[None], torch.float32).view(-1, 3, 1, 256)
        for question, text in zip(row.questions, texts, strict=True):
            prompt = "<|im_start|>user\n<|vision_start|>{}<|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n"
            ids = tokenizer(prompt.format("<|image_pad|>" * 16, question), return_tensors="pt")["input_ids"]
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == pad).int(),
                pixel_values=pixels.expand(-1, -1, 2, -1).reshape(64, 1536),
                image_grid_thw=torch.tensor([[1, 8, 8]]),
                max_new_tokens=6,
            )
            assert tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip() == text


def test_full_size_shards_and_parameters(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = new_model(mini_config(tokenizer.get_vocab()), seed=0)
    assert count_parameters(model) <= MAX_PARAMETERS
    shards = export_weights(model, tmp_path)
    assert all(shard.stat().st_size <= SHARD_BYTES + 2**17 for shard in shards)
    assert sum(shard.stat().st_size for shard in shards) <= 32 * 2**20
    other = new_model(model.config, seed=1)
    load_weights(other, tmp_path)
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a.bfloat16().float(), b) for a, b in pairs)


def test_report_has_the_keys_that_are_promised():
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = new_model(mini_config(tokenizer.get_vocab(), hidden=128, layers=(2, 2)), seed=0).eval()
    report = evaluate(Answerer(model, tokenizer, most_tokens=2), 8, lambda line: None, size=128)
    assert {"accuracy", "ci95", "n", "majority"} <= report["overall"].keys()
    assert all("accuracy" in report[name] for name in ("unseen", "px1024", "blind", "shuffled", "sparse25"))
    assert all({"accuracy", "majority"} <= family.keys() for family in report["families"].values())


def test_sparse_with_every_cell_is_dense():
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    model = new_model(mini_config(tokenizer.get_vocab(), hidden=128, layers=(2, 2)), seed=3).eval()
    asked = ask_about("val", 4, (128, 128))
    answerer = Answerer(model, tokenizer, most_tokens=5)
    every = [Row(row.image, row.questions, tuple(range(16))) for row in dense_rows(asked)]
    assert answerer.answer(every) == answerer.answer(dense_rows(asked))
    assert len(outcomes(answerer, asked, sparse_rows)) == 4
    assert np.array_equal(asked[0].image, ask_about("val", 4, (128, 128))[0].image)


def test_bfloat16_losses_are_those_of_float32(monkeypatch):
    # Its bfloat16 products need instructions that not every CPU has.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    turns = Turns(tokenizer)
    found = {}
    for precision in ("float32", "bfloat16"):
        config = tiny(2, precision=precision)
        model = new_model(mini_config(tokenizer.get_vocab(), config.hidden, config.layers), seed=0)
        learner = Learner(config, model, turns, torch.device("cpu"))
        found[precision] = [learner.step(MiniBatches(config, turns)[0], use, 1e-3) for use in USES]
    for exact, rough in zip(found["float32"], found["bfloat16"], strict=True):
        assert float(rough.answers) == pytest.approx(float(exact.answers), rel=0.02)
        assert float(rough.dense) == pytest.approx(float(exact.dense), rel=0.02)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    with pytest.raises(ValueError, match="not finite at step"):
        run(tiny(12, learning_rate=1e9, log_every=100.0), tmp_path)
    assert not list(tmp_path.glob("model-*"))
    assert newest_checkpoint(tmp_path / "checkpoints") is None


def test_going_on_with_other_settings_is_refused_by_name(tmp_path):
    run(tiny(2), tmp_path)
    with pytest.raises(ValueError, match="learning_rate, seed"):
        run(tiny(4, seed=9, learning_rate=0.5), tmp_path)
    run(tiny(4, log_every=1.0), tmp_path)


def test_a_run_by_the_clock_goes_on_with_the_time_that_is_left(tmp_path):
    clock = Clock(tiny(8).steps, 100.0, launched=time.monotonic(), spent=60.0)
    assert clock.progress(0) == pytest.approx(0.6, abs=0.01)
    assert clock.seconds_left(0, 0) == pytest.approx(40, abs=1)


def test_what_a_killed_save_left_behind_is_removed(tmp_path):
    (tmp_path / ".tmp-1-00000001").mkdir(parents=True)
    save_checkpoint(tmp_path, 2, {"model": {"x": torch.zeros(1)}}, {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('{"steps": "abc"}', "steps: 'abc'"),
        ('{"sizes": []}', "sizes"),
        ('{"sizes": [[128, 128]]}', "sizes"),
        ('{"sizes": [[0, 0, 1]]}', "sizes"),
        ('{"sizes": [[100, 128, 1]]}', "multiples of 32"),
        ('{"questions": 0}', "questions"),
        ('{"text_tokens": 4}', "text_tokens"),
        ('{"hidden": 100}', "hidden"),
        ('{"focus": ["colur"]}', "colur"),
        ('{"focus_share": 0.5}', "focus"),
        ('{"seed": -1}', "seed"),
        ('{"stepz": 4}', "stepz"),
        ("{bad", "mine.json: not JSON"),
        ("[1]", "JSON object"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, settings, says):
    (tmp_path / "mine.json").write_text(settings)
    with pytest.raises(ValueError, match=says):
        read_config(tmp_path / "mine.json")


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent.parent / "configs").glob("mini-*.json")), ids=lambda p: p.name
)
def test_every_committed_config_is_valid(path):
    read_config(path, steps=2)


def test_too_little_shared_memory_says_how_many_workers_fit(monkeypatch):
    config = tiny(2, workers=2)
    monkeypatch.setattr("studies.mini.data.shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match="--workers 0"):
        next(batch_stream(MiniBatches(config, Turns(AutoTokenizer.from_pretrained(ASSETS))), 0, 1, pin=False))
