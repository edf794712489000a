"""Does a run fit, and does it learn? A few steps on one repeated batch, with the memory they really take.

    python -m studies.selector.trial --config configs/selector-2b-1.json --model shape:qwen3-vl-2b --steps 20
    python -m studies.selector.trial --config configs/selector-2b-2.json --out results/trial.json

The report holds the losses of the first and last step, the peak of memory, and its estimate.
"""

import argparse
import json
import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from arr_coc.files import write_json
from arr_coc.training.config import SelectorTrainConfig, read_selector_config
from arr_coc.training.data import make_data
from arr_coc.training.learning import Learning, Team
from arr_coc.training.making import find_base, make_learner, planner
from arr_coc.training.room import Room, fit


def try_out(config: SelectorTrainConfig, steps: int, device: str | None = None) -> dict[str, Any]:
    """`steps` steps on the first batches, at the full learning rate; what they cost, and what they taught.

    Only the largest size and the largest budget are tried: these are what the estimate is for.
    """
    largest = max(config.sizes, key=lambda size: size[0] * size[1])
    config = replace(config, sizes=(largest,), keeps=(config.keeps[1], config.keeps[1]), evaluate_questions=0)
    team = Team(device)
    torch.manual_seed(config.seed)
    planned = planner(config, find_base(config), team.device, [], config.target == "attention")
    cells, need = fit(planned, Room.here(team.device), config.cells_per_batch, 0)
    config = replace(config, cells_per_batch=cells, workers=0)
    made = make_learner(config, None, team.device)
    data = make_data(config, made.owner, lambda line: None)
    batches = [(number, data.batches[number]) for number in range(config.accumulate)]
    learning = Learning(config, team, made)
    on_gpu = team.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, started = [], time.perf_counter()
    for step in range(steps):
        found = learning.learn(step + config.warmup_steps, batches, progress=0.0)
        losses.append(sum(value for name, value in found.items() if name != "right"))
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # of this process, from its start
    return {
        "model": config.model,
        "stage": config.stage,
        "adapt": config.adapt if config.stage == 2 else "none",
        "questions": sum(len(group.examples) for _, batch in batches for group in batch),
        "steps": steps,
        "seconds": round(time.perf_counter() - started, 2),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "learns": losses[-1] < losses[0],
        "target": config.target,
        "estimate_bytes": need.step.total,
        "peak_bytes": peak,
        "peak_over_estimate": None if peak is None else round(peak / need.step.total, 4),
        "host_estimate_bytes": round(need.host),
        "host_peak_bytes": host,
        "host_over_estimate": round(host / need.host, 4),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Try a selector's training for a few steps.")
    parser.add_argument("--config", type=Path, help="JSON file with settings of SelectorTrainConfig")
    parser.add_argument("--model", help="mini, a folder, or shape:qwen3-vl-2b")
    parser.add_argument("--target", help="boxes or attention")
    parser.add_argument("--precision", help="bfloat16 or float32")
    parser.add_argument("--device", help="cpu leaves a GPU alone")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, help="JSON file: a list, to which this trial is added")
    a = parser.parse_args()
    found = try_out(
        read_selector_config(a.config, model=a.model, target=a.target, precision=a.precision), a.steps, a.device
    )
    print(json.dumps(found, indent=2))
    if a.out:
        before = json.loads(a.out.read_text()) if a.out.is_file() else []
        write_json(a.out, [*before, found], indent=2)


if __name__ == "__main__":
    main()
