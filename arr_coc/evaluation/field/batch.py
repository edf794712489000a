"""A batch of the field: images of one size, all questions about them, and what is found out of them once for all.

B images, R questions (rows), N cells of an image, P patches, X values of a patch or width of the ViT, L full length.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.evaluation.field.data import Picture, Query, ids_of
from arr_coc.qwen import vision
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, encode_one, left_padded
from arr_coc.qwen.request import Hints, Request, cells_of, evidence_mask
from arr_coc.records import Judgement, QuestionTokens
from arr_coc.selectors import Selector
from arr_coc.timing import Stopwatch

SHARED = ("glance", "texture", "sight", "insides", "first look")  # parts of judging that are done once per image


@dataclass(slots=True)
class Batch:
    """As every method is shown it. Tensors are on the model's device."""

    owner: ARRCOCQwen
    ids: list[str]  # of the questions
    pictures: list[Picture]  # of each row
    queries: list[Query]
    image_R: Tensor  # the image of each row
    pixel_values: Tensor  # [B * P, X], every image once
    image_grid_thw: Tensor  # [B, 3]
    grid: tuple[int, int]  # cells
    request: Request  # rows, left-padded; its pixels are those of `pixel_values`, every image once
    prompts: list[tuple[int, ...]]  # token ids of each row, image tokens left out
    lead: int  # tokens before the image
    evidence_R: list[set[int]]  # cells that hold the answer
    known: dict[str, tuple[Any, float]] = field(default_factory=dict)  # what was found out so far, and its ms
    features_bytes: int = 0  # peak of the GPU's memory while the whole ViT ran

    @property
    def images(self) -> int:
        return int(self.image_grid_thw.shape[0])

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def cells(self) -> int:
        return self.grid[0] * self.grid[1]

    def told(self, evidence: bool) -> dict[str, Tensor]:
        """What a selector is told of each row: the number of its image and, with `evidence`, where the answer is."""
        device = self.image_R.device
        told = {"number_B": torch.tensor([picture.number for picture in self.pictures], device=device)}
        if evidence:
            mask_RN = torch.zeros(self.rows, self.cells, dtype=torch.bool)
            for row, cells in enumerate(self.evidence_R):
                mask_RN[row, sorted(cells)] = True
            told["evidence_BHW"] = mask_RN.view(-1, *self.grid).to(device)
        return told

    def rows_pixels(self) -> Tensor:
        """The patches of each row's image, `[R * P, X]`."""
        return self.pixel_values.unflatten(0, (self.images, -1))[self.image_R].flatten(0, 1)

    # ---------------------------------------------------------------- found out once for all methods, with its ms

    def _once(self, name: str, count: int, make: Callable[[], Any]) -> tuple[Any, float]:
        """What was made when it was first asked for, and its ms by each of so many."""
        if name not in self.known:
            stopwatch = Stopwatch(self.owner.device)
            with stopwatch.part(name), torch.no_grad():
                made = make()
            self.known[name] = made, stopwatch.milliseconds()[name] / count
        return self.known[name]

    def question(self) -> tuple[QuestionTokens, float]:
        """The questions of all rows, and ms of each."""
        return self._once("question", self.rows, lambda: self.owner.looker().question_of(self.request))

    def pixels(self) -> tuple[Tensor, float]:
        """The pixels of every image `[B, 3, h, w]` in [0, 1], rebuilt from their patches, and ms of each."""

        def rebuild() -> Tensor:
            rows = self.pixel_values.split(self.image_grid_thw.prod(-1).tolist())
            return torch.stack([vision.unpatchify(row, self.grid, self.owner.geometry) for row in rows])

        return self._once("pixels", self.images, rebuild)

    def features(self) -> tuple[Any, float]:
        """The stock ViT's output over every image, for all dense methods, and ms of each."""
        encode = (self.owner.model, self.pixel_values, self.image_grid_thw, True)
        found = self._once("features", self.images, lambda: vision.encode_dense(*encode))
        if self.owner.device.type == "cuda" and not self.features_bytes:
            self.features_bytes = torch.cuda.max_memory_allocated(self.owner.device)
        return found

    def judged(self, spec: str, selector: Selector) -> tuple[Judgement, float]:
        """The judgement of a selector by the text that asks for it, for all budgets, and ms of each question."""
        if spec not in self.known:
            self.known[spec] = self.judge(selector)
        return self.known[spec]

    def judge(self, selector: Selector) -> tuple[Judgement, float]:
        """The judgement of all rows as the product makes it, and what it took per question in ms."""
        looker, stopwatch = replace(self.owner.looker(), selector=selector), Stopwatch(self.owner.device)
        question, before_ms = self.question()
        given: dict[str, Tensor] = self.told(selector.reads_evidence)
        if selector.reads_pixels:
            given["image_B3hw"], pixels_ms = self.pixels()
            before_ms += pixels_ms
        if selector.first_look is not None:
            with stopwatch.part("first look"):
                seen = looker.first_looker().look(self.request, list(self.pixels()[0]), self.image_R.tolist())
                given |= {name: torch.stack(several) for name, several in seen.view.items()}
                if "glance_BXHW" in given:  # one for each image, where maps are one for each row
                    first = [self.image_R.tolist().index(image) for image in range(self.images)]
                    given["glance_BXHW"] = given["glance_BXHW"][first]
        if selector.reads_tokens:
            features, _ = self.features()
            with stopwatch.part("insides"):
                inside = looker.insides(features, self.image_grid_thw)
            given |= {name: torch.stack(list(values)) for name, values in inside.items()}
            given["visual_BND"] = torch.stack(list(features.pooler_output))
        judgement = looker.judge(self.grid, question, stopwatch, image_R=self.image_R, **given)
        times, count = stopwatch.milliseconds(), dict.fromkeys(SHARED, self.images)
        return judgement, before_ms + sum(ms / count.get(part, self.rows) for part, ms in times.items())


