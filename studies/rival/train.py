"""Training of the rival: the scorer on the ViT's output, on the batches that ARR-COC learns from.

python -m studies.rival.train --config configs/selector-mini-1.json --wide 0.65 --out runs/one --steps 4000
python -m studies.rival.train --config configs/selector-mini-3.json --wide 0.65 --init-from runs/one --out runs/rival

Settings are those of `arr-coc train selector`, stages 1 and 3: the same scenes in the same order, the same losses
against the boxes, as many steps, the same learning rate. What only ARR-COC has (its three maps, the budget) has no
counterpart. The ViT runs over every image, without gradients. The same command goes on from the last checkpoint.

B images, R questions (rows), N cells, D language-model width.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from arr_coc.qwen.loading import find_adapter, load_stock, pick_device, pick_dtype
from arr_coc.qwen.processor import load_processor
from arr_coc.records import QuestionTokens
from arr_coc.training.config import SelectorTrainConfig, read_selector_config
from arr_coc.training.data import Draw, SceneBatches, draw_examples, held_scenes, make_encoder, stream_batches
from arr_coc.training.groups import GridGroup
from arr_coc.training.losses import relevance_bce, relevance_mse, soft_iou
from arr_coc.training.making import rate_groups
from arr_coc.training.room import most_workers
from arr_coc.training.watching import Report
from studies.answering import patchify
from studies.batched.forward import encode_vision, grid_tables
from studies.rival.selector import WEIGHTS, RivalScorer, load_rival, save_rival
from studies.selector.train import draw_mixed

STATE = "checkpoint.safetensors"
CHECKPOINT_STEPS = 200
WATCHED_SHARE = 0.25  # of the cells KEPT when the recall is watched


@dataclass(slots=True)
class Rival:
    """What learns, and the frozen model whose tokens it reads."""

    model: Any
    scorer: RivalScorer
    optimizer: torch.optim.Optimizer
    config: SelectorTrainConfig

    def tokens(self, group: GridGroup) -> Tensor:
        """The merged visual tokens of each row's image, `[R, N, D]`."""
        with torch.no_grad():
            tables = grid_tables(self.model, *group.grid, group.images_Bhw3.device)
            seen = encode_vision(self.model, patchify(group.images_Bhw3, self.model.dtype), tables)
            return seen.merged_BKD[group.image_R]

    def relevance(self, group: GridGroup) -> Tensor:
        """The scorer's map of every row, `[R, H, W]` in [0, 1]."""
        with torch.no_grad():
            question = QuestionTokens.of(self.model.get_input_embeddings()(group.ids_RL), group.mask_RL)
        logits_RN: Tensor = self.scorer(self.tokens(group), question)
        return logits_RN.sigmoid().view(-1, *group.grid)

    def loss(self, group: GridGroup) -> Tensor:
        """ARR-COC's losses of a map against the boxes."""
        config, relevance_RHW = self.config, self.relevance(group)
        target_RHW, known_R, weight_R = group.targets_RHW, group.known_R, group.weight_R
        return (
            config.bce * relevance_bce(relevance_RHW, target_RHW, config.positive_weight, known_R, weight_R)
            + config.mse * relevance_mse(relevance_RHW, target_RHW, known_R, weight_R)
            + config.iou * soft_iou(relevance_RHW, target_RHW, known_R, weight_R)
        )

    def learn(self, step: int, groups: list[GridGroup], device: torch.device) -> float:
        """One optimizer step; returns the loss. ValueError where it is not a number."""
        rate_groups(self.optimizer, self.config, step, step / self.config.steps)
        loss = torch.stack([self.loss(group.to(device)) for group in groups]).mean()
        loss.backward()
        value = float(loss.detach())
        length = torch.nn.utils.clip_grad_norm_(self.scorer.parameters(), self.config.clip)
        if not math.isfinite(value) or not math.isfinite(float(length)):
            raise ValueError(f"the loss is not finite at step {step}: lower the learning_rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    @torch.no_grad()
    def recall(self, groups: list[GridGroup], device: torch.device) -> float:
        """Mean share of the evidence in the best quarter of the cells, over questions that have evidence."""
        shares: list[float] = []
        for group in (one.to(device) for one in groups):
            scores_RN, wanted_RN = self.relevance(group).flatten(1), group.targets_RHW.flatten(1) > 0
            k = max(1, round(WATCHED_SHARE * scores_RN.shape[1]))
            held_R = wanted_RN.gather(1, scores_RN.topk(k).indices).sum(-1)
            most_R = wanted_RN.sum(-1).clamp(max=k)
            shares += (held_R[most_R > 0] / most_R[most_R > 0]).tolist()
        return sum(shares) / max(1, len(shares))


def make_rival(config: SelectorTrainConfig, model: Any, device: torch.device) -> Rival:
    """A fresh scorer beside a frozen model."""
    torch.manual_seed(config.seed)
    scorer = RivalScorer(model.config.text_config.hidden_size).to(device)
    groups = [{"params": list(scorer.parameters()), "peak": config.learning_rate}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=config.weight_decay)
    return Rival(model.requires_grad_(False), scorer, optimizer, config)


def train_rival(
    config: SelectorTrainConfig,
    out: Path,
    say: Callable[[str], None],
    device: str | None = None,
    init_from: Path | None = None,
    draw: Draw = draw_examples,
) -> Path:
    """Train for `config.steps` steps, from nothing or from another rival, and write the weights to `out`."""
    if config.stage not in (1, 3) or config.data != "scenes" or config.target == "attention" or config.seconds:
        raise ValueError("the rival learns from the boxes of scenes, by steps: use settings of stage 1 or 3, seconds 0")
    place = pick_device(device)
    base = find_adapter(config.model)[0]
    model = load_stock(base, place, pick_dtype(config.precision, place))
    encode = make_encoder(load_processor(base).tokenizer)
    rival = make_rival(config, model, place)
    if init_from is not None:
        rival.scorer.load_state_dict(load_rival(init_from).state_dict())
    report = Report(out, say)
    first = load_state(rival, out / STATE)
    held = held_scenes(config, encode)
    count = sum(parameter.numel() for parameter in rival.scorer.parameters())
    say(f"{count:,} parameters, steps {first} to {config.steps}")
    numbers = range(first * config.accumulate, config.steps * config.accumulate)
    workers = most_workers() if config.workers < 0 else config.workers
    batches = stream_batches(SceneBatches(config, encode, draw=draw), numbers, workers, place.type == "cuda")
    for step in range(first, config.steps):
        loss = rival.learn(step, [group for _ in range(config.accumulate) for group in next(batches)], place)
        if (step + 1) % CHECKPOINT_STEPS == 0 or step + 1 == config.steps:
            found = rival.recall(held, place)
            report(f"step {step + 1}  loss {loss:.4f}  recall {found:.1%}", step=step + 1, loss=loss, recall=found)
            save_state(rival, out / STATE, step + 1)
    about = {"steps": config.steps, "seed": config.seed, "model": Path(config.model).name, "parameters": count}
    say(f"wrote {WEIGHTS}")
    return save_rival(out, rival.scorer, about | {"recall": round(rival.recall(held, place), 4)})


def save_state(rival: Rival, path: Path, step: int) -> None:
    """Weights, what the optimizer remembers, and the next step, whole or not at all."""
    tensors = {f"scorer.{name}": tensor for name, tensor in rival.scorer.state_dict().items()}
    for number, state in rival.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": torch.as_tensor(value) for name, value in state.items()}
    beside = path.with_suffix(".tmp")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, str(beside))
    beside.replace(path)
    path.with_suffix(".json").write_text(json.dumps({"step": step}) + "\n")


