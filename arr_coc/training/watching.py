"""Watching a selector learn: recall on examples that were held back, and a picture of the same six of them.

R questions, H W grid of cells, N = H * W.
"""

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.evaluation.field.data import SPREAD
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Judgement
from arr_coc.training.data import Group
from arr_coc.training.step import judge_group

KEEPS = (0.06, 0.1, 0.25)
SHOWN = 6
SHOWN_KEEP = 0.1  # fraction KEPT in the pictures
TILE = 240  # px of the longer side of a picture's tiles
CAPTION = 32  # letters of a question that fit over a tile


class Watcher:
    """Looks at groups that no step learns from."""

    def __init__(self, owner: ARRCOCQwen, held: list[Group], out: Path) -> None:
        self.owner, self.held, self.folder = owner, held, out / "pictures"
        self.draws = importlib.util.find_spec("matplotlib") is not None  # bare training machines lack it

    @torch.no_grad()
    def look(self, step: int) -> dict[str, Any]:
        """Mean recall at some fractions kept (None: no boxes are known), and what "auto" keeps; draws the picture."""
        learning = self.owner.training
        self.owner.eval()
        try:
            return self._look(step)
        finally:
            self.owner.train(learning)

    def _look(self, step: int) -> dict[str, Any]:
        device = self.owner.device
        sums, counted, auto, rows = dict.fromkeys(KEEPS, 0.0), 0, 0.0, 0
        tiles: list[tuple[str, Image.Image]] = []
        for group in self.held:
            group = group.to(device)
            judgement = judge_group(self.owner, group)
            local_R = group.known_R & torch.tensor([e.family not in SPREAD for e in group.examples], device=device)
            local_R &= group.targets_RHW.sum((1, 2)) > 0
            for keep in KEEPS:
                sums[keep] += float(recalls(self.choose(judgement, keep), group.targets_RHW)[local_R].sum())
            counted += int(local_R.sum())
            auto += float(self.choose(judgement, "auto").float().mean((1, 2)).sum())
            rows += len(group.examples)
            tiles += self._tiles(group, judgement, SHOWN - len(tiles) // 3)
        self._save(tiles, step)
        recall = {keep: sums[keep] / counted for keep in KEEPS} if counted else None
        return {"recall": recall, "auto_keep": auto / max(1, rows)}

    def choose(self, judgement: Judgement, keep: float | str) -> Tensor:
        """Kept cells `[R, H, W]`, as the layer's allocator chooses them."""
        balance, attending = judgement.balance, self.owner.layer.attending
        relevance_RHW = balance.relevance_BHW
        k_R = attending.budgets(relevance_RHW, balance.tensions_BT[:, 0], [keep] * relevance_RHW.shape[0])
        kept: Tensor = attending(relevance_RHW, balance.tensions_BT, k_R).keep_BHW
        return kept

    def _tiles(self, group: Group, judgement: Judgement, most: int) -> list[tuple[str, Image.Image]]:
        """Image, relevance and kept cells of the first question about each image, up to `most` images."""
        if not self.draws or most < 1:
            return []
        from arr_coc.viewing.overlays import kept_overlay
        from arr_coc.viewing.sheets import colour_map

        tiles: list[tuple[str, Image.Image]] = []
        kept_RHW = self.choose(judgement, SHOWN_KEEP)
        first = {number: row for row, number in reversed(list(enumerate(group.image_R.tolist())))}
        for number, row in sorted(first.items())[:most]:
            image = Image.fromarray(group.images_Bhw3[number].cpu().numpy())
            question = textwrap.shorten(group.examples[row].question, CAPTION, placeholder=" ...")
            relevance = colour_map(judgement.balance.relevance_BHW[row])
            tiles += [(question, image), ("relevance", relevance), ("kept", kept_overlay(image, kept_RHW[row]))]
        return tiles

    def _save(self, tiles: list[tuple[str, Image.Image]], step: int) -> None:
        if not tiles:
            return
        from arr_coc.viewing.sheets import sheet

        scale = TILE / max(tiles[0][1].size)
        size = (round(tiles[0][1].width * scale), round(tiles[0][1].height * scale))
        self.folder.mkdir(parents=True, exist_ok=True)
        sheet(tiles, size, columns=6).save(self.folder / f"step-{step:08d}.png")


def recalls(kept_RHW: Tensor, evidence_RHW: Tensor) -> Tensor:
    """Evidence kept, as a share of the most that so many cells could hold, `[R]`; 0 where there is none."""
    kept_RN, evidence_RN = kept_RHW.flatten(1), evidence_RHW.flatten(1) > 0
    most_R = torch.minimum(kept_RN.sum(-1), evidence_RN.sum(-1)).clamp(min=1)
    return (kept_RN & evidence_RN).sum(-1) / most_R
