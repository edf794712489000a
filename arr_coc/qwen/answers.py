"""What comes back: the answer, how sure it is, what was kept of each image and why, and how long it took."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import TENSIONS
from arr_coc.records import HALF_EVEN, RELEVANCE, STRATEGIES, Judgement

PLAIN_TEXT: dict[str, Any] = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}  # how ids are spelled
WAYS = {
    "information": "how much is there",
    "perspectival": "what stands out",
    "participatory": "what the question wants",
}
"""The ways of knowing in words."""
LEAST_VOICE = 1e-3  # values of a map nearer to 0 or 1 count as this: a logarithm needs a floor
ALONE, MOSTLY = 0.85, 0.55  # share of all that was said: above, one way decided, or led


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """The choice made in one image, or one pair of frames. Maps are `[H, W]` over the cells of the resized image."""

    grid: tuple[int, int]
    kept: Tensor  # [K] flat indices, increasing
    relevance: Tensor | None  # [H, W]; None where nothing had to be chosen
    maps: dict[str, Tensor]
    weights: dict[str, float]  # of the three ways of knowing: exponents of a product
    tensions: dict[str, float]
    strategy: str
    reason: str
    periphery: tuple[int, int] | None = None  # cells of the small copy that the language model saw as well
    is_fallback: bool = False  # whether all was kept because choosing went wrong
    covered: Tensor | None = None  # [K] bool beside `kept`: kept for even coverage, not for relevance; None: none was
    mass: Tensor | None = None  # what all of its relevance is worth among the images of a prompt
    clip: int | None = None  # the clip that this pair of frames is of; None: it is an image
    seconds: float | None = None  # when it is, from the clip's start, where that is known
    cut: bool = False  # whether another scene begins with it

    @property
    def tokens_total(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def cells_kept(self) -> int:
        return int(self.kept.shape[0])

    @property
    def tokens_kept(self) -> int:
        """Visual tokens of this image that the language model saw: kept cells, and those of the small copy."""
        return self.cells_kept + (self.periphery[0] * self.periphery[1] if self.periphery else 0)

    @property
    def cells_covered(self) -> int:
        """Kept cells that are there for even coverage of the image."""
        return 0 if self.covered is None else int(self.covered.sum())

    @property
    def why(self) -> str:
        """The reason with its figures: how many cells were kept for relevance, and how many for coverage."""
        small = self.periphery
        copy = f"; beside them a small copy of the whole image, {small[0]} x {small[1]} tokens" if small else ""
        return self._why_cells() + copy

    def _why_cells(self) -> str:
        covered, relevant = self.cells_covered, self.cells_kept - self.cells_covered
        if not self.cells_kept:
            return "nothing of it was kept: other moments of the clip matter more"
        if self.strategy == STRATEGIES[HALF_EVEN][0]:
            alone = f"{covered} of {self.cells_kept} cells are there for coverage alone"
            return f"{self.reason}; {alone if covered else 'relevance would have kept the same cells'}"
        if self.strategy != STRATEGIES[RELEVANCE][0]:
            return self.reason
        if not covered:
            return f"the {relevant} most relevant cells" if relevant > 1 else "the most relevant cell"
        found = f"{relevant} cells are" if relevant > 1 else f"{relevant or 'no'} cell is"
        return f"{found} relevant; the other {covered} of the budget are spread over the rest, for coverage"

    @property
    def voices(self) -> dict[str, Tensor]:
        """How far each way of knowing spoke for each cell against the mean of the image, `[H, W]`: logarithms of odds.

        The trained layer's add up to those of relevance, but for a constant. Empty where there are no such ways.
        """
        if set(self.maps) != set(WAYS):
            return {}
        odds = {name: map_HW.float().logit(LEAST_VOICE) for name, map_HW in self.maps.items()}
        return {name: self.weights[name] * (odds_HW - odds_HW.mean()) for name, odds_HW in odds.items()}

    @property
    def spoke(self) -> list[str]:
        """Which way of knowing spoke most for each cell, `[N]` names; empty where relevance is no product of them."""
        voices = self.voices
        if not voices:
            return []
        names, maps_SHW = list(voices), torch.stack(list(voices.values()))
        return [names[place] for place in maps_SHW.flatten(1).argmax(0).tolist()]

    @property
    def balance(self) -> str:
        """The exponents in words, by what they made of this image: "mostly what stands out, then how much is there"."""
        heard = {name: float(voice_HW.square().mean().sqrt()) for name, voice_HW in self.voices.items()}
        total = sum(heard.values())
        if not total > 0:
            return ""
        first, second, _ = sorted(heard, key=lambda name: -heard[name])
        if heard[first] > ALONE * total:
            return f"almost only {WAYS[first]}"
        if heard[first] > MOSTLY * total:
            return f"mostly {WAYS[first]}, then {WAYS[second]}"
        return f"{WAYS[first]} and {WAYS[second]} alike"

    @property
    def mask(self) -> Tensor:
        """Which cells were kept: bool `[H, W]`."""
        return self._marked(self.kept)

    @property
    def covered_mask(self) -> Tensor:
        """Which cells were kept for even coverage: bool `[H, W]`."""
        return self._marked(self.kept_for_coverage)

    @property
    def kept_for_coverage(self) -> Tensor:
        """Flat indices of the kept cells that are there for even coverage, increasing."""
        return self.kept[:0] if self.covered is None else self.kept[self.covered]

    def _marked(self, cells: Tensor) -> Tensor:
        mask = torch.zeros(self.tokens_total, dtype=torch.bool, device=cells.device)
        mask[cells] = True
        return mask.view(self.grid)

    @property
    def positions(self) -> Tensor:
        """(y, x) of each kept cell: `[K, 2]`."""
        return torch.stack([self.kept // self.grid[1], self.kept % self.grid[1]], dim=-1)


@dataclass(frozen=True, slots=True)
class LookTaken:
    """One look at the images: what it cost, and how sure the answer was after it."""

    tokens_kept: int
    confidence: float | None
    ms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's answer to one question. Where it looked again, all but `looks` is of the last look."""

    text: str
    selection: list[ImageSelection]  # one per image, then one per pair of frames of each clip
    tokens_total: int  # visual tokens of the untouched model
    tokens_kept: int  # visual tokens that the language model saw
    timings_ms: dict[str, float]  # "prefill" is a part of "generate"
    confidence: float | None = None  # probability of its least likely token; None: not known, as with beams
    looks: tuple[LookTaken, ...] = ()  # in order
    notices: tuple[str, ...] = ()  # what to know about it, each once: what went wrong, what the model cannot know

    @classmethod
    def of(
        cls, text: str, images: list[ImageSelection], timings_ms: dict[str, float], confidence: float | None
    ) -> "Answer":
        total, kept = sum(image.tokens_total for image in images), sum(image.tokens_kept for image in images)
        look = LookTaken(kept, confidence, total_ms(timings_ms))
        notices = tuple(dict.fromkeys(image.reason for image in images if image.is_fallback))
        return cls(text, images, total, kept, timings_ms, confidence, (look,), notices)


