"""Training of mini, from nothing or from earlier weights.

    python -m studies.mini.train --out runs/mini --seconds 540
    python -m studies.mini.train --out runs/more --seconds 540 --init-from runs/mini --config warm.json

`--out` becomes a model to ask (tokenizer, settings, weights in bfloat16 shards) and receives `metrics.jsonl`;
`--checkpoints` receives the full state, from which
the same command goes on where it stopped: bit for bit with `--steps`, with what is left of the time with `--seconds`.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from arr_coc.training.checkpoints import (
    held,
    load_checkpoint,
    newest_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    resumable,
    save_checkpoint,
)
from arr_coc.training.watching import Clock, Report
from studies.answering import Answerer
from studies.asked import Asked, ask_about
from studies.mini.config import MiniTrainConfig, read_config
from studies.mini.data import USES, MiniBatches, batch_stream, moved
from studies.mini.dense_head import HEAD, load_head, save_head
from studies.mini.evaluation import dense_rows, outcomes, sparse_rows
from studies.mini.model import copy_assets, count_parameters, mini_config, new_model
from studies.mini.profiling import profile_steps
from studies.mini.progress import SharedClock, log_step
from studies.mini.shards import export_weights, load_weights
from studies.mini.step import Learner
from studies.outcomes import by_group, summary
from studies.turns import Turns

ASSETS = Path(__file__).parents[2] / "arr_coc" / "models" / "mini"


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Folders of a run."""

    out: Path
    checkpoints: Path
    assets: Path = ASSETS
    init_from: Path | None = None
    head: Path | None = None
    """File of the dense head to start from; None: the one in `init_from`, if there is one."""