def load_state(rival: Rival, path: Path) -> int:
    """Go on from a checkpoint; the step to go on with, 0 where there is none."""
    if not path.is_file() or not path.with_suffix(".json").is_file():
        return 0
    tensors = load_file(str(path))
    rival.scorer.load_state_dict({n.removeprefix("scorer."): t for n, t in tensors.items() if n.startswith("scorer.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    rival.optimizer.load_state_dict({**rival.optimizer.state_dict(), "state": state})
    return int(json.loads(path.with_suffix(".json").read_text())["step"])


def main() -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Train the rival: a scorer on the ViT's output tokens.")
    parser.add_argument("--config", type=Path, help="JSON with settings, as for arr-coc train selector")
    parser.add_argument("--out", type=Path, default=Path("runs/rival"))
    parser.add_argument("--init-from", type=Path, help="start from the rival in this folder")
    parser.add_argument("--steps", type=int, help="optimizer steps: as many as ARR-COC had")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--wide", type=float, default=0.0, help="share of scenes of the wide world")
    parser.add_argument("--device")
    given = parser.parse_args()
    seconds = 0.0 if given.steps else None
    asked = {name: getattr(given, name) for name in ("steps", "workers", "seed")}
    config = read_selector_config(given.config, seconds=seconds, **asked)
    train_rival(config, given.out, print, given.device, given.init_from, partial(draw_mixed, given.wide))


if __name__ == "__main__":
    main()
