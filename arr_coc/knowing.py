"""Textures, glance and question -> three score maps, one per way of knowing. None is given what another one has.

B batch, C channels, H W grid of cells, M attention maps, L question tokens, D language-model width, E = 96 the shared
space.

    information    how much is there         what lies inside each full-size cell; question-blind
    perspectival   what stands out           cells against their surround, and where people look; question-blind
    participatory  what the question wants   the question, and a small copy of the image (`arr_coc/sight.py`)

Every scorer is called as `scorer(pyramid, question)` and gives `[B, H, W]` in [0, 1].
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arr_coc.config import DETAIL, FINE, POOLINGS, SCORERS, blind_names, channel_names
from arr_coc.records import QuestionTokens, TexturePyramid, constant_table

SHARED = 96  # E
HEADS = 4
ROUNDS = 2  # of deliberation between cells and question
HEARD = 1024  # most places that a cell listens to: of more cells, means are heard, and cost grows as their number
SURROUND = 5  # cells a side that a cell is held against
WAVES = 8  # wavelengths that say where a cell is, per axis and phase
GREY_LEVEL = 1 / 255
# A standard deviation of 1/2 is the most that values in [0, 1] can have.
MOST_BITS = 0.5 * math.log2(1 + (0.5 / GREY_LEVEL) ** 2)
LEAST_LOOK = 1e-2  # attention under this share of an even one is as good as none: a logarithm needs a floor


class QuestionPooler(nn.Module):
    """`[B, L, D]` -> `[B, D]` by name. "lm" expects tokens that the language model has already read: its last one."""

    def __init__(self, hidden_dim: int, pooling: str = "mean") -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r}: expected one of {', '.join(POOLINGS)}")
        self.pooling = pooling
        self.query = nn.Parameter(torch.randn(hidden_dim) * 0.02) if pooling == "learned" else None

    def forward(self, question: QuestionTokens) -> Tensor:
        mask_BL, tokens_BLD = question.mask_BL, question.tokens_BLD
        if self.query is not None:
            logits_BL = (tokens_BLD @ self.query).masked_fill(~mask_BL, -1e4)
            weights_BL = logits_BL.softmax(-1) * mask_BL
        elif self.pooling in ("last", "lm"):
            place_L = torch.arange(1, mask_BL.shape[1] + 1, device=mask_BL.device)
            weights_BL = F.one_hot((mask_BL * place_L).argmax(-1), mask_BL.shape[1]) * mask_BL
        else:
            weights_BL = mask_BL / mask_BL.sum(-1, keepdim=True).clamp(min=1)
        return (weights_BL.unsqueeze(-1).to(tokens_BLD.dtype) * tokens_BLD).sum(1)


def inside_bits(pyramid: TexturePyramid, names: tuple[str, ...]) -> Tensor:
    """Entropy of the values inside each cell, per channel: `[B, C, H, W]` in [0, 1].

    The softmax entropy over a cell's channels would be highest for a flat patch. Measured instead are the values
    *inside* the cell, as a Gaussian of their variance above one grey level of noise: 1/2 log2(1 + variance / noise).
    """
    pyramid = pyramid.only(names)
    fine = pyramid.fine_BChw
    variance = (F.avg_pool2d(fine**2, FINE) - F.avg_pool2d(fine, FINE) ** 2).clamp(min=0)
    place = next(names.index(name) for name in DETAIL if name in names)
    # This channel is itself (twice) a standard deviation, of all pixels: it sees detail finer than the samples.
    own = (pyramid.cell_BCHW[:, place] / 2) ** 2
    variance = torch.cat([variance[:, :place], own.unsqueeze(1), variance[:, place + 1 :]], dim=1)
    return 0.5 * torch.log2(1 + variance / GREY_LEVEL**2) / MOST_BITS


class InformationScorer(nn.Module):
    """How much is there: the entropies inside a cell, weighted, and what they say together and beside their mean.

    It never looks beyond the cell, but for the image's mean: what stands out is for another to say. Untrained, it is
    nearly the mean of the entropies.
    """

    def __init__(self, channels: int = 13) -> None:
        super().__init__()
        self.names = blind_names(channels)
        count = len(self.names)
        self.channel_logits = nn.Parameter(torch.zeros(count))
        self.read = nn.Conv2d(2 * count, 16, 1)
        self.tell = nn.Conv2d(16, 1, 1)
        with torch.no_grad():  # at first a whisper
            self.tell.weight.mul_(0.05)
            self.tell.bias.zero_()  # type: ignore[union-attr]

    def forward(self, pyramid: TexturePyramid, question: QuestionTokens | None = None) -> Tensor:
        bits_BCHW = inside_bits(pyramid, self.names)
        held_BHW = torch.einsum("bchw,c->bhw", bits_BCHW, self.channel_logits.float().softmax(0))
        beside = bits_BCHW - bits_BCHW.mean((2, 3), keepdim=True)
        told_BHW = self.tell(F.gelu(self.read(torch.cat([bits_BCHW, beside], dim=1)))).squeeze(1)
        return (held_BHW.logit(1e-4) + told_BHW).sigmoid()


SALIENCY = {"spectral_residual": 4.0, "colour_contrast": 4.0, "local_contrast": 4.0, "saliency": 8.0}
"""How much each saliency channel that a set has decides in an untrained scorer."""
CONTRASTS = ("spectral_residual", "colour_contrast", "local_contrast")
LOOKED_AT = ("saliency", "text_likelihood")
BLANK = 0.03  # detail under which a sample is blank: four grey levels either way, as paper has in a photograph of it
APART = 1 / 32  # what lies in blank ground counts as the mean share of gaze, and
READ = 1 / 4  # letters there as eight times that: more, and photographs lose; less, and titles do
LOWER = 0.5  # by how much less at the bottom of an image than at its top: pages are read from there


def with_gaze(channels: int) -> tuple[str, ...]:
    """The channels of a set, and those that `stands_out` reads besides."""
    return tuple(dict.fromkeys((*channel_names(channels), *CONTRASTS, *LOOKED_AT)))


def saliency(pyramid: TexturePyramid, names: Iterable[str] = SALIENCY) -> Tensor:
    """What stands out by itself: the mean of those of these channels that are there, `[B, H, W]` in [0, 1]."""
    found = [pyramid.cell_BCHW[:, pyramid.names.index(name)] for name in names if name in pyramid.names]
    return torch.stack(found, dim=1).mean(1)


def stands_out(pyramid: TexturePyramid) -> Tensor:
    """What stands out to people, with nothing trained on the model: `[B, H, W]` in [0, 1].

    Where people would look at a photograph, or read, times the mean contrast with what lies around. Gaze was learned
    from photographs alone: without contrast it misses the titles of pages, without letters small print. Letters count
    as far as there is blank ground beside them: titles and headings stand apart, grass and gravel look like print.
    """
    gaze_BHW, letters_BHW = (pyramid.cell_BCHW[:, pyramid.names.index(name)] for name in LOOKED_AT)
    height = gaze_BHW.shape[1]
    row_H1 = (torch.arange(height, device=gaze_BHW.device).unsqueeze(1) + 0.5) / height
    set_apart_BHW = (APART + READ * letters_BHW) * beside_blank(pyramid) * (1 - LOWER * row_H1)
    return saliency(pyramid, CONTRASTS) * (gaze_BHW + set_apart_BHW).clamp(max=1)


def beside_blank(pyramid: TexturePyramid) -> Tensor:
    """The share of blank samples in a cell and the eight around it, `[B, H, W]`."""
    place = next(pyramid.names.index(name) for name in DETAIL if name in pyramid.names)
    blank_BHW = F.avg_pool2d((pyramid.fine_BChw[:, place] < BLANK).float(), FINE)
    return F.avg_pool2d(blank_BHW, 3, stride=1, padding=1, count_include_pad=False)


class PerspectivalScorer(nn.Module):
    """What stands out: cells against their surround by a small CNN (C-32-16-1), beside a direct reading of saliency.

    It reads means over cells and their quarters. What lies inside them is for the information scorer alone.
    """

    def __init__(self, channels: int = 13) -> None:
        super().__init__()
        self.names = blind_names(channels)
        channels = len(self.names)
        self.from_middle = nn.Conv2d(channels, 32, 3, stride=2, padding=1)
        self.from_cell = nn.Conv2d(channels, 32, 1)
        self.against = nn.Conv2d(64, 16, 3, padding=1)
        self.to_score = nn.Conv2d(16, 1, 3, padding=1, bias=False)
        self.saliency = nn.Conv2d(channels, 1, 1, bias=False)
        self.bias = nn.Parameter(torch.tensor(-2.0))
        with torch.no_grad():
            # Untrained, the saliency channels decide; the CNN starts as a whisper beside them.
            self.to_score.weight.mul_(0.05)
            self.saliency.weight.zero_()
            for name in set(SALIENCY) & set(self.names):
                self.saliency.weight[0, self.names.index(name)] = SALIENCY[name]

    def forward(self, pyramid: TexturePyramid, question: QuestionTokens | None = None) -> Tensor:
        pyramid = pyramid.only(self.names)
        cell = F.gelu(self.from_middle(pyramid.middle_BChw) + self.from_cell(pyramid.cell_BCHW))
        surround = F.avg_pool2d(cell, SURROUND, stride=1, padding=SURROUND // 2, count_include_pad=False)
        seen = F.gelu(self.against(torch.cat([cell, cell - surround], dim=1)))
        return (self.to_score(seen) + self.saliency(pyramid.cell_BCHW) + self.bias).squeeze(1).sigmoid()


class ParticipatoryScorer(nn.Module):
    """What the question wants: each cell against each question token; max, mean and sum over tokens, weighted.

    Of the image it is shown what a small copy gives: `pyramid.seen_BGHW`, and where the language model itself looked at
    it for this question, per layer and head (`question.looked_BMHW`). Cells and tokens meet in a shared space of 96.
    Before they are matched, cells hear the question and each other (`Deliberation`), since what answers may stand
    beside what was named. Without a question the map is 1/2 everywhere, which speaks for nothing.
    """

    def __init__(self, hidden_dim: int, seen: int, look_dim: int = 0) -> None:
        """`seen` is the number of channels of sight, `look_dim` that of attention maps, 0 where none are read."""
        super().__init__()
        self.cells = nn.Sequential(nn.Conv2d(seen, 2 * SHARED, 1), nn.GELU(), nn.Conv2d(2 * SHARED, SHARED, 1))
        self.looked = nn.Conv2d(look_dim + 1, SHARED, 1) if look_dim else None
        self.trusts_look = nn.Parameter(torch.tensor(1.0)) if look_dim else None
        if self.looked is not None:  # at first a look is heard as it is, summed up
            nn.init.zeros_(self.looked.weight)
            nn.init.zeros_(self.looked.bias)  # type: ignore[arg-type]
        self.question = nn.Sequential(nn.RMSNorm(hidden_dim), nn.Linear(hidden_dim, SHARED))
        self.deliberate = nn.ModuleList(Deliberation() for _ in range(ROUNDS))
        self.norm = nn.RMSNorm(SHARED)
        self.wanted = nn.Linear(SHARED, 1)
        self.sharpness = nn.Parameter(torch.tensor(8.0))
        # Weights of max, mean and sum. The sum grows with the question's length, so it starts small.
        self.mix = nn.Parameter(torch.tensor([1.0, 0.5, 0.05]))

    def forward(self, pyramid: TexturePyramid, question: QuestionTokens) -> Tensor:
        height, width = pyramid.grid
        assert pyramid.seen_BGHW is not None, "a layer's sight comes before its scorers"
        cells_BEHW = self.cells(pyramid.seen_BGHW)
        looked_BHW = torch.zeros_like(cells_BEHW[:, 0])
        if self.looked is not None and self.trusts_look is not None and question.looked_BMHW is not None:
            told_BMHW, was_B11 = told_looks(question.looked_BMHW, self.looked.in_channels - 1)
            cells_BEHW = cells_BEHW + self.looked(told_BMHW) * was_B11.unsqueeze(-1)
            looked_BHW = self.trusts_look * told_BMHW[:, -1] * was_B11
        cells_BNE = cells_BEHW.flatten(2).transpose(1, 2)
        tokens_BLE = self.question(question.tokens_BLD)
        for one_round in self.deliberate:
            cells_BNE = one_round(cells_BNE, tokens_BLE, question.mask_BL, (height, width))
        cells_BNE = self.norm(cells_BNE)
        match_BNL = self.sharpness * F.normalize(cells_BNE, dim=-1) @ F.normalize(tokens_BLE, dim=-1).transpose(1, 2)
        mask_B1L = question.mask_BL.unsqueeze(1)
        total_BN = (match_BNL * mask_B1L).sum(-1)
        mean_BN = total_BN / mask_B1L.sum(-1).clamp(min=1)
        best_BN = match_BNL.masked_fill(~mask_B1L, -1e4).amax(-1)
        wanted_BN = torch.stack([best_BN, mean_BN, total_BN], dim=-1) @ self.mix + self.wanted(cells_BNE).squeeze(-1)
        wanted_BHW = (wanted_BN.view(-1, height, width) + looked_BHW).sigmoid()
        return torch.where(question.asked_B.view(-1, 1, 1), wanted_BHW, torch.full_like(wanted_BHW, 0.5))


def told_looks(looked_BMHW: Tensor, expected: int) -> tuple[Tensor, Tensor]:
    """Attention maps as logarithms above an even share, and behind them that of their mean: `[B, M + 1, H, W]`.

    Also which rows were looked at for at all, `[B, 1, 1]`: where every map is 0, nobody looked.
    """
    if looked_BMHW.shape[1] != expected:
        found = looked_BMHW.shape[1]
        raise ValueError(f"{found} attention maps, the adapter reads {expected}: load it with the model it is for")
    mean_B1HW = looked_BMHW.mean(1, keepdim=True)
    cells = looked_BMHW.shape[-2] * looked_BMHW.shape[-1]
    told_BMHW = (torch.cat([looked_BMHW, mean_B1HW], dim=1) * cells + LEAST_LOOK).log()
    return told_BMHW, (mean_B1HW.amax((2, 3)) > 0).unsqueeze(-1)


class Deliberation(nn.Module):
    """One round: cells hear the question, then their neighbours, then all others, then think for themselves.

    Above HEARD cells, areas of others are heard in place of single ones. Up to it nothing is pooled.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(SHARED) for _ in range(4))
        self.hear = Attention()
        self.near = nn.Conv2d(SHARED, SHARED, 5, padding=2, groups=SHARED)
        self.far = Attention()
        self.place = nn.Linear(4 * WAVES, SHARED, bias=False)
        self.think = nn.Sequential(nn.Linear(SHARED, 2 * SHARED), nn.GELU(), nn.Linear(2 * SHARED, SHARED))

    def forward(self, cells_BNE: Tensor, tokens_BLE: Tensor, mask_BL: Tensor, grid: tuple[int, int]) -> Tensor:
        hear, near, far, think = self.norms
        bias_B11L = torch.zeros_like(mask_BL, dtype=cells_BNE.dtype).masked_fill(~mask_BL, -1e4)[:, None, None]
        cells_BNE = cells_BNE + self.hear(hear(cells_BNE), tokens_BLE, tokens_BLE, bias_B11L)
        map_BEHW = near(cells_BNE).transpose(1, 2).unflatten(2, grid)
        cells_BNE = cells_BNE + self.near(map_BEHW).flatten(2).transpose(1, 2)
        here = far(cells_BNE)
        placed = here + self.place(place_waves(*grid, cells_BNE.device))
        cells_BNE = cells_BNE + self.far(placed, at_most(placed, grid, HEARD), at_most(here, grid, HEARD))
        return cells_BNE + self.think(think(cells_BNE))