def train_mini(config: MiniTrainConfig, places: Places, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train by `config`; returns the last evaluation. Goes on from the newest complete checkpoint, if any."""
    with held(places.out):
        return _train(config, places, say)


def _train(config: MiniTrainConfig, places: Places, say: Callable[[str], None]) -> dict[str, Any]:
    launched = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and we have many
    tokenizer = AutoTokenizer.from_pretrained(places.assets)
    turns = Turns(tokenizer)
    resumed = newest_checkpoint(places.checkpoints, ("model", "head", "optimizer"))
    state: dict[str, Any] = resumable(resumed, config) if resumed else {"step": 0, "trained": 0.0}
    step, clock = int(state["step"]), SharedClock(config.steps, config.seconds, launched, state["trained"])
    last = 10**9 if config.seconds else -(-config.steps // len(USES))
    batches = MiniBatches(config, turns, clock.shared)
    # Workers fork here, before anything touches the GPU.
    stream = batch_stream(batches, step // len(USES), last, pin=device.type == "cuda")
    waiting = next(stream, None)

    learner = make_learner(config, places, tokenizer, turns, device)
    report = Report(places.out, say)
    if resumed:
        restore(learner, resumed)
    held = ask_about("val", config.evaluate_questions, (512, 512)) if config.evaluate_questions else []
    judge = Answerer(learner.model, tokenizer, learner.dtype)
    how = learner.warm_up({k: v.to(device) for k, v in waiting.items()}) if waiting else "nothing to do"
    parameters = count_parameters(learner.model)
    report(
        f"{parameters:,} parameters on {device}, {how}, from step {step}",
        config=dataclasses.asdict(config),
        parameters=parameters,
        kernels=how,
        startup=round(time.monotonic() - clock.ends + config.seconds, 1),
    )
    if config.profile and waiting:
        profile_steps(learner, {k: v.to(device) for k, v in waiting.items()}, places.out / "profile.txt")
    clock.start()

    side = torch.cuda.Stream() if device.type == "cuda" else None
    first, images, waited, noted = step, 0, 0.0, time.monotonic()
    saved = evaluated = noted
    while waiting is not None and clock.progress(step) < 1.0:
        batch = moved(waiting, device, side)
        found = {}
        for use in USES:
            found[use] = learner.step(batch, use, config.rate(step, clock.progress(step)))
            step += 1
            images += len(batch["targets"])
        now = time.monotonic()
        if now - noted > config.log_every:
            pace = {"images_per_second": images / (now - noted), "starved": waited / (now - noted)}
            log_step(report, step, found, pace, clock, first, config)
            images, waited, noted = 0, 0.0, now
        if config.evaluate_every and now - evaluated > config.evaluate_every:
            evaluate_now(judge, held, step, report)
            evaluated = time.monotonic()
        if now - saved > config.checkpoint_every:
            save(learner, places, step, clock)
            saved = time.monotonic()
        now = time.monotonic()
        waiting = next(stream, None)
        waited += time.monotonic() - now
    stream.close()  # the workers end: the evaluation gets the machine for itself
    save(learner, places, step, clock)
    return evaluate_now(judge, held, step, report)


def make_learner(
    config: MiniTrainConfig, places: Places, tokenizer: Any, turns: Turns, device: torch.device
) -> Learner:
    """A learner with fresh weights, or with those of `places.init_from` and a new optimizer."""
    model = new_model(mini_config(tokenizer.get_vocab(), config.hidden, config.layers), config.seed)
    if places.init_from:
        load_weights(model, places.init_from)
    learner = Learner(config, model, turns, device)
    beside = places.init_from / HEAD if places.init_from else None
    head = places.head or (beside if beside and beside.is_file() else None)
    if head:
        load_head(learner.head, head)
    return learner


def save(learner: Learner, places: Places, step: int, clock: Clock) -> None:
    """Full state into the checkpoints, weights alone into `places.out`. Weights that are not finite are not saved."""
    if not all(bool(parameter.isfinite().all()) for parameter in learner.names):
        raise ValueError(f"the weights are not finite at step {step} and were not saved: lower the learning rate")
    state = {"step": step, "trained": clock.trained(), "config": dataclasses.asdict(learner.config)}
    model = {name: value for name, value in learner.model.state_dict().items() if name != "lm_head.weight"}
    groups = {
        "model": model,
        "head": learner.head.state_dict(),
        "optimizer": optimizer_tensors(learner.optimizer, learner.names),
    }
    save_checkpoint(places.checkpoints, step, groups, state)
    export_weights(learner.model, places.out)
    save_head(learner.head, places.out / HEAD)


def restore(learner: Learner, checkpoint: Path) -> None:
    """Put a full checkpoint back. Random numbers have no state: data depend on seed and step alone."""
    groups, _ = load_checkpoint(checkpoint, learner.device)
    learner.model.load_state_dict(groups["model"], strict=False)
    learner.head.load_state_dict(groups["head"])
    restore_optimizer(learner.optimizer, learner.names, groups["optimizer"])


def evaluate_now(judge: Answerer, held: list[Asked], step: int, report: Report) -> dict[str, Any]:
    """Accuracy on `val`, dense per family and sparse with the evidence."""
    if not held:
        return {}
    dense, sparse = outcomes(judge, held, dense_rows), outcomes(judge, held, sparse_rows)
    families = {name: group["accuracy"] for name, group in by_group(dense, "family").items()}
    whole, cut = summary(dense), summary(sparse)
    listed = ", ".join(f"{name} {accuracy:.0%}" for name, accuracy in families.items())
    result = {"step": step, "val": whole, "val_sparse": cut, "families": families}
    report(f"val {whole['accuracy']:.1%}, sparse {cut['accuracy']:.1%}: {listed}", **result)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Train mini. The same command goes on from the newest checkpoint.")
    parser.add_argument("--out", type=Path, default=Path("runs/mini"), help="folder for weights and metrics")
    parser.add_argument("--config", type=Path, help="JSON file with settings of MiniTrainConfig")
    parser.add_argument("--checkpoints", type=Path, help="folder for the full state (default: OUT/checkpoints)")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="folder with mini's tokenizer")
    parser.add_argument("--init-from", type=Path, help="start from the weights in this folder")
    parser.add_argument(
        "--head", type=Path, help="start from the dense head in this file (default: beside the weights)"
    )
    parser.add_argument("--seconds", type=float, help="time budget of training, start-up included")
    parser.add_argument("--steps", type=int, help="optimizer steps, if no time budget is given")
    parser.add_argument("--workers", type=int, help="processes that draw scenes")
    parser.add_argument("--seed", type=int, help="of weights and data")
    parser.add_argument("--quiet", action="store_true", help="say nothing")
    a = parser.parse_args(arguments)
    try:
        config = read_config(a.config, seconds=a.seconds, steps=a.steps, workers=a.workers, seed=a.seed)
        vocabulary = AutoTokenizer.from_pretrained(a.assets).get_vocab()
        copy_assets(a.assets, a.out, mini_config(vocabulary, config.hidden, config.layers))
        places = Places(a.out, a.checkpoints or a.out / "checkpoints", a.assets, a.init_from, a.head)
        train_mini(config, places, (lambda line: None) if a.quiet else _say)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
