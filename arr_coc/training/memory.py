"""How much memory of its device a run needs, from formulas, before anything is loaded.

Counted is what torch allocates at the peak of a step (`torch.cuda.max_memory_allocated`). A peak has a moment:
gradients come while activations go, so not all parts are there at once. Stages 1 and 3 run the base without gradients:
for the glance, and whole where its attention is the teacher.

s bytes per value of the model's dtype, D hidden, F intermediate, A = heads x head size, G = key-value heads x head
size, M tokens of a row, r LoRA's rank. Saved for the backward pass, bytes per token of a decoder layer (eager
transformers with SDPA):

    norms      4 (2 D + A + G)         their inputs in fp32, to which RMSNorm casts
    attention  4 s A + s M             query, key and value repeated for every head, output; the mask as numbers
    MLP        3 s F                   gate, its activation, up
    "all"      s (4 D + A + G + F)     where weights learn: what norms scale, and the inputs of matrices
    "lora"     4 (5 D + A + F + 7 r)   inputs in fp32, a copy per matrix; in an fp32 model they are shared: 2 D + F

and per patch of a vision block, with its own D and F:

    always     s (8 D + F)             LayerNorm inputs, query, key, the whole of qkv, output; GELU's input
    "all"      s (3 D + F)
    "lora"     4 (3 D + F + 4 r)

With checkpointing the inputs of layers are kept (s D), and one layer at a time is made again. Logits cost s + 12 bytes
per token and word: the logits, their log-softmax, and two gradients, all but the first in fp32.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import torch

from arr_coc.config import GLANCE, tokens_to_keep
from arr_coc.qwen.adapting import LAST_LAYERS, lora_targets
from arr_coc.qwen.family import deepstack_levels
from arr_coc.qwen.shapes import count_parts, widths_of
from arr_coc.qwen.vision import Geometry

TIERS_GB = (16, 24, 32)
RESERVE_GB = 1.0  # of a card that torch cannot have: CUDA's own context, the display, fragmentation
MOST_BATCH = 4096  # the search for the largest batch ends here
WORKSPACE = 32 * 2**20  # cuBLAS keeps such a buffer, taken from torch's allocator
PATCHES = 4  # of a cell
TEMPLATE_TOKENS = 16  # of a row beside image, question and answer
TEACHER_TOKENS = 16_384  # of the rows that the teacher reads at once: what a pass over whole images holds is bounded

# The selector is many small operations in fp32: bytes per cell, counted over the live tensors of the layer itself.
ROW_BYTES = 22_100  # of each question: scorers and their backward pass
ROW_TOKEN_BYTES = 21  # more per token of the question: its match with every cell
IMAGE_BYTES = 6_600  # of each image: pyramid and stem
ROW_GLANCE_BYTES, IMAGE_GLANCE_BYTES = 4, 1  # more per channel of a glance: one scorer reads it for each question
ROW_TEXTURE_BYTES, IMAGE_TEXTURE_BYTES = 86, 234  # more per channel of a set beyond the 13 of the smallest
ROW_LOOK_BYTES = 8  # more per attention map of a look
TEXTURE_BYTES = 28_700  # of each image while textures are made, freed before the scorers run


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does with memory."""

    model_config: Any
    how: str  # what of the model learns: none, lora, last4, all
    stage: int
    batch: int  # questions per step and process
    image_side: int  # px
    keep: float | int  # the most that is kept: with random budgets the upper end
    text_tokens: int  # of a row besides the image: template, question and answer
    dtype: torch.dtype
    checkpointing: bool
    selector_parameters: int
    encoding: str = "sparse"
    gated: bool = True  # whether the answer's gradient reaches the visual tokens (straight_through, gumbel)
    answer_tokens: int = 0  # columns of a row whose logits are made; 0: all, as with labels= of the stock model
    rank: int = 16
    accumulate: bool = False  # several batches per optimizer step: gradients wait beside the next one's activations
    questions_per_image: int = 1  # in stages 1 and 3 questions share what was seen of an image
    texture_channels: int = 13
    sight: str = "glance"
    glance_channels: int = 96
    look_dim: int = 0  # attention maps of a look; 0: none is taken
    taught: bool = False  # stages 1 and 3: the model reads whole images, and its attention is the target

    @property
    def grid(self) -> tuple[int, int]:
        """(H, W) in cells."""
        return self.geometry.grid(self.image_side, self.image_side)

    @property
    def geometry(self) -> Geometry:
        return Geometry.of(self.model_config.vision_config)

    @property
    def cells(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def images(self) -> int:
        """Different images of a batch: in stage 2 every row has one of its own."""
        return self.batch if self.stage == 2 else -(-self.batch // self.questions_per_image)

    @property
    def kept(self) -> int:
        """Visual tokens of a row."""
        return tokens_to_keep(self.keep, self.cells) or self.cells

    @property
    def length(self) -> int:
        """Tokens of a row, M."""
        return self.kept + self.text_tokens

    @property
    def learns(self) -> str:
        """What of an ordinary layer of either tower learns."""
        return self.how if self.how in ("lora", "all") else "none"


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes. The total is the peak; it may be less than the sum, since not all parts are there at that moment."""

    weights: int
    gradients: int
    optimizer: int  # AdamW: two values per weight that learns, in the weight's dtype
    activations: int  # inputs, the selector's maps, and what both towers keep for the backward pass
    logits: int
    total: int
    moment: str  # when the peak is
    plan: Plan


def estimate_plan(plan: Plan) -> MemoryEstimate:
    """What a step needs at its peak."""
    size = plan.dtype.itemsize
    own = 4 * (plan.selector_parameters + (lora_parameters(plan) if plan.how == "lora" else 0))
    weights = size * sum(count_parts(plan.model_config).values()) + own
    learning = size * trained_parameters(plan) + own
    kept, seeing = selector_bytes(plan)
    moments, logits, activations = {"textures": seeing, "selector": kept}, 0.0, kept
    if plan.taught and plan.stage != 2:
        moments["teacher"] = teacher_bytes(plan)
    if plan.stage == 2:
        moments, logits = answering_moments(plan, learning), logit_bytes(plan)
        activations = moments["end of the forward pass"] - logits
    if plan.accumulate:
        moments = {name: value + learning for name, value in moments.items()}
    moments["optimizer step"] = 2 * learning  # the gradients, and one copy that torch's AdamW makes
    moment = max(moments, key=lambda name: moments[name])
    total = weights + 2 * learning + moments[moment] + WORKSPACE
    sizes = (weights, learning, 2 * learning, int(activations), int(logits), int(total))
    return MemoryEstimate(*sizes, moment, plan)


def answering_moments(plan: Plan, learning: int) -> dict[str, float]:
    """What stands beside weights and optimizer at each moment of stage 2 that can be its peak."""
    size, text = plan.dtype.itemsize, plan.model_config.text_config
    kept, seeing = selector_bytes(plan)
    (vision, vision_peak), (decoder, decoder_peak) = vision_saved(plan), text_saved(plan)
    # Of a batch: flattened patches in fp32; the visual tokens of all DeepStack levels, twice where they are gated.
    tower = plan.model_config.vision_config
    pixels = plan.batch * 4.0 * 3 * tower.temporal_patch_size * plan.geometry.cell**2 * plan.cells
    levels = (1 + deepstack_levels(plan.model_config)) * (1 + plan.gated)
    kept += plan.batch * levels * size * text.hidden_size * plan.kept + vision
    # A layer that is made again meets the gradients of the layers behind it; else these take the place of what it kept.
    behind = learning - (size * count_parts(plan.model_config)["vision"] if plan.how == "all" else 0)
    moments = {"textures": seeing + pixels}
    if plan.learns == "none":
        moments["vision tower"] = kept + vision_peak + pixels
    else:
        moments["vision tower"] = kept + vision_peak + plan.checkpointing * behind
    if plan.how == "all":  # the word table's gradient is made whole, and then added to that of the output table
        moments["word table"] = kept + behind + size * text.vocab_size * text.hidden_size
    moments["decoder layer"] = kept + decoder + decoder_peak + plan.checkpointing * learning
    # Pixels are gone in the backward passes: nothing there reads them.
    return moments | {"end of the forward pass": kept + decoder + pixels + logit_bytes(plan)}


# ---------------------------------------------------------------- for people


def largest_batch(plan: Plan, card_gb: float) -> int:
    """The largest batch whose peak fits a card of so many GB, 0 where not even one row does."""
    room = (card_gb - RESERVE_GB) * 1e9
    return bisect_right(
        range(1, MOST_BATCH + 1), room, key=lambda batch: estimate_plan(replace(plan, batch=batch)).total
    )


def describe(found: MemoryEstimate) -> str:
    """A short table for people: the parts, and which cards it fits."""
    plan = found.plan
    seen = (
        f"{plan.image_side} px, {plan.kept} of {plan.cells} visual tokens"
        if plan.stage == 2
        else f"{plan.image_side} px"
    )
    lines = [f"memory of stage {plan.stage}, adapting {plan.how}, batch {plan.batch}, {seen}"]
    parts = ("weights", "gradients", "optimizer", "activations", "logits")
    lines += [f"  {name:<12}{getattr(found, name) / 1e9:7.2f} GB" for name in parts]
    lines.append(f"  {'peak':<12}{found.total / 1e9:7.2f} GB ({found.moment})")
    for card in TIERS_GB:
        most = largest_batch(plan, card)
        says = "fits" if plan.batch <= most else "does not fit"
        lines.append(f"  {f'{card} GB card':<12}{says}, {f'largest batch {most}' if most else 'not even batch 1'}")
    return "\n".join(lines)


# ---------------------------------------------------------------- what learns


def lora_parameters(plan: Plan) -> int:
    """LoRA's own weights: rank x (inputs + outputs) of every matrix that it stands beside."""
    return plan.rank * widths_of(plan.model_config, lora_targets(plan.model_config))


def trained_parameters(plan: Plan) -> int:
    """Weights of the base itself that learn."""
    text, parts = plan.model_config.text_config, count_parts(plan.model_config)
    if plan.how == "last4":
        each = (parts["text"] - text.hidden_size) // text.num_hidden_layers
        return int(each * min(LAST_LAYERS, text.num_hidden_layers) + text.hidden_size)
    return sum(parts.values()) if plan.how == "all" else 0


def _text_widths(plan: Plan) -> tuple[int, int, int]:
    """(D, A, G)."""
    text = plan.model_config.text_config
    return text.hidden_size, text.num_attention_heads * text.head_dim, text.num_key_value_heads * text.head_dim


# ---------------------------------------------------------------- what is kept


def text_layer_bytes(plan: Plan, learns: str) -> float:
    """Saved by one decoder layer per token, where "none", "lora" or "all" of it learns."""
    wide, s = wide_of(plan), plan.dtype.itemsize
    hidden, heads, groups = _text_widths(plan)
    saved = 4 * (2 * hidden + heads + groups) + s * (4 * heads + plan.length + 3 * wide)
    if learns == "all":
        saved += s * (4 * hidden + heads + groups + wide)
    if learns == "lora":
        inputs = 2 * hidden + wide if s == 4 else 5 * hidden + heads + wide
        saved += 4 * (inputs + 7 * plan.rank)
    return saved


def vision_saved(plan: Plan) -> tuple[float, float]:
    """(kept of a batch for the backward pass, most on top of it while a block runs) of the vision tower."""
    vision, s = plan.model_config.vision_config, plan.dtype.itemsize
    patches = PATCHES * plan.batch * (plan.kept if plan.encoding == "sparse" else plan.cells)
    hidden, wide = vision.hidden_size, vision.intermediate_size
    pixels = s * 3 * vision.temporal_patch_size * vision.patch_size**2
    if plan.learns == "none":  # a pass without gradients: the pixels, and rotary embeddings in fp32 or the MLP
        return 0.0, patches * (pixels + max((32 + 5 * s) * hidden * (s < 4), s * (3 * hidden + 2 * wide)))
    inputs = {"lora": 4 * (3 * hidden + wide + 4 * plan.rank), "all": s * (3 * hidden + wide)}
    block, backward = s * (8 * hidden + wide) + inputs[plan.learns], s * (2 * hidden + 2 * wide)
    # All patch mergers, which LoRA leaves as they are.
    mergers = 1 + (1 + deepstack_levels(plan.model_config)) * (3 if plan.how == "all" else 1)
    ends = s * hidden * mergers + (pixels if plan.learns == "all" else 0)
    if plan.checkpointing:
        return patches * (vision.depth * s * hidden + ends), patches * (block + backward)
    return patches * (vision.depth * block + ends), patches * backward


def text_saved(plan: Plan) -> tuple[float, float]:
    """(kept of a batch for the backward pass, most on top of it while a layer runs) of the decoder, without logits."""
    text, s = plan.model_config.text_config, plan.dtype.itemsize
    layers = [plan.learns] * text.num_hidden_layers
    if plan.how == "last4":
        layers[-LAST_LAYERS:] = ["all"] * min(LAST_LAYERS, len(layers))
    if plan.learns == "none" and not plan.gated:
        layers = [layer for layer in layers if layer != "none"]  # no gradient goes further down
    sizes = [text_layer_bytes(plan, layer) for layer in layers]
    tokens = plan.batch * plan.length * bool(sizes)
    head = (4 + 2 * s * (plan.how == "all")) * text.hidden_size  # final norm and output table
    backward = s * (2 * text.hidden_size + 3 * wide_of(plan))
    if plan.checkpointing:
        return tokens * (len(sizes) * s * text.hidden_size + head), tokens * (max(sizes, default=0.0) + backward)
    return tokens * (sum(sizes) + head), tokens * backward


def teacher_rows(cells: int, text_tokens: int) -> int:
    """Rows of so many cells and tokens of text that the teacher reads at once."""
    return max(1, TEACHER_TOKENS // (cells + text_tokens))


def teacher_bytes(plan: Plan) -> float:
    """What a pass over whole images holds, without gradients and a layer at a time, beside the images as bytes."""
    vision, s = plan.model_config.vision_config, plan.dtype.itemsize
    rows = min(plan.batch, teacher_rows(plan.cells, plan.text_tokens))
    hidden, heads, groups = _text_widths(plan)
    length = plan.cells + plan.text_tokens
    seen = min(rows, -(-rows // plan.questions_per_image) + 1)  # the first and the last may be asked about in part
    whole = replace(plan, batch=seen, how="none", encoding="dense")
    pixels = plan.cells * 4.0 * 3 * vision.temporal_patch_size * plan.geometry.cell**2  # of an image, as patches
    features = rows * plan.cells * s * hidden * (1 + deepstack_levels(plan.model_config))
    inside = max(2 * hidden + 3 * wide_of(plan), 2 * hidden + 3 * heads + 2 * groups) * s
    reading = rows * length * (s * hidden + inside + 2 * length) + features
    # Patches are made for every row, in fp32; the ViT's own are a copy where it is narrower.
    seeing = max((rows + seen) * pixels, vision_saved(whole)[1] + seen * pixels * (s < 4))
    return plan.images * plan.cells * 3 * plan.geometry.cell**2 + max(seeing, reading)


def wide_of(plan: Plan) -> int:
    """Width of what an MLP holds of a token, F: of all experts that it meets, where there are experts."""
    text = plan.model_config.text_config
    if not getattr(text, "num_experts", 0):
        return int(text.intermediate_size)
    return int(
        text.num_experts_per_tok * text.moe_intermediate_size + getattr(text, "shared_expert_intermediate_size", 0)
    )


def logit_bytes(plan: Plan) -> float:
    """Of a batch."""
    columns = plan.answer_tokens or plan.length
    return plan.batch * columns * plan.model_config.text_config.vocab_size * (plan.dtype.itemsize + 12)


def selector_bytes(plan: Plan) -> tuple[float, float]:
    """(what the selector holds through a step, what it needs while it looks at the images)."""
    vision, hidden = plan.model_config.vision_config, plan.model_config.text_config.hidden_size
    has_glance = plan.sight in ("glance", "look")
    glanced = 4 * vision.hidden_size if has_glance else 0  # of each cell, in fp32
    channels = plan.glance_channels if has_glance else 0
    cell = plan.geometry.cell
    held = plan.images * plan.cells * (3 * cell**2 + glanced)  # beside the images as bytes
    small = GLANCE.grid(plan.grid)
    through_vit = PATCHES * small[0] * small[1] * (24 + 5 * plan.dtype.itemsize) * vision.hidden_size
    seeing = plan.images * (plan.cells * 4 * 3 * cell**2 + max(plan.cells * TEXTURE_BYTES, through_vit * bool(glanced)))
    more = plan.texture_channels - 13
    image = plan.cells * (IMAGE_BYTES + IMAGE_GLANCE_BYTES * channels + IMAGE_TEXTURE_BYTES * more)
    of_cell = ROW_BYTES + ROW_TOKEN_BYTES * plan.text_tokens + ROW_GLANCE_BYTES * channels
    of_cell += ROW_TEXTURE_BYTES * more + ROW_LOOK_BYTES * plan.look_dim
    row = plan.cells * of_cell + 8 * plan.text_tokens * hidden
    return held + plan.images * image + plan.batch * row, held + seeing
