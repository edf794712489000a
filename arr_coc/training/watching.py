"""Watching a run: its clock, its lines, recall on examples that were held back, and a picture of the same six of them.

R questions, H W grid of cells, N = H * W.
"""

import importlib.util
import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.evaluation.field.data import SPREAD
from arr_coc.files import append_whole
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Allocation, Judgement
from arr_coc.training.groups import GridGroup
from arr_coc.training.step import judge_group

KEEPS = (0.06, 0.1, 0.25)
SHOWN = 6
SHOWN_KEEP = 0.1  # fraction KEPT in the pictures
KEPT = f"{SHOWN_KEEP:.0%} kept (blue: for coverage)"  # on one line of a tile
TILE = 240  # px of the longer side of a picture's tiles
CAPTION = 56  # letters of a question and its answer that fit over a tile, on two lines


class Clock:
    """Where a run stands: by its steps, or by the time it was given."""

    def __init__(self, steps: int, seconds: float, launched: float, spent: float = 0.0) -> None:
        """`spent` are the seconds of training that an earlier part of the run, before a stop, has used."""
        self.steps, self.seconds, self.spent = steps, seconds, spent
        self.started, self.ends = time.monotonic(), launched + seconds - spent

    def start(self) -> None:
        """Progress counts from here: compiling is over."""
        self.started = time.monotonic()

    def progress(self, step: int) -> float:
        """0 at the first step, 1 at the end."""
        return self.trained() / max(1.0, self.spent + self.ends - self.started) if self.seconds else step / self.steps

    def trained(self) -> float:
        """Seconds of training so far, those before a stop included."""
        return self.spent + time.monotonic() - self.started

    def seconds_left(self, step: int, first: int) -> float:
        """Time to the end, estimated from the pace so far where the plan is in steps."""
        if self.seconds:
            return self.ends - time.monotonic()
        return (time.monotonic() - self.started) / max(1, step - first) * (self.steps - step)


class Report:
    """Metrics as JSON lines in a file and as short lines for people."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._say = folder / "metrics.jsonl", say

    def __call__(self, line: str, **values: Any) -> None:
        self._say(line)
        append_whole(self._path, json.dumps(values) + "\n")


class Watcher:
    """Looks at groups that no step learns from."""

    def __init__(self, owner: ARRCOCQwen, held: list[GridGroup], out: Path) -> None:
        self.owner, self.held, self.folder = owner, held, out / "pictures"
        self.questions = sum(len(group.examples) for group in held)
        self.draws = importlib.util.find_spec("matplotlib") is not None  # bare training machines lack it

    @torch.no_grad()
    def look(self, step: int) -> dict[str, Any]:
        """Mean recall at some fractions kept (None: no boxes are known), and what "auto" keeps; draws the picture."""
        device, learning = self.owner.device, self.owner.training
        self.owner.eval()
        sums, counted, auto, rows = dict.fromkeys(KEEPS, 0.0), 0, 0.0, 0
        tiles: list[tuple[str, Image.Image]] = []
        for group in self.held:
            group = group.to(device)
            judgement = judge_group(self.owner, group)
            local_R = group.known_R & torch.tensor([e.family not in SPREAD for e in group.examples], device=device)
            local_R &= group.targets_RHW.sum((1, 2)) > 0
            for keep in KEEPS:
                sums[keep] += float(recalls(self.choose(judgement, keep).keep_BHW, group.targets_RHW)[local_R].sum())
            counted += int(local_R.sum())
            auto += float(self.choose(judgement, "auto").keep_BHW.float().mean((1, 2)).sum())
            rows += len(group.examples)
            tiles += self._tiles(group, judgement, SHOWN - len(tiles) // 3)
        self._save(tiles, step)
        self.owner.train(learning)
        recall = {keep: sums[keep] / counted for keep in KEEPS} if counted else None
        return {"recall": recall, "auto_keep": auto / max(1, rows)}

    def choose(self, judgement: Judgement, keep: float | str) -> Allocation:
        """What the layer's allocator keeps."""
        balance, attending = judgement.balance, self.owner.layer.attending
        relevance_RHW = balance.relevance_BHW
        k_R = attending.budgets(relevance_RHW, balance.tensions_BT[:, 0], [keep] * relevance_RHW.shape[0])
        kept: Allocation = attending(relevance_RHW, balance.tensions_BT, k_R, judgement.rest_BHW)
        return kept

    def _tiles(self, group: GridGroup, judgement: Judgement, most: int) -> list[tuple[str, Image.Image]]:
        """Image, relevance and kept cells of the first question about each image, up to `most` images."""
        if not self.draws or most < 1:
            return []
        from arr_coc.viewing.overlays import kept_overlay
        from arr_coc.viewing.paper import colour_map

        tiles: list[tuple[str, Image.Image]] = []
        chosen = self.choose(judgement, SHOWN_KEEP)
        first = {number: row for row, number in reversed(list(enumerate(group.image_R.tolist())))}
        for number, row in sorted(first.items())[:most]:
            image = Image.fromarray(group.images_Bhw3[number].cpu().numpy())
            example = group.examples[row]
            answer = f" → {textwrap.shorten(example.answer, CAPTION // 2, placeholder='...')}" if example.answer else ""
            question = textwrap.shorten(example.question, CAPTION - len(answer), placeholder=" ...") + answer
            relevance = colour_map(judgement.balance.relevance_BHW[row])
            kept = kept_overlay(image, chosen.keep_BHW[row], None, chosen.covered_BHW[row])
            tiles += [(question, image), ("relevance: dark 0, bright 1", relevance), (KEPT, kept)]
        return tiles

    def _save(self, tiles: list[tuple[str, Image.Image]], step: int) -> None:
        if not tiles:
            return
        from arr_coc.viewing.heatmaps import sheet
        from arr_coc.viewing.saving import save_picture

        scale = TILE / max(tiles[0][1].size)
        size = (round(tiles[0][1].width * scale), round(tiles[0][1].height * scale))
        save_picture(sheet(tiles, size, columns=6), self.folder / f"step-{step:08d}.png")


def recalls(kept_RHW: Tensor, evidence_RHW: Tensor) -> Tensor:
    """Evidence kept, as a share of the most that so many cells could hold, `[R]`; 0 where there is none."""
    kept_RN, evidence_RN = kept_RHW.flatten(1), evidence_RHW.flatten(1) > 0
    most_R = torch.minimum(kept_RN.sum(-1), evidence_RN.sum(-1)).clamp(min=1)
    return (kept_RN & evidence_RN).sum(-1) / most_R