def make_batch(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> Batch:
    """Read the images and encode the questions, once for all methods."""
    processor, device = owner.processor, owner.device
    ids, asked_of, queries = (list(column) for column in zip(*ids_of(pictures), strict=True))
    place = {picture.number: number for number, picture in enumerate(pictures)}
    image_R = torch.tensor([place[picture.number] for picture in asked_of], device=device)
    seen = processor.image_processor(images=[Image.fromarray(p.read()) for p in pictures], return_tensors="pt")
    grids = cells_of(seen["image_grid_thw"], processor.image_processor.merge_size)
    assert len(set(grids)) == 1, "images of a batch have one grid"
    cells = grids[0][0] * grids[0][1]
    encoded = [
        encode_one(processor, Conversation([None], query.text), (iter([cells]), iter(())))  # type: ignore[list-item]
        for query in queries
    ]
    image_id = owner.model.config.image_token_id
    inputs = left_padded(encoded, processor.tokenizer.pad_token_id or 0)
    pixel_values, thw = seen["pixel_values"].to(device), seen["image_grid_thw"].to(device)
    boxes = [query.boxes or () for query in queries]
    hints = Hints(boxes, [picture.number for picture in asked_of])
    shown = (inputs["input_ids"], pixel_values, thw.cpu()[image_R.cpu()], inputs["attention_mask"])
    return Batch(
        *(owner, ids, asked_of, queries, image_R, pixel_values, thw, grids[0]),
        request=Request.of(owner.model.config, device, *shown, 1.0, None, hints, question_mask=inputs["question_mask"]),
        prompts=[tuple(index for index in row if index != image_id) for row, _ in encoded],
        lead=encoded[0][0].index(image_id),
        evidence_R=[set(evidence_mask(of, grids[0]).flatten().nonzero().flatten().tolist()) for of in boxes],
    )


def prompt_digest(ids: Sequence[int], tokenizer: Any) -> str:
    """16 digits that any other byte of the prompt would change; `ids` are those the model is given, images left out."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return hashlib.sha256(f"{text}\0{list(ids)}".encode()).hexdigest()[:16]
