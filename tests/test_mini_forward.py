"""The batched forwards, of evaluation and of mini's training, equal the stock model, dense and sparse."""

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from arr_coc.qwen import batched
from arr_coc.qwen.graphs.forward import logits_of
from studies.answering import patchify, turn_mask
from studies.batched import forward as training
from studies.mini.model import mini_config, new_model
from studies.mini.train import ASSETS
from studies.turns import Turns

GRID = (3, 4)  # cells
QUESTIONS = ("What colour is the star?", "What does the red sign say?", "How many?")


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


@pytest.fixture(scope="module")
def model(tokenizer):
    model = new_model(mini_config(tokenizer.get_vocab(), hidden=128, layers=(4, 3)), seed=1).eval()
    with torch.no_grad():  # fresh norms and biases are ones and zeros, which would hide mistakes
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="module")
def images():
    shape = (2, GRID[0] * 32, GRID[1] * 32, 3)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def packed_logits(model, turns, images, cells, way):
    """Logits of all prompts' tokens, [B, questions, longest prompt, V], from one packed pass."""
    grid = training.grid_tables(model, *GRID, "cpu") if way is training else GRID
    seen = way.encode_vision(model, patchify(images, torch.float32), grid, cells)
    cache = way.run_prefix(model, seen, torch.tensor(turns.lead_ids), turns.end_id)
    prompts = [turns.prompt(question) for question in QUESTIONS]
    ids = torch.tensor([i for p in prompts for i in p]).expand(len(images), -1)
    numbers = torch.tensor([n for n, p in enumerate(prompts) for _ in p]).expand(len(images), -1)
    offsets = torch.tensor([o for p in prompts for o in range(len(p))]).expand(len(images), -1)
    mask = turn_mask(numbers, cache[0][0].shape[2])
    hidden = way.run_text(model, ids, way.text_start(seen.grid, len(turns.lead_ids)) + offsets, mask, cache)
    scores = training.logits(model, hidden, torch.float32) if way is training else logits_of(model, hidden)
    return scores.split([len(p) for p in prompts], dim=1)


def stock_logits(model, turns, image, question, cells):
    """The same from the unmodified model, for one image and one question alone."""
    height, width = GRID
    kept = list(range(height * width)) if cells is None else cells
    rows = patchify(image[None], torch.float32)[0].view(-1, 3, 1, 256).expand(-1, -1, 2, -1).reshape(-1, 4, 1536)
    grid = torch.tensor([[1, 2 * height, 2 * width]])
    patches = torch.tensor([4 * cell + i for cell in kept for i in range(4)])
    taps, weights = get_vision_interpolation_indices_and_weights(
        grid, 32, mode="bilinear", align_corners=True, spatial_merge_size=2
    )
    seen = model.model.visual(
        rows[kept].reshape(-1, 1536),
        grid_thw=grid,
        interp_indices=taps[patches],
        interp_weights=weights[patches],
        position_ids=get_vision_position_ids(grid, 2)[patches],
        cu_seqlens=torch.tensor([0, len(patches)], dtype=torch.int32),
        return_dict=True,
    )
    pad = model.config.image_token_id
    full = [*turns.lead_ids, *[pad] * (height * width), turns.end_id, *turns.prompt(question)]
    ids = torch.tensor([full])
    positions, _ = model.model.get_rope_index(ids, (ids == pad).int(), image_grid_thw=grid)
    lead = len(turns.lead_ids)
    stay = [*range(lead), *[lead + cell for cell in kept], *range(lead + height * width, len(full))]
    compact = torch.arange(len(stay)).view(1, 1, -1)
    features = BaseModelOutputWithDeepstackFeatures(
        pooler_output=(seen.pooler_output,),
        deepstack_features=[(level,) for level in seen.deepstack_features],
    )
    out = model(
        input_ids=ids[:, stay],
        position_ids=torch.cat([compact, positions[:, :, stay]]),
        mm_encoder_outputs={"image": features},
        mm_token_type_ids=(ids[:, stay] == pad).int(),
    )
    return out.logits[0, lead + len(kept) + 1 :]


@pytest.mark.parametrize("way", [batched, training], ids=["evaluation", "training"])
@pytest.mark.parametrize("cells", [None, [[0, 5, 6, 11], [1, 2, 3, 8]]], ids=["dense", "sparse"])
def test_packed_questions_equal_the_stock_model(model, tokenizer, images, cells, way):
    turns = Turns(tokenizer)
    with torch.no_grad():
        packed = packed_logits(model, turns, images, None if cells is None else torch.tensor(cells), way)
        for number, question in enumerate(QUESTIONS):
            for row in range(len(images)):
                wanted = stock_logits(model, turns, images[row], question, cells and cells[row])
                difference = (packed[number][row] - wanted).abs().max() / wanted.abs().max()
                assert difference < 1e-5


def test_patchify_refuses_odd_sizes():
    with pytest.raises(ValueError, match="multiple of 32"):
        patchify(torch.zeros(1, 40, 64, 3, dtype=torch.uint8), torch.float32)


def test_chat_template_gives_the_same_tokens(tokenizer):
    turns = Turns(tokenizer)
    content = [{"type": "image"}, {"type": "text", "text": QUESTIONS[0]}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text)["input_ids"]
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert tuple(ids) == (*turns.lead_ids, image, turns.end_id, *turns.prompt(QUESTIONS[0]))