def total_ms(timings_ms: dict[str, float]) -> float:
    """Of all parts together."""
    return sum(ms for part, ms in timings_ms.items() if part != "prefill")


def answers_of(
    tokenizer: Any,
    new_BT: Tensor,
    images: list[list[ImageSelection]],
    timings_ms: dict[str, float],
    confidence: float | None,
) -> list[Answer]:
    """The answer of each row from its new tokens; of several sequences of one prompt, the first."""
    several = new_BT.shape[0] // len(images)  # they are next to each other
    rows = zip(new_BT[::several], images, strict=True)
    return [Answer.of(tokenizer.decode(new_T, **PLAIN_TEXT), row, timings_ms, confidence) for new_T, row in rows]


def thoughts(judgement: Judgement) -> list[dict[str, Any]]:
    """What was thought of each image, as an `ImageSelection` has it; reads from the device.

    Maps are parts of a copy that all images of the judgement share.
    """
    balance, names = judgement.balance, list(judgement.maps)
    relevance_BHW, mass_B = balance.relevance_BHW.detach().clone(), judgement.mass_B.detach().clone()
    maps = [map_BHW.detach().clone() for map_BHW in judgement.maps.values()]
    weighed = zip(balance.weights_BS.tolist(), balance.tensions_BT.tolist(), strict=True)
    return [
        {
            "relevance": relevance_BHW[row],
            "maps": {name: map_BHW[row] for name, map_BHW in zip(names, maps, strict=True)},
            "weights": dict(zip(names, weights, strict=True)),
            "tensions": dict(zip(TENSIONS, tensions, strict=True)),
            "mass": mass_B[row],
        }
        for row, (weights, tensions) in enumerate(weighed)
    ]
