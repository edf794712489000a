"""What a selector keeps of scenes, and how much of the evidence is in it.

B images of one grid, R questions about them, H W grid of cells, N = H * W, L question tokens, X width of the ViT,
G channels of sight.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arr_coc.config import GLANCE, ARRCOCConfig, Keep, tokens_to_keep
from arr_coc.evaluation.field.data import SPREAD
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.batched import Frame, look_first
from arr_coc.qwen.looking import Looker
from arr_coc.qwen.vision import Geometry, glance
from arr_coc.records import Allocation, Judgement, QuestionTokens, TexturePyramid
from arr_coc.selectors import ARRCOCSelector, View
from arr_coc.texture import texture_pyramid
from arr_coc.timing import Stopwatch
from studies.answering import count_cells
from studies.asked import Asked
from studies.cells import CELL, boxes_cells
from studies.turns import Turns

CELLS_AT_ONCE = {"cuda": 262_144, "cpu": 8192}  # cells of all questions of a batch: bounds the memory


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was kept for one question."""

    image: int  # number of the scene: the cluster of the statistics
    question: int  # number of the question of that scene
    family: str
    difficulty: str
    total: int  # cells of the image
    cells: tuple[int, ...]  # kept ones, flat, increasing
    evidence: frozenset[int]  # cells that hold the answer
    weights: tuple[float, ...]  # of the scorers
    tensions: tuple[float, ...]

    @property
    def localised(self) -> bool:
        """Whether the answer is in one place, and that place is known."""
        return bool(self.evidence) and self.family not in SPREAD

    @property
    def recall(self) -> float:
        """Evidence kept, as a share of the most that so many cells could hold. Only where there is evidence."""
        return len(self.evidence & set(self.cells)) / min(len(self.cells), len(self.evidence))

    @property
    def iou(self) -> float:
        """Cells both kept and evidence over cells that are either."""
        both = len(self.evidence & set(self.cells))
        return both / (len(self.cells) + len(self.evidence) - both)

    @property
    def share(self) -> float:
        """Fraction KEPT of the image's cells."""
        return len(self.cells) / self.total


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Alteration:
    """What is changed between the parts of a layer, to see what a part is worth; by default nothing."""

    textures: Callable[[TexturePyramid], TexturePyramid] = _as_it_is
    seen: Callable[[Tensor | None], Tensor | None] = _as_it_is  # channels of sight `[B, G, H, W]`
    judgement: Callable[[Judgement], Judgement] = _as_it_is
    light: bool = False  # without the language model's look


NOTHING = Alteration()


class AlteredSelector(ARRCOCSelector):
    """The layer as a selector, with something changed between its parts."""

    def __init__(self, layer: ARRCOCLayer, alter: Alteration) -> None:
        super().__init__(layer, int(alter.light))
        self.alter = alter

    def see(
        self,
        image_B3hw: Tensor,
        grid: tuple[int, int],
        glance_BXHW: Tensor | None,
        stopwatch: Stopwatch,
        asked: bool = True,
    ) -> TexturePyramid:
        """Textures and sight."""
        pyramid = self.alter.textures(texture_pyramid(image_B3hw, grid, self.layer.texture_channels))
        return replace(pyramid, seen_BGHW=self.alter.seen(self.layer.sight(pyramid, glance_BXHW)))

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        return self.alter.judgement(super().judge(view, stopwatch))


