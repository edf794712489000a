"""A batch of the field: images of one size, and all questions about them, as every method is shown them.

B images, R questions (rows), N cells of an image, P patches, X values of a patch, L full length.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.evaluation.field.data import Picture, Query, ids_of
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, encode_one, left_padded
from arr_coc.qwen.request import Hints, Request, cells_of, evidence_mask


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors are on the model's device."""

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


def make_batch(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> Batch:
    """Read the images and encode the questions, once for all methods."""
    processor, device = owner.processor, owner.device
    asked = ids_of(pictures)
    place = {picture.number: number for number, picture in enumerate(pictures)}
    image_R = torch.tensor([place[picture.number] for _, picture, _ in asked], device=device)
    seen = processor.image_processor(images=[Image.fromarray(p.read()) for p in pictures], return_tensors="pt")
    grids = cells_of(seen["image_grid_thw"], processor.image_processor.merge_size)
    assert len(set(grids)) == 1, "images of a batch have one grid"
    cells = grids[0][0] * grids[0][1]
    encoded = [
        encode_one(processor, Conversation([None], query.text), iter([cells]), True)  # type: ignore[list-item]
        for _, _, query in asked
    ]
    image_id = owner.model.config.image_token_id
    inputs = left_padded(encoded, processor.tokenizer.pad_token_id or 0)
    pixel_values, thw = seen["pixel_values"].to(device), seen["image_grid_thw"].to(device)
    boxes = [query.boxes or () for _, _, query in asked]
    request = Request.of(
        owner.model.config,
        device,
        inputs["input_ids"],
        pixel_values,
        thw.cpu()[image_R.cpu()],
        inputs["attention_mask"],
        1.0,
        None,
        Hints(boxes, [picture.number for _, picture, _ in asked]),
        question_mask=inputs["question_mask"],
    )
    return Batch(
        [name for name, _, _ in asked],
        [picture for _, picture, _ in asked],
        [query for _, _, query in asked],
        image_R,
        pixel_values,
        thw,
        grids[0],
        request,
        [tuple(index for index in ids if index != image_id) for ids, _ in encoded],
        encoded[0][0].index(image_id),
        [set(evidence_mask(several, grids[0]).flatten().nonzero().flatten().tolist()) for several in boxes],
    )


def prompt_digest(ids: Sequence[int], tokenizer: Any) -> str:
    """16 digits that any other byte of the prompt would change; `ids` are those the model is given, images left out."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return hashlib.sha256(f"{text}\0{list(ids)}".encode()).hexdigest()[:16]