def at_most(cells_BNE: Tensor, grid: tuple[int, int], most: int) -> Tensor:
    """The cells of a grid, or of more than so many the means over areas of nearly equal size."""
    height, width = grid
    if height * width <= most:
        return cells_BNE
    rows = min(most, max(1, math.isqrt(most * height // width)))
    map_BEHW = cells_BNE.transpose(1, 2).unflatten(2, grid)
    return F.adaptive_avg_pool2d(map_BEHW, (min(rows, height), min(most // rows, width))).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head attention from `[B, N, E]` to `[B, M, E]`."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(SHARED, SHARED, bias=False) for _ in range(4))

    def forward(self, query_BNE: Tensor, key_BME: Tensor, value_BME: Tensor, bias: Tensor | None = None) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project, x in ((self.query, query_BNE), (self.key, key_BME), (self.value, value_BME))
        )
        kind = listening_dtype(query.is_cuda, query.requires_grad, query.dtype)
        mask = None if bias is None else bias.to(kind)
        heard = F.scaled_dot_product_attention(query.to(kind), key.to(kind), value.to(kind), attn_mask=mask)
        out: Tensor = self.out(heard.to(query_BNE.dtype).transpose(1, 2).flatten(2))
        return out


def listening_dtype(on_gpu: bool, learns: bool, own: torch.dtype) -> torch.dtype:
    """Half precision on a GPU, where fp32 takes five times as long between thousands of cells.

    What goes in is normalised, so that half precision can hold it, and what is heard is added to a stream in fp32. Not
    while it learns: gradients of a mean over a quarter of a million cells vanish in half precision, or overflow.
    """
    return torch.float16 if on_gpu and not learns else own


@constant_table
def place_waves(height: int, width: int, device: torch.device) -> Tensor:
    """Where each cell is, `[N, 4 WAVES]`: waves of 2 to 64 cells along y and x; steps mean the same anywhere."""
    rates = 2 * torch.pi / 2 ** torch.linspace(1, 6, WAVES, device=device)
    y = torch.arange(height, device=device).view(-1, 1, 1) * rates
    x = torch.arange(width, device=device).view(1, -1, 1) * rates
    waves = [y.sin(), y.cos(), x.sin(), x.cos()]
    return torch.cat([wave.expand(height, width, WAVES) for wave in waves], dim=-1).view(height * width, -1)


class Knowing(nn.Module):
    """The three scorers together: pyramid and question -> `[B, 3, H, W]` in the order of SCORERS."""

    def __init__(self, hidden_dim: int, channels: int, seen: int, look_dim: int = 0) -> None:
        """`seen` is the number of channels of sight, `look_dim` that of attention maps."""
        super().__init__()
        self.information = InformationScorer(channels)
        self.perspectival = PerspectivalScorer(channels)
        self.participatory = ParticipatoryScorer(hidden_dim, seen, look_dim)

    def forward(self, pyramid: TexturePyramid, question: QuestionTokens) -> Tensor:
        return torch.stack([getattr(self, name)(pyramid, question) for name in SCORERS], dim=1)