class Glances:
    """Glances at images through a model's ViT, and looks for questions: each once, for all layers that want them."""

    def __init__(self, model: Any) -> None:
        self.model, self.geometry = model, Geometry.of(model.config.vision_config)  # mini's colours: 0.5 and 0.5
        self._kept: dict[int, tuple[np.ndarray, Tensor]] = {}  # with the image, so that its id stays taken
        self._looks: dict[Any, tuple[Any, tuple[Tensor, Tensor]]] = {}

    def of(self, images: Sequence[np.ndarray], image_B3hw: Tensor) -> Tensor:
        """`[B, X, H, W]` of images of one size, given also as pixels in [0, 1]."""
        grid = self.geometry.grid(*image_B3hw.shape[2:])
        new = [place for place, image in enumerate(images) if id(image) not in self._kept]
        if new:
            features = glance(self.model, image_B3hw[new], grid, self.geometry)
            self._kept |= {id(images[place]): (images[place], one) for place, one in zip(new, features, strict=True)}
        return torch.stack([self._kept[id(image)][1] for image in images])

    def look(
        self, turns: Turns, images: Sequence[np.ndarray], image_B3hw: Tensor, asked: Sequence[tuple[int, str]]
    ) -> tuple[Tensor, Tensor]:
        """Where the language model looks for (number of the image, question) pairs, and what the ViT saw there."""
        key = (*map(id, images), *asked)
        if key not in self._looks:
            frame = Frame(turns.lead_ids, (turns.end_id,), turns.prompt(""))
            ids, mask = padded([turns.question(text) for _, text in asked], image_B3hw.device)
            image_R = torch.tensor([number for number, _ in asked], device=image_B3hw.device)
            grid = self.geometry.grid(*image_B3hw.shape[2:])
            given = (self.model, frame, image_B3hw, grid, self.geometry, GLANCE, (ids, mask), image_R)
            self._looks[key] = images, look_first(*given)
        return self._looks[key][1]


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids of some questions, padded on the right, and the mask of real ones."""
    longest = max([1, *map(len, rows)])
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
    return ids, mask.bool()


class Chooser:
    """Chooses cells for the questions about scenes with a layer, in batches, by the product's own way of looking."""

    def __init__(self, model: Any, turns: Turns, layer: ARRCOCLayer, glances: Glances | None = None) -> None:
        self.device = model.get_input_embeddings().weight.device
        self.layer = layer.to(self.device).eval()
        self.turns = turns
        self.glances = glances or Glances(model)
        config = ARRCOCConfig(model.config.text_config.hidden_size, pooling=layer.pool.pooling)
        self.looker = Looker(model, ARRCOCSelector(layer), config, self.glances.geometry, strict=True)

    def question(self, texts: Sequence[str]) -> QuestionTokens:
        """The embedded tokens of some questions, padded."""
        return self.looker.question(*padded([self.turns.question(text) for text in texts], self.device))

    def shown(self, images: Sequence[np.ndarray]) -> tuple[tuple[int, int], Tensor]:
        """Grid and pixels in [0, 1] of images of one size (uint8 `[h, w, 3]`)."""
        image_B3hw = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2).float() / 255
        return self.glances.geometry.grid(*image_B3hw.shape[2:]), image_B3hw

    def see(self, images: Sequence[np.ndarray], alter: Alteration = NOTHING) -> TexturePyramid:
        """Textures and sight of images of one size, at a glance."""
        grid, image_B3hw = self.shown(images)
        glance_BXHW = None if self.layer.sight.glance is None else self.glances.of(images, image_B3hw)
        return AlteredSelector(self.layer, alter).see(image_B3hw, grid, glance_BXHW, Stopwatch())

    @torch.no_grad()
    def judge(
        self, images: Sequence[np.ndarray], asked: Sequence[tuple[int, str]], alter: Alteration = NOTHING
    ) -> Judgement:
        """The judgement of (number of the image, question) pairs; images have one size."""
        (grid, image_B3hw), selector = self.shown(images), AlteredSelector(self.layer, alter)
        image_R = torch.tensor([number for number, _ in asked], device=self.device)
        given: dict[str, Tensor] = {}
        if selector.first_look is not None:
            given["looked_BMN"], given["glance_BXHW"] = self.glances.look(self.turns, images, image_B3hw, asked)
        elif selector.reads_glance:
            given["glance_BXHW"] = self.glances.of(images, image_B3hw)
        question, stopwatch = self.question([text for _, text in asked]), Stopwatch(self.device)
        looker = replace(self.looker, selector=selector)
        return looker.judge(grid, question, stopwatch, image_B3hw=image_B3hw, image_R=image_R, **given)

    @torch.no_grad()
    def choose(self, judgement: Judgement, keep: Keep) -> Tensor:
        """Kept cells of each row, bool `[R, N]`."""
        balance, attending = judgement.balance, self.layer.attending
        relevance_RHW = balance.relevance_BHW
        k_R = attending.budgets(relevance_RHW, balance.tensions_BT[:, 0], [keep] * relevance_RHW.shape[0])
        allocation: Allocation = attending(relevance_RHW, balance.tensions_BT, k_R, judgement.rest_BHW)
        return allocation.keep_BHW.flatten(1)

    def over(
        self, asked: Sequence[Asked], keeps: Sequence[Keep], alter: Alteration = NOTHING
    ) -> dict[Keep, list[Chosen]]:
        """What is kept for every question of `asked`, in their order, under each dial."""
        found: dict[Keep, list[Chosen]] = {keep: [] for keep in keeps}
        for numbers in batches(asked, CELLS_AT_ONCE[self.device.type]):
            pairs = [(place, n, q) for place, n in enumerate(numbers) for q in range(len(asked[n].questions))]
            texts = [(place, asked[n].questions[q].text) for place, n, q in pairs]
            judgement = self.judge([asked[n].image for n in numbers], texts, alter)
            weights, tensions = judgement.balance.weights_BS.tolist(), judgement.balance.tensions_BT.tolist()
            facts = [
                (n, q, asked[n].questions[q].family, asked[n].scene.difficulty, count_cells(asked[n].image))
                for _, n, q in pairs
            ]
            evidence = [frozenset(evidence_cells(asked[n], q)) for _, n, q in pairs]
            for keep in keeps:
                masks = self.choose(judgement, keep).cpu().numpy()
                found[keep] += [
                    Chosen(*fact, tuple(np.flatnonzero(mask).tolist()), held, tuple(weight), tuple(tension))
                    for fact, mask, held, weight, tension in zip(facts, masks, evidence, weights, tensions, strict=True)
                ]
        return found


def evidence_cells(asked: Asked, question: int) -> set[int]:
    """The cells that hold the answer to one question of a scene."""
    grid = (asked.scene.height // CELL, asked.scene.width // CELL)
    return boxes_cells(asked.questions[question].evidence, *grid)


def batches(asked: Sequence[Asked], cells: int) -> Iterator[list[int]]:
    """Numbers of neighbouring scenes of one size, with at most so many cells over all their questions."""
    members: list[int] = []
    held = 0
    for number, one in enumerate(asked):
        more = count_cells(one.image) * len(one.questions)
        if members and (held + more > cells or one.image.shape != asked[members[0]].image.shape):
            yield members
            members, held = [], 0
        members.append(number)
        held += more
    if members:
        yield members


def at_random(chosen: Sequence[Chosen], keep: Keep, seed: int) -> list[Chosen]:
    """The same questions with as many cells as `keep` says, drawn evenly: the control."""
    rng = np.random.default_rng(seed)
    drawn = []
    for one in chosen:
        k = tokens_to_keep(keep, one.total)
        assert k is not None, "a random choice needs a budget"
        drawn.append(replace(one, cells=tuple(sorted(rng.choice(one.total, k, replace=False).tolist()))))
    return drawn
