"""Time: what moves and what changes in a clip, what its cells are worth then, and one budget for all of it.

T moments of a clip (pairs of frames), F frames of a moment, H W grid of cells, h w fine samples (`FINE` a cell and
side), N = H * W, s samples of a cell, M cells that moved, D shifts that are tried, I images of all samples.

    follow     where the content of each cell was a moment ago, whether it is new, and where the scene is cut
    steady     relevance that is carried along with what moves, and starts anew at a cut
    unseen     what a cell is worth once the same was kept before: little, until it changes
    moments    one budget: the cells that are worth most, in whichever moment
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import choose_cells, coverage
from arr_coc.config import FINE, Keep, Timing
from arr_coc.qwen.request import Layout
from arr_coc.records import Judgement, rows_at
from arr_coc.selectors import Selector

Judged = dict[int, tuple[Judgement, int]]  # of each image: the judgement, and its row there
TIE = 1e-6  # of the highest score: what the even order adds where cells are worth the same
REACH = FINE  # samples that content may have moved in a moment, each way: a cell
NARROW = 1e-3  # how far above the rest it is that what matters is told again, the most relevant first
STEPS = 6  # halvings of the search for the least worth that is kept: between bounds that lie close


@dataclass(frozen=True, slots=True)
class Motion:
    """What became of the moment before, in each moment; the first has none before it, and is all new."""

    shift_THW2: Tensor  # from each cell to where its content was, in samples: finer than cells, slow motion adds up
    new_THW: Tensor  # how much of it is new, 0 to 1
    cuts_T: Tensor  # bool: whether another scene begins here; the first moment is no cut

    def on_host(self) -> "Motion":
        """There, what goes from moment to moment is quicker."""
        return Motion(self.shift_THW2.cpu(), self.new_THW.cpu(), self.cuts_T.cpu())

    def traced(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For `carry`, of each moment: M cells whose content was elsewhere, and the samples where it was `[M, s]`."""
        shift_THW2, inside = self.shift_THW2.numpy(), np.arange(FINE)
        _, height, width, _ = shift_THW2.shape
        t_M, row_M, column_M = np.nonzero(np.abs(shift_THW2).max(-1))
        y_M2 = FINE * np.stack([row_M, column_M], -1) + shift_THW2[t_M, row_M, column_M]
        y_M41 = (y_M2[:, :1] + inside).clip(0, FINE * height - 1)[..., None]
        x_M14 = (y_M2[:, 1:] + inside).clip(0, FINE * width - 1)[:, None]
        cell_M44 = y_M41 // FINE * width + x_M14 // FINE
        sample_Ms = (FINE**2 * cell_M44 + FINE * (y_M41 % FINE) + x_M14 % FINE).reshape(-1, FINE**2)
        ends = np.bincount(t_M, minlength=len(shift_THW2)).cumsum()[:-1]
        return list(zip(np.split(row_M * width + column_M, ends), np.split(sample_Ms, ends), strict=True))


def carry(values_Ns: np.ndarray, traced: tuple[np.ndarray, np.ndarray]) -> None:
    """Values of a moment's samples go, in place, to where their content is a moment later."""
    cells_M, samples_Ms = traced
    if len(cells_M):
        values_Ns[cells_M] = values_Ns.reshape(-1).take(samples_Ms)


def samples_of(frames_TF3hw: Tensor, grid: tuple[int, int]) -> Tensor:
    """Frames pooled to `FINE` samples a cell and side: `[T, F, 3, h, w]`."""
    size = (FINE * grid[0], FINE * grid[1])
    return F.adaptive_avg_pool2d(frames_TF3hw.flatten(0, 1), size).unflatten(0, frames_TF3hw.shape[:2])


