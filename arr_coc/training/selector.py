"""Training of a selector in three stages, from nothing or from an earlier adapter.

    arr-coc train selector --stage 1 --out runs/stage1
    arr-coc train selector --stage 3 --init-from runs/stage1 --out runs/stage3
    accelerate launch --num_processes 2 -m arr_coc train selector --stage 1 --out runs/stage1

`--out` receives the adapter and `metrics.jsonl`; the same command goes on from the newest complete checkpoint there:
bit for bit with `--steps` on a CPU, with what is left of the time with `--seconds`.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.storage import save_adapter
from arr_coc.training.adapting import save_adapted, weights_hash
from arr_coc.training.checkpoints import (
    load_checkpoint,
    newest_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    resumable,
    save_checkpoint,
)
from arr_coc.training.progress import Clock, Report
from arr_coc.training.selector_config import SelectorTrainConfig, read_selector_config
from arr_coc.training.selector_data import Every, Group, stream_batches
from arr_coc.training.selector_making import Makings, make_batches, make_learner, rate_groups
from arr_coc.training.watching import Watcher

BAD_BATCH = "bad-batch.json"


class NotFinite(ValueError):
    """A loss that is not a number: the run has stopped, and what it was made from is written down."""


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Folders of a run."""

    out: Path
    init_from: Path | None = None
    """Folder of an adapter to start from; None: a fresh one."""

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"


