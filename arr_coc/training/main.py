"""Training of a selector in three stages, from nothing or from an earlier adapter.

    arr-coc train selector --stage 1 --out runs/stage1
    arr-coc train selector --stage 3 --init-from runs/stage1 --out runs/stage3
    accelerate launch --multi_gpu --num_processes 2 -m arr_coc train selector --stage 1 --out runs/stage1

(`--multi_gpu` makes Accelerate start several processes, on a machine with CPUs alone as well; `--cpu` starts one.)
`--out` receives the adapter and `metrics.jsonl`; the same command goes on from the newest complete checkpoint there:
bit for bit with `--steps` on a CPU, with what is left of the time with `--seconds`.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from arr_coc.training.checkpoints import held, newest_checkpoint, resumable
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import Draw, draw_examples
from arr_coc.training.learning import Learning, Team
from arr_coc.training.making import make_learner
from arr_coc.training.run import FILES, NotFinite, Places, Run, Stop
from arr_coc.training.watching import Clock, Report

__all__ = ["NotFinite", "Places", "Stop", "train_selector"]


def train_selector(
    config: SelectorTrainConfig,
    places: Places,
    say: Callable[[str], None] = print,
    device: str | None = None,
    draw: Draw = draw_examples,
) -> dict[str, Any]:
    """Train by `config`; returns the last evaluation. Goes on from the newest complete checkpoint, if any.

    `draw` makes the scenes, if it is to learn from scenes.
    Ctrl-C, SIGTERM and SIGHUP save and then raise KeyboardInterrupt. A loss that is not finite raises NotFinite.
    """
    launched = time.monotonic()
    team = Team(device)
    if team.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    with held(places.out) if team.is_main else contextlib.nullcontext():
        return _train(config, places, say, team, launched, draw)


def _train(
    config: SelectorTrainConfig, places: Places, say: Callable[[str], None], team: Team, launched: float, draw: Draw
) -> dict[str, Any]:
    """The run itself, in a folder that is its own."""
    resumed = newest_checkpoint(places.checkpoints, FILES)
    state = resumable(resumed, config) if resumed else {"trained": 0.0}
    torch.manual_seed(config.seed)
    made = make_learner(config, places.init_from, team.device, say if team.is_main else lambda line: None)
    report = Report(places.out, say) if team.is_main else None
    clock = Clock(config.steps, config.seconds, launched, state["trained"])
    run = Run(Learning(config, team, made), places, clock, report, draw)
    if resumed:
        run.restore(resumed, state)
    count = sum(parameter.numel() for parameter in made.names)
    run.tell(
        f"{count:,} parameters learn on {team.device.type} x {team.count}, from step {run.step}",
        parameters=count,
        processes=team.count,
        config=dataclasses.asdict(config),
    )
    with Stop() as stop:
        stopped = run.go(stop)
        run.save()
    found = run.finish()
    team.end()
    if stopped:
        raise KeyboardInterrupt
    return found
