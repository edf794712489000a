"""Several processes that train one selector: as one process would, and they stop together."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest
from training_runs import jsonl_folder, metrics, most_apart, run, same, saved, settings, tiny_model, two_processes

from arr_coc.training import step as selector_step
from arr_coc.training.data import SceneBatches
from arr_coc.training.main import NotFinite


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("tiny"))


# ---------------------------------------------------------------- what the processes do


def train(number, config, out):
    run(config, out)


def train_with_rewards(number, config, out):
    """Answers count as right in the first process alone, so the two would remember different shares of them."""
    selector_step.losses.answers_right = lambda logits_BLV, labels_BL: (labels_BL >= number * 10**6).any(1)
    run(config, out)


def spoil_the_second(number, config, out):
    """A loss of the second process is not finite in its third step."""
    honest, calls = selector_step.map_losses, []

    def spoiled(judgement, group, *others):
        calls.append(group)
        losses = honest(judgement, group, *others)
        return losses | {"iou": losses["iou"] * float("nan")} if number == 1 and len(calls) == 3 else losses

    selector_step.map_losses = spoiled
    with pytest.raises(NotFinite, match="not finite at step 2"):
        run(config, out)


def interrupt_the_second(number, config, out):
    """Ctrl-C reaches the second process alone, while the third batch is made."""
    fresh = SceneBatches.__getitem__

    def interrupted(self, index):
        if number == 1 and index == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return fresh(self, index)

    SceneBatches.__getitem__ = interrupted
    with pytest.raises(KeyboardInterrupt):
        run(config, out)


# ---------------------------------------------------------------- the tests


def test_two_processes_learn_what_one_learns_from_two_batches(model, tmp_path):
    """Batches of two sizes have different numbers of rows: the mean is over all of them."""
    assert two_processes(train, settings(model, steps=3), tmp_path / "two") == [0, 0]
    run(settings(model, steps=3, accumulate=2), tmp_path / "one")
    assert most_apart(tmp_path / "two", tmp_path / "one") < 1e-6
    assert metrics(tmp_path / "two")[0]["processes"] == 2
    assert (tmp_path / "two" / "arr_coc.safetensors").is_file()
    run(settings(model, steps=4), tmp_path / "two")
    state = json.loads((tmp_path / "two" / "checkpoints" / "step-00000004" / "state.json").read_text())
    assert state["taken"] == 7, "alone it goes on with the batch after the six that two took"


def test_one_looks_while_the_other_does_without(model, tmp_path):
    """What learns from looks has no gradient in a light batch; the other process waits for it all the same."""
    config = settings(model, steps=3, sight="look", light_share=0.5, noisy_share=0.0, hidden_share=0.0)
    assert two_processes(train, config, tmp_path / "two") == [0, 0]
    run(dataclasses.replace(config, accumulate=2), tmp_path / "one")
    assert most_apart(tmp_path / "two", tmp_path / "one") < 1e-5


@pytest.mark.parametrize("strategy", ["score", "gumbel"])
def test_answers_of_files_too_though_processes_have_different_groups(model, tmp_path, strategy):
    """Images of two sizes, boxes unknown: the layer has no loss of its own, and one process has more groups."""
    data = jsonl_folder(tmp_path / "data", 9, boxes=None)
    config = settings(model, stage=2, strategy=strategy, data=data, examples=3, steps=3)
    assert two_processes(train, config, tmp_path / "two") == [0, 0]
    run(dataclasses.replace(config, accumulate=2), tmp_path / "one")
    assert most_apart(tmp_path / "two", tmp_path / "one") < 1e-5
    assert most_apart(tmp_path / "two", tmp_path / "one", "optimizer") < 1e-5


def test_two_processes_go_on_bit_for_bit_and_remember_one_thing(model, tmp_path):
    config = settings(model, stage=2, strategy="reinforce", adapt="none", checkpoint_every=0.0)
    assert two_processes(train_with_rewards, config, tmp_path / "whole") == [0, 0]
    part = tmp_path / "part" / "checkpoints"
    part.mkdir(parents=True)
    os.rename(tmp_path / "whole" / "checkpoints" / "step-00000003", part / "step-00000003")
    assert saved(tmp_path / "part")[2]["baseline"] == pytest.approx(0.5)
    assert two_processes(train_with_rewards, config, tmp_path / "part") == [0, 0]
    assert same(tmp_path / "whole", tmp_path / "part")


def test_a_loss_that_is_not_finite_in_one_stops_both_and_is_named(model, tmp_path):
    assert two_processes(spoil_the_second, settings(model), tmp_path) == [0, 0]
    bad = json.loads((tmp_path / "bad-batch.json").read_text())
    batch = SceneBatches(settings(model), str.encode)[5][0]
    assert bad["examples"] == [example.name for example in batch.examples]
    assert saved(tmp_path)[0] == 2


def test_ctrl_c_in_one_stops_both_after_the_step(model, tmp_path):
    assert two_processes(interrupt_the_second, settings(model, steps=9), tmp_path) == [0, 0]
    assert saved(tmp_path)[0] == 3


def test_a_run_by_the_clock_is_one_run(model, tmp_path):
    """The main process has the clock; saves and evaluations, which it makes alone, do not part the two."""
    often = {"checkpoint_every": 0.0, "evaluate_every": 0.5, "evaluate_questions": 6}
    assert two_processes(train, settings(model, seconds=3.0, steps=0, **often), tmp_path) == [0, 0]
    assert saved(tmp_path)[0] >= 1
    assert metrics(tmp_path)[-1]["held"]


def test_the_command_under_accelerate_launch(model, tmp_path):
    config = settings(model, steps=3)
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    train = ["-m", "studies.selector.train", "--config", str(tmp_path / "config.json")]
    alone = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, "--main_process_port", "0", *train, "--out", str(tmp_path / "two")],
        env=os.environ | alone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "learn on cpu x 2, from step 0" in done.stdout
    run(dataclasses.replace(config, accumulate=2), tmp_path / "one")
    assert most_apart(tmp_path / "two", tmp_path / "one") < 1e-5
