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
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from arr_coc.data.examples import FileExamples
from arr_coc.training.checkpoints import STATE, held, newest_checkpoint, resumable
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import Draw, draw_examples
from arr_coc.training.learning import Learning, Team
from arr_coc.training.making import find_base, make_learner, planner
from arr_coc.training.memory import describe
from arr_coc.training.room import Need, NoRoom, Room, fit
from arr_coc.training.run import FILES, NotFinite, Places, Run, Stop
from arr_coc.training.watching import Clock, Report

__all__ = ["NoRoom", "NotFinite", "Places", "Stop", "train_selector"]


def train_selector(
    config: SelectorTrainConfig,
    places: Places,
    say: Callable[[str], None] = print,
    device: str | None = None,
    draw: Draw = draw_examples,
    examples: FileExamples | None = None,
) -> dict[str, Any]:
    """Train by `config`; returns the last evaluation. Goes on from the newest complete checkpoint, if any.

    `draw` makes the scenes, if it is to learn from scenes; `examples` are those of its files, if they were read before.
    What there is no memory for raises NoRoom before a model is loaded.
    Ctrl-C, SIGTERM and SIGHUP save and then raise KeyboardInterrupt. A loss that is not finite raises NotFinite.
    """
    launched = time.monotonic()
    team = Team(device)
    if team.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    examples = config.read_files() if examples is None else examples
    with held(places.out) if team.is_main else contextlib.nullcontext():
        resumed = newest_checkpoint(places.checkpoints, FILES)
        config, need = _with_room(config, team, examples, resumed)
        state = resumable(resumed, config) if resumed else {"trained": 0.0}
        if team.is_main:
            say(f"{describe(need.step)}\n  {need.told()}")
        torch.manual_seed(config.seed)
        made = make_learner(config, places.init_from, team.device)
        report = Report(places.out, say) if team.is_main else None
        clock = Clock(config.steps, config.seconds, launched, state["trained"])
        run = Run(Learning(config, team, made), places, clock, report, draw, examples)
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


def _with_room(
    config: SelectorTrainConfig, team: Team, examples: FileExamples | None, resumed: Path | None
) -> tuple[SelectorTrainConfig, Need]:
    """The settings with cells of a batch and workers that fit, and what the run needs; NoRoom where nothing does.

    A run that goes on keeps the cells that it began with, unless others are asked for.
    """
    cells = config.cells_per_batch
    if resumed and not cells:
        cells = json.loads((resumed / STATE).read_text()).get("config", {}).get("cells_per_batch", 0)
    base = find_base(config)
    rows = [] if examples is None else examples.rows
    taught = config.target == "attention" or config.order > 0
    taught |= config.target == "auto" and any(row.boxes is None for row in rows)
    planned = planner(config, base, team.device, rows, taught)
    try:
        found, need = fit(planned, Room.here(team.device, team.count), cells, config.workers)
    except NoRoom as why:
        if not resumed or config.data != "scenes":
            raise
        begun = str(why).partition(";")[0]  # other cells would be other batches
        raise NoRoom(f"{begun}; this run began so: free some, or give another --out for a new run") from None
    found = min(team.gathered([found]))  # all of the same data
    return dataclasses.replace(config, cells_per_batch=found, workers=need.workers), need