@lru_cache(maxsize=8)
def _shifts(device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers of all shifts, row by row, from the nearest to the farthest: among equals, what moved least; and they."""
    steps = range(-REACH, REACH + 1)
    ordered = sorted((y**2 + x**2, number, y, x) for number, (y, x) in enumerate(product(steps, steps)))
    places, shifts = [number for _, number, *_ in ordered], [shift for *_, y, x in ordered for shift in [(y, x)]]
    return torch.tensor(places, device=device), torch.tensor(shifts, device=device)


def follow(samples_TF3hw: Tensor, timing: Timing) -> Motion:
    """Each cell is looked for in the moment before, frame by frame of both, within a cell each way.

    What is found nowhere is new; what moved against the rest of the picture is, as far as it moved.
    """
    height, width = samples_TF3hw.shape[-2:]
    now = samples_TF3hw.flatten(1, 2)
    before = torch.cat([now[:1], now[:-1]])
    wide = F.pad(before, (REACH,) * 4, mode="replicate")
    nearest_D, shift_D2 = _shifts(now.device)
    # A CPU wants what fits its cache, a GPU few launches.
    most = max(1, (1 << 20 if now.device.type == "cpu" else 1 << 27) // ((2 * REACH + 1) * now[0].numel()))
    parts = []
    for now_TChw, wide_TChw in zip(now.split(most), wide.split(most), strict=True):
        found = []
        for y in range(2 * REACH + 1):  # a row of shifts at once
            moved_TCDhw = wide_TChw[..., y : y + height, :].unfold(-1, width, 1).transpose(-2, -3)
            found.append(F.avg_pool2d((now_TChw.unsqueeze(2) - moved_TCDhw).abs_().mean(1), FINE))
        parts.append(torch.cat(found, 1))
    apart_THW, best_THW = torch.cat(parts)[:, nearest_D].min(1)
    shift_THW2 = shift_D2[best_THW]
    camera_T2 = shift_THW2.flatten(1, 2).median(1).values
    own_THW = (shift_THW2 - camera_T2[:, None, None]).abs().amax(-1) / FINE
    new_THW = torch.maximum(apart_THW / timing.change, timing.motion * own_THW).clamp(max=1)
    cuts_T = (apart_THW > timing.change).float().flatten(1).mean(1) >= timing.cut
    begins_T = cuts_T.clone()
    begins_T[0] = True
    new_THW = torch.where(begins_T.view(-1, 1, 1), 1.0, new_THW)
    return Motion(shift_THW2, new_THW, cuts_T)


def steady(worth_TN: Tensor, motion: Motion, decay: float) -> Tensor:
    """Worth with a share of what it was a moment ago where its content came from; a cut carries nothing over."""
    found_TN, carried_Ns = worth_TN.numpy().copy(), np.repeat(worth_TN[0].numpy()[:, None], FINE**2, 1)
    for t, traced in enumerate(motion.traced()):
        share = 0.0 if t == 0 or motion.cuts_T[t] else decay
        carry(carried_Ns, traced)
        carried_Ns = share * carried_Ns + (1 - share) * worth_TN[t].numpy()[:, None]
        found_TN[t] = carried_Ns.mean(1)
    return torch.from_numpy(found_TN)


def unseen(worth_TN: Tensor, motion: Motion, repeated: float, k: int, enough: float = 1.0) -> Tensor:
    """Worth, less where the same content was kept before: what a search for the k best of them comes to.

    What is kept depends on what was kept before it. So the least worth that is kept is searched for: with each guess
    the clip is gone through once, and it is noted which content is held. It lies between the k-th worth of all and what
    repetitions leave of that. A budget that is more than the cells take which hold `enough` of all worth, shows these
    again before it goes to the rest.
    """
    ranked = worth_TN.flatten().sort(descending=True).values
    place = int((ranked.cumsum(0) < enough * ranked.sum()).sum())
    bar = float(ranked[min(place, len(ranked) - 1)]) if enough < 1 else 0.0
    again_TN = torch.where(worth_TN > bar, bar * (1 + NARROW * worth_TN / ranked[0].clamp(min=1e-12)), 0.0)
    same_TN = 1 - motion.new_THW.flatten(1)
    # Thousands of small steps: numpy takes a third of torch's time for them.
    worth, again, same_TN1 = worth_TN.numpy(), again_TN.numpy(), same_TN.numpy()[..., None]
    less, traced, mean_s = (1 - repeated) * worth, motion.traced(), np.full(FINE**2, FINE**-2, np.float32)
    high = least = float(ranked[min(k, len(ranked) - 1)]) * (1 + NARROW)
    low, found, apart = repeated * high, worth, worth.size + 1
    for _ in range(STEPS):
        tried, held_Ns = np.empty_like(worth), np.zeros((worth.shape[1], FINE**2), np.float32)
        for t in range(len(worth)):
            carry(held_Ns, traced[t])
            held_Ns *= same_TN1[t]
            np.maximum(worth[t] - less[t] * (held_Ns @ mean_s), again[t], out=tried[t])
            held_Ns[tried[t] > least] = 1
        over = int((tried > least).sum()) - k
        if abs(over) < apart:  # where many cells are worth the same, no guess keeps just k
            found, apart = tried, abs(over)
        low, high = (least, high) if over > 0 else (low, least)
        least = (low + high) / 2
    return torch.from_numpy(found)


def moments(worth_TN: Tensor, height: int, k: int) -> Tensor:
    """Number of cells to keep of each moment, `[T]` long: where the k cells are that are worth most.

    Among equals, an even order over time and place decides.
    """
    steps, cells = worth_TN.shape
    scores_TN = worth_TN / worth_TN.amax().clamp(min=1e-12)
    scores_TN = scores_TN + TIE * coverage(steps * height, cells // height, worth_TN.device).view(steps, -1)
    return choose_cells(scores_TN.view(1, -1), torch.tensor([k], device=worth_TN.device)).view(steps, -1).sum(-1)


def worth_of(relevance_THW: Tensor, mass_T: Tensor) -> Tensor:
    """What each cell is worth among all of a clip, `[T, N]` fp32: maps are stretched to their own peak, masses not."""
    flat_TN = relevance_THW.flatten(1).float().nan_to_num(0, 0, 0).clamp(min=0)
    worth_T1 = mass_T.float().nan_to_num(0, 0, 0).clamp(min=0).unsqueeze(-1)
    return flat_TN * worth_T1 / flat_TN.sum(-1, keepdim=True).clamp(min=1e-12)


def budgets(selectors: Mapping[bool, Selector], layout: Layout, judged: Judged, keeps: Sequence[Keep]) -> Tensor:
    """Number of cells to keep of each image, then of each clip: the sample's budget, shared by relevance."""
    judgements = [judged[image] for image in range(len(layout.grids))]
    mass_I = torch.stack([judgement.mass_B[row] for judgement, row in judgements])
    automatic_I = None
    if "auto" in keeps:
        of = {id(judgement): (judgement, layout.is_played(image)) for image, (judgement, _) in judged.items()}
        wanted = {name: selectors[played].automatic_budget(judgement) for name, (judgement, played) in of.items()}
        automatic_I = torch.stack([wanted[id(judgement)][row] for judgement, row in judgements])
    shown = [range(image, image + 1) for image in range(layout.images)] + layout.clips

    def summed(values_I: Tensor) -> Tensor:
        return torch.stack([values_I[one.start : one.stop].sum() for one in shown])

    owners = [layout.sample_of[one.start] for one in shown]
    cells = [sum(layout.cells[one.start : one.stop]) for one in shown]
    automatic = None if automatic_I is None else summed(automatic_I)
    return selectors[False].allocator.shared_budgets(keeps, owners, cells, summed(mass_I), automatic)


def over_time(
    selectors: Mapping[bool, Selector],
    layout: Layout,
    judged: Judged,
    keeps: Sequence[Keep],
    pixels: Sequence[Tensor] | None,
) -> tuple[Tensor, Judged, set[int]]:
    """Number of cells to keep of each image, `[I]`; judgements in which clips go on from moment to moment; the cuts.

    `selectors` are who judged samples without clips, and with. `pixels` are those of all images; without them, and for
    selectors without a sense of time, nothing is carried over.
    """
    timing, moved = selectors[True].timing, dict[int, Motion]()
    if timing is not None and pixels is not None:
        # Before anything is read back: the device may still be looking, and launches are hidden behind that.
        for clip in layout.clips:
            samples = samples_of(torch.stack([pixels[image] for image in clip]), layout.grids[clip.start])
            moved[clip.start] = follow(samples, timing)
    shared = budgets(selectors, layout, judged, keeps)
    found, cuts = [shared[: layout.images]], set[int]()
    anew = {id(judgement): _copied(judgement) for judgement, _ in judged.values()} if layout.clips else {}
    judged = {image: (anew.get(id(judgement), judgement), row) for image, (judgement, row) in judged.items()}
    for clip, k in zip(layout.clips, shared[layout.images :].tolist(), strict=True):
        rows = [judged[image] for image in clip]
        (judgement, _), places = rows[0], [row for _, row in rows]
        assert all(one is judgement for one, _ in rows), "moments of a clip are judged together"
        relevance_THW = rows_at(judgement.balance.relevance_BHW, places)
        worth_TN = worth_of(relevance_THW, rows_at(judgement.mass_B, places)).cpu()
        if timing is not None and clip.start in moved:
            motion = moved[clip.start].on_host()
            cuts |= {clip[t] for t in motion.cuts_T.nonzero().flatten().tolist()}
            worth_TN = steady(worth_TN, motion, timing.decay)
            worth_TN = unseen(worth_TN, motion, timing.repeated, k, timing.enough)
            stretched_TN = worth_TN / worth_TN.amax(1, keepdim=True).clamp(min=1e-12)
            carried_THW = stretched_TN.view_as(relevance_THW).to(relevance_THW) * relevance_THW.amax((1, 2), True)
            judgement.balance.relevance_BHW.index_copy_(0, torch.tensor(places).to(carried_THW.device), carried_THW)
        found.append(moments(worth_TN, layout.grids[clip.start][0], k).to(shared.device))
    return torch.cat(found), judged, cuts


def _copied(judgement: Judgement) -> Judgement:
    """With a relevance of its own."""
    balance = judgement.balance
    return replace(judgement, balance=replace(balance, relevance_BHW=balance.relevance_BHW.detach().clone()))
