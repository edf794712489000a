"""A tiny random Qwen3-VL or Qwen3.5 with its own byte tokenizer, so that everything runs in seconds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arr_coc.attending import TokenAllocator
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, PlainProcessor, encode
from arr_coc.records import Balance, Judgement
from arr_coc.selectors import Selector

SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
ADDED = ("<think>", "</think>", "<tool_call>")  # whole tokens too, but not special ones
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "us", "er", "user"]
    vocab = {token: index for index, token in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("u", "s"), ("e", "r"), ("us", "er")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|endoftext|>", eos_token="<|im_end|>", chat_template=TEMPLATE
    )


def token_id(name: str) -> int:
    return tokenizer().convert_tokens_to_ids(name)


PATCH = 16  # px; a test may set 14, and everything made after that has cells of 28 px


def processor() -> PlainProcessor:
    return processor_of(PATCH)


@lru_cache
def processor_of(patch: int) -> PlainProcessor:
    images = Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": (4 * patch) ** 2, "longest_edge": (32 * patch) ** 2},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )
    return PlainProcessor(image_processor=images, tokenizer=tokenizer())


def config(moe: bool = False) -> Qwen3VLConfig:
    text = {
        "vocab_size": len(tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
    }
    if moe:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    vision = {
        "depth": 4,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 64,
        "patch_size": PATCH,
        "deepstack_visual_indexes": [0, 1, 2],
    }
    return (Qwen3VLMoeConfig if moe else Qwen3VLConfig)(text_config=text, vision_config=vision, **_places())


def config35(moe: bool = False) -> Qwen3_5Config:
    """Five layers of which the second and the fourth attend, with heads that are turned in part; no DeepStack."""
    like = config(moe)
    text = {name: getattr(like.text_config, name) for name in ("vocab_size", "hidden_size", "num_attention_heads")}
    text |= {"num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 5, "intermediate_size": 48}
    text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    text |= {
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"],
    }
    turn = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    text["rope_parameters"] = turn | {"mrope_interleaved": True}
    if moe:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        text |= {"shared_expert_intermediate_size": 16}
    names = ("depth", "hidden_size", "intermediate_size", "num_heads", "out_hidden_size", "num_position_embeddings")
    vision = {name: getattr(like.vision_config, name) for name in (*names, "patch_size")}
    return (Qwen3_5MoeConfig if moe else Qwen3_5Config)(text_config=text, vision_config=vision, **_places())


def _places() -> dict[str, int]:
    return {
        "image_token_id": token_id("<|image_pad|>"),
        "video_token_id": token_id("<|video_pad|>"),
        "vision_start_token_id": token_id("<|vision_start|>"),
        "vision_end_token_id": token_id("<|vision_end|>"),
    }


def stock(attention: str = "sdpa", moe: bool = False, seed: int = 0) -> Qwen3VLForConditionalGeneration:
    family = Qwen3VLMoeForConditionalGeneration if moe else Qwen3VLForConditionalGeneration
    return _filled(family, config(moe), attention, seed)


def stock35(attention: str = "sdpa", moe: bool = False, seed: int = 0) -> Qwen3_5ForConditionalGeneration:
    family = Qwen3_5MoeForConditionalGeneration if moe else Qwen3_5ForConditionalGeneration
    return _filled(family, config35(moe), attention, seed)


def _filled(family: type, settings: object, attention: str, seed: int) -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(seed)
    model = family._from_config(settings, attn_implementation=attention)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Far from zero, so that every part of the model moves the logits and the answers vary.
            large = "embed_tokens" in name or "lm_head" in name or name.endswith("bias")
            parameter.copy_(torch.randn_like(parameter) * (1.0 if large else 0.3) + ("norm" in name and not large))
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer().pad_token_id
    return model.eval()


def picture(width: int = 160, height: int = 128, seed: int = 0) -> Image.Image:
    """Coarse coloured noise: every cell differs from every other."""
    generator = torch.Generator().manual_seed(seed)
    small = torch.randint(0, 256, (height // 16, width // 16, 3), dtype=torch.uint8, generator=generator)
    return Image.fromarray(small.numpy()).resize((width, height), Image.Resampling.BICUBIC)


def inputs(*conversations: Conversation) -> dict[str, torch.Tensor]:
    return encode(processor(), [scaled(conversation) for conversation in conversations])


def scaled(conversation: Conversation) -> Conversation:
    """The same conversation with images of as many cells, whatever the patch."""
    if PATCH == 16:
        return conversation
    images = [image.resize((image.width * PATCH // 16, image.height * PATCH // 16)) for image in conversation.images]
    return replace(conversation, images=images)


def stock_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in batch.items() if name != "question_mask"}


def varies(tokens: torch.Tensor) -> bool:
    """Whether every row of new tokens is more than a repetition, so that equality of tokens means something."""
    return all(len(set(row.tolist())) >= 3 for row in tokens)


def wrapped(model: Qwen3VLForConditionalGeneration, **kwargs: object) -> ARRCOCQwen:
    return ARRCOCQwen(model, processor=processor(), **kwargs).eval()


class FixedSelector(Selector):
    """Chooses by a given relevance, whatever the image and the question."""

    name = "fixed"
    reads_pixels = True

    def __init__(self, relevance: Callable[[tuple[int, int]], torch.Tensor], reads_tokens: bool = False) -> None:
        super().__init__(TokenAllocator())
        self.relevance, self.reads_tokens = relevance, reads_tokens

    def judge(self, view, stopwatch):
        relevance = torch.stack([self.relevance(view.grid) for _ in range(view.image_B3hw.shape[0])])
        zeros = relevance.new_zeros(relevance.shape[0], 3)
        return Judgement({"fixed": relevance}, Balance(relevance, zeros[:, :1] + 1, zeros), relevance.sum((1, 2)))


def scattered(grid: tuple[int, int]) -> torch.Tensor:
    """An arbitrary relevance that depends on the grid alone, with structure enough to be followed."""
    relevance = 0.5 * torch.rand(grid, generator=torch.Generator().manual_seed(grid[0] * 31 + grid[1]))
    relevance[: grid[0] // 2, : grid[1] // 2] += 0.5
    return relevance


@contextmanager
def eager_attention(model: Qwen3VLForConditionalGeneration) -> Iterator[None]:
    """Only eager attention shows its weights: the language model is switched to it for that long."""
    text = model.model.language_model
    before = text.config._attn_implementation
    text.set_attn_implementation("eager")
    try:
        yield
    finally:
        text.set_attn_implementation(before)


def by_hand(ours, inputs, keep: float, steps: int) -> torch.Tensor:
    """New tokens of a loop over `forward` and its cache, the likeliest each time, `[B, steps]`."""
    output = ours(**inputs, keep=keep, use_cache=True, output_arr_coc_info=True)
    mask, tokens = output.arr_coc.attention_mask, []
    for _ in range(steps):
        tokens.append(output.logits[:, -1].argmax(-1, keepdim=True))
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        output = ours(input_ids=tokens[-1], attention_mask=mask, past_key_values=output.past_key_values, use_cache=True)
    return torch.cat(tokens, 1)
