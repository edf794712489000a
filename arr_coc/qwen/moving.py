"""Time: one budget for the images of a sample, and over a clip for its most relevant cells, in whichever moment.

T moments of a clip (pairs of frames), H W grid of cells, N = H * W, I images of all samples.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arr_coc.attending import choose_cells, coverage
from arr_coc.config import Keep
from arr_coc.qwen.request import Layout
from arr_coc.records import Judgement
from arr_coc.selectors import Selector

TIE = 1e-6  # of the highest score: what the even order adds where cells are worth the same


def moments(relevance_THW: Tensor, mass_T: Tensor, k: Tensor) -> Tensor:
    """Number of cells to keep of each moment, `[T]` long: where the k most relevant cells of the clip are.

    A map is stretched to its own peak; `mass_T` says what all of it is worth. Among equals, an even order over time and
    place decides.
    """
    steps, height, width = relevance_THW.shape
    flat_TN = relevance_THW.flatten(1).float().nan_to_num(0, 0, 0).clamp(min=0)
    worth_T1 = mass_T.float().nan_to_num(0, 0, 0).clamp(min=0).unsqueeze(-1)
    scores_TN = flat_TN * worth_T1 / flat_TN.sum(-1, keepdim=True).clamp(min=1e-12)
    scores_TN = scores_TN / scores_TN.amax().clamp(min=1e-12)
    scores_TN = scores_TN + TIE * coverage(steps * height, width, relevance_THW.device).view(steps, -1)
    return choose_cells(scores_TN.view(1, -1), k.view(1)).view(steps, -1).sum(-1)


def budgets(
    selector: Selector, layout: Layout, judged: dict[int, tuple[Judgement, int]], keeps: Sequence[Keep]
) -> Tensor:
    """Number of cells to keep of each image, `[I]`: the sample's budget, shared by relevance; then that of each clip.

    `judged` holds the judgement of each image, and its row there.
    """
    judgements = [judged[image] for image in range(len(layout.grids))]
    mass_I = torch.stack([judgement.mass_B[row] for judgement, row in judgements])
    automatic_I = None
    if "auto" in keeps:
        different = {id(judgement): judgement for judgement, _ in judgements}
        wanted = {name: selector.automatic_budget(judgement) for name, judgement in different.items()}
        automatic_I = torch.stack([wanted[id(judgement)][row] for judgement, row in judgements])
    shown = [range(image, image + 1) for image in range(layout.images)] + layout.clips

    def summed(values_I: Tensor) -> Tensor:
        return torch.stack([values_I[one.start : one.stop].sum() for one in shown])

    owners = [layout.sample_of[one.start] for one in shown]
    cells = [sum(layout.cells[one.start : one.stop]) for one in shown]
    automatic = None if automatic_I is None else summed(automatic_I)
    shared = selector.allocator.shared_budgets(keeps, owners, cells, summed(mass_I), automatic)
    found = list(shared[: layout.images].unsqueeze(-1).unbind())
    for clip, k in zip(layout.clips, shared[layout.images :], strict=True):
        maps = [judgement.balance.relevance_BHW[row] for judgement, row in judgements[clip.start : clip.stop]]
        found.append(moments(torch.stack(maps).detach(), mass_I[clip.start : clip.stop], k))
    return torch.cat(found)
