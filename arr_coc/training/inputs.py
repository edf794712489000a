"""Rows of a group as model inputs, each with its answer at the end.

R questions, L tokens of the longest row.
"""

from typing import Any

import torch
from PIL import Image
from torch import Tensor

from arr_coc.qwen.processor import Conversation, encode, text_ids
from arr_coc.training.data import Group
from arr_coc.training.losses import IGNORE


def answered_inputs(processor: Any, group: Group) -> tuple[dict[str, Any], Tensor]:
    """Model inputs of every row with its answer at the end, and labels on the answer alone, on the group's device.

    Rows are padded on the left, so the answers end together.
    """
    device = group.images_Bhw3.device
    pictures = [Image.fromarray(image) for image in group.images_Bhw3.cpu().numpy()]
    conversations = [
        Conversation([pictures[number]], example.question, ())
        for number, example in zip(group.image_R.tolist(), group.examples, strict=True)
    ]
    inputs = encode(processor, conversations)
    inputs.pop("mm_token_type_ids")
    tokenizer = processor.tokenizer
    answers = [[*text_ids(tokenizer, example.answer), tokenizer.eos_token_id] for example in group.examples]
    longest = max(len(answer) for answer in answers)
    pad_id = tokenizer.pad_token_id or 0
    rows = {"input_ids": [], "attention_mask": [], "question_mask": [], "labels": []}  # type: dict[str, list[Tensor]]
    for row, answer in enumerate(answers):
        fill, added = longest - len(answer), torch.tensor(answer)
        ids, seen = inputs["input_ids"][row], inputs["attention_mask"][row]
        rows["input_ids"].append(torch.cat([torch.full((fill,), pad_id), ids, added]))
        rows["attention_mask"].append(torch.cat([torch.zeros(fill, dtype=torch.long), seen, torch.ones_like(added)]))
        asked = inputs["question_mask"][row]
        rows["question_mask"].append(
            torch.cat([torch.zeros(fill, dtype=torch.bool), asked, torch.zeros_like(added, dtype=torch.bool)])
        )
        rows["labels"].append(torch.cat([torch.full((fill + len(ids),), IGNORE), added]))
    stacked = {name: torch.stack(values).to(device) for name, values in rows.items()}
    labels = stacked.pop("labels")
    moved = {name: inputs[name].to(device) for name in ("pixel_values", "image_grid_thw")}
    return moved | stacked, labels