class Stop:
    """Whether somebody pressed Ctrl-C. The step in hand is finished and saved before the run ends."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, *_: object) -> None:
        self.asked = True


def train_selector(
    config: SelectorTrainConfig, places: Places, say: Callable[[str], None] = print, device: str | None = None
) -> dict[str, Any]:
    """Train by `config`; returns the last evaluation. Goes on from the newest complete checkpoint, if any."""
    launched = time.monotonic()
    accelerator = Accelerator(cpu=device == "cpu")
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    resumed = newest_checkpoint(places.checkpoints)
    state: dict[str, Any] = resumable(resumed, config) if resumed else {"step": 0, "trained": 0.0, "strategy": {}}
    torch.manual_seed(config.seed)
    made = make_learner(config, places.init_from, accelerator.device, say if accelerator.is_main_process else _silent)
    clock, step = Clock(config, launched, state["trained"]), int(state["step"])
    before = weights_hash(made.owner.model)
    report = Report(places.out, say) if accelerator.is_main_process else None
    run = Run(config, places, accelerator, made, clock, report)
    if resumed:
        run.restore(resumed, state)
    with Stop() as stop:
        step = run.go(step, stop)
    run.save(step)
    if config.stage != 2:
        after = weights_hash(made.owner.model)
        assert before == after, "the base model's weights have changed in a stage that must not touch them"
        run.tell(f"base unchanged, sha256 {after[:16]}", base_unchanged=True, base_sha256=after)
    found = run.finish(step)
    if stop.asked:
        raise KeyboardInterrupt
    return found


class Run:
    """One linear loop and what it needs: batches in, steps, checkpoints, evaluations out."""

    def __init__(
        self,
        config: SelectorTrainConfig,
        places: Places,
        accelerator: Accelerator,
        made: Makings,
        clock: Clock,
        report: Report | None,
    ) -> None:
        self.config, self.places, self.accelerator, self.made = config, places, accelerator, made
        self.clock, self.report = clock, report
        self.learner = accelerator.prepare(made.learner)
        self.parameters = [p for group in made.optimizer.param_groups for p in group["params"]]
        self.batches, held = make_batches(config, made.owner, self.tell)
        self.watcher = Watcher(made.owner, held, places.out)

    def go(self, step: int, stop: Stop) -> int:
        """Steps until the plan is fulfilled or somebody asks to stop; returns their number."""
        config, processes = self.config, self.accelerator.num_processes
        per_step = config.accumulate * processes
        numbers = Every(
            step * per_step,
            10**12 if config.seconds else config.steps * per_step,
            processes,
            self.accelerator.process_index,
        )
        stream = stream_batches(self.batches, numbers, config.workers, pin=self.accelerator.device.type == "cuda")
        self.clock.start()
        first, noted = step, time.monotonic()
        saved = evaluated = noted
        while self.clock.progress(step) < 1.0 and not self._anyone(stop.asked):
            found, rows = self.step(step, [next(stream) for _ in range(config.accumulate)])
            step += 1
            now = time.monotonic()
            if now - noted > config.log_every:
                self._log(step, first, found, rows * processes / max(1e-9, now - noted))
                noted = now
            if config.evaluate_every and now - evaluated > config.evaluate_every:
                self.evaluate(step)
                evaluated = time.monotonic()
            if now - saved > config.checkpoint_every:
                self.save(step)
                saved = time.monotonic()
        stream.close()
        return step

    def step(self, step: int, batches: list[list[Group]]) -> tuple[dict[str, float], int]:
        """One optimizer step over some batches; returns the mean of each loss, and the number of questions."""
        config, device = self.config, self.accelerator.device
        progress = self.clock.progress(step)
        rate_groups(self.made.optimizer, config, step, progress)
        groups = [group for batch in batches for group in batch]
        total = sum(len(group.examples) for group in groups)
        sums: dict[str, float] = {}
        for number, group in enumerate(groups):
            share = len(group.examples) / total
            last = number + 1 == len(groups)
            # Gradients are exchanged between processes with the last group alone.
            with _sync(self.accelerator, self.learner, last):
                losses: dict[str, Tensor] = self.learner(group.to(device), config.seed * 1_000_003 + step, progress)
                loss = sum((value for name, value in losses.items() if name != "right"), torch.zeros((), device=device))
                if self._anyone(not math.isfinite(float(loss.detach()))):
                    self._stop_at(step, group, losses)
                self.accelerator.backward(loss * share)
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + share * float(value.detach())
        torch.nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.made.optimizer.step()
        self.made.optimizer.zero_grad(set_to_none=True)
        return sums, total

    def _stop_at(self, step: int, group: Group, losses: dict[str, Tensor]) -> None:
        """Write down which examples made a loss that is not finite, keep the weights from before, and stop."""
        self.made.optimizer.zero_grad(set_to_none=True)
        if not bool(torch.stack([p.isfinite().all() for p in self.parameters]).all()):
            raise NotFinite(f"weights are not finite at step {step}: go on from the last checkpoint, lower the rate")
        self.save(step)
        values = {name: repr(float(value.detach())) for name, value in losses.items()}
        bad = {"step": step, "losses": values, "examples": [example.name for example in group.examples]}
        if self.accelerator.is_main_process:
            (self.places.out / BAD_BATCH).write_text(json.dumps(bad, indent=2) + "\n")
        raise NotFinite(f"a loss is not finite at step {step}: its examples are in {BAD_BATCH}; lower the rate")

    def _anyone(self, here: bool) -> bool:
        """Whether it is so in any process: all must leave the loop together."""
        if self.accelerator.num_processes == 1:
            return here
        flag = torch.tensor(float(here), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, reduction="sum") > 0)

    def _log(self, step: int, first: int, found: dict[str, float], rows_per_second: float) -> None:
        progress, left = self.clock.progress(step), self.clock.seconds_left(step, first)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items() if value)
        self.tell(
            f"step {step}  {progress:4.0%}  {shown}  left {left // 60:.0f}:{left % 60:02.0f}",
            step=step,
            progress=round(progress, 4),
            rate=self.made.optimizer.param_groups[0]["lr"],
            **found,
        )

    def tell(self, line: str, **values: Any) -> None:
        """A line for people and one for machines, from the main process alone."""
        if self.report is not None:
            self.report(line, **values)

    def evaluate(self, step: int) -> dict[str, Any]:
        """Recall on what was held back, and a picture of the same six examples every time."""
        if self.report is None or not self.watcher.held:
            return {}
        found = self.watcher.look(step)
        recalls = ", ".join(f"{value:.3f} at {keep:.0%}" for keep, value in found["recall"].items())
        self.tell(f"recall: {recalls}; auto keeps {found['auto_keep']:.1%}", step=step, held=found)
        return found

    def save(self, step: int) -> None:
        """Full state into the checkpoints, complete or not at all."""
        if self.accelerator.is_main_process:
            learned = {name: value for name, value in self.made.owner.state_dict().items() if name in self.made.trained}
            groups = {"weights": learned, "optimizer": optimizer_tensors(self.made.optimizer, self.made.names)}
            state = {
                "step": step,
                "trained": self.clock.trained(),
                "strategy": self.made.strategy_state(),
                "config": dataclasses.asdict(self.config),
            }
            save_checkpoint(self.places.checkpoints, step, groups, state)
        self.accelerator.wait_for_everyone()

    def restore(self, checkpoint: Path, state: dict[str, Any]) -> None:
        """Put a checkpoint back. Random numbers have no state: they depend on seed and step alone."""
        groups, _ = load_checkpoint(checkpoint, self.accelerator.device)
        missing = set(self.made.trained) - set(groups["weights"])
        assert not missing, f"checkpoint without {sorted(missing)[:3]}"
        self.made.owner.load_state_dict(groups["weights"], strict=False)
        restore_optimizer(self.made.optimizer, self.made.names, groups["optimizer"])
        self.made.restore_strategy(state["strategy"])

    def finish(self, step: int) -> dict[str, Any]:
        """The adapter into the run's folder, and a last evaluation."""
        if not self.accelerator.is_main_process:
            return {}
        owner: ARRCOCQwen = self.made.owner
        config = dataclasses.replace(owner.config, trained=True, straight_through=False)
        save_adapter(self.places.out, config, owner.layer)
        if self.config.stage == 2 and self.config.adapt != "none":
            save_adapted(owner.model, self.config.adapt, self.places.out / "base")
        return self.evaluate(step)


def _sync(accelerator: Accelerator, learner: Any, last: bool) -> Any:
    return contextlib.nullcontext() if last else accelerator.no_sync(learner)


def _silent(_: str) -> None:
    return None


def main() -> None:
    """`python -m arr_coc.training.selector`, for machines without the command line's libraries."""
    parser = argparse.ArgumentParser(description="Train a selector.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter, metrics and checkpoints")
    parser.add_argument("--config", type=Path, help="JSON file with settings of SelectorTrainConfig")
    parser.add_argument("--init-from", type=Path, help="start from the adapter in this folder")
    parser.add_argument("--stage", type=int)
    parser.add_argument("--model", help="mini, a folder, or shape:qwen3-vl-2b")
    parser.add_argument("--seconds", type=float, help="time budget of training, start-up included")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int)
    a = vars(parser.parse_args())
    places = Places(a.pop("out"), a.pop("init_from"))
    train_selector(read_selector_config(a.pop("config"), **a), places, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
