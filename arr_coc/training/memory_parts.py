"""Bytes of each part of a training step: what learns, and what is kept for the backward pass.

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

from arr_coc.config import CELL
from arr_coc.qwen.adapting import LAST_LAYERS
from arr_coc.qwen.shapes import count_parts
from arr_coc.qwen.vision import glance_grid
from arr_coc.training.memory_plan import Plan

PATCHES = 4  # of a cell

# The selector is many small operations in fp32: bytes per cell, counted over the live tensors of the layer itself.
ROW_BYTES = 26_600  # of each question: scorers and their backward pass
ROW_TOKEN_BYTES = 21  # more per token of the question: its match with every cell
IMAGE_BYTES = 6_600  # of each image: pyramid and stem
ROW_GLANCE_BYTES, IMAGE_GLANCE_BYTES = 8, 4  # more per channel of a glance: two scorers stack it for each question
TEXTURE_BYTES = 28_700  # of each image while textures are made, freed before the scorers run

# ---------------------------------------------------------------- what learns


def lora_parameters(plan: Plan) -> int:
    """LoRA's own weights: rank x (inputs + outputs) of every matrix that it stands beside."""
    text, vision = plan.model_config.text_config, plan.model_config.vision_config
    hidden, heads, groups = _text_widths(plan)
    decoder = 2 * (hidden + heads) + 2 * (hidden + groups) + 3 * (hidden + text.intermediate_size)
    block = 6 * vision.hidden_size + 2 * (vision.hidden_size + vision.intermediate_size)
    return int(plan.rank * (text.num_hidden_layers * decoder + vision.depth * block))


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
    wide, s = plan.model_config.text_config.intermediate_size, plan.dtype.itemsize
    hidden, heads, groups = _text_widths(plan)
    saved = 4 * (2 * hidden + heads + groups) + s * (4 * heads + plan.length + 3 * wide)
    if learns == "all":
        saved += s * (4 * hidden + heads + groups + wide)
    if learns == "lora":
        shared = s == 4 and plan.dropout == 0
        inputs = 2 * hidden + wide if shared else 5 * hidden + heads + wide
        saved += (4 + (plan.dropout > 0)) * inputs + 4 * 7 * plan.rank  # dropout keeps a byte per value
    return saved


def vision_block_bytes(plan: Plan) -> float:
    """Saved by one vision block per patch."""
    vision, s = plan.model_config.vision_config, plan.dtype.itemsize
    saved = s * (8 * vision.hidden_size + vision.intermediate_size)
    inputs = 3 * vision.hidden_size + vision.intermediate_size
    if plan.learns == "lora":
        return saved + (4 + (plan.dropout > 0)) * inputs + 4 * 4 * plan.rank
    return saved + (s * inputs if plan.learns == "all" else 0)


def merger_bytes(plan: Plan) -> float:
    """Saved by all patch mergers per cell; LoRA leaves them as they are."""
    vision = plan.model_config.vision_config
    each = 3 if plan.how == "all" else 1
    mergers = 1 + len(vision.deepstack_visual_indexes)
    return plan.dtype.itemsize * PATCHES * vision.hidden_size * (1 + mergers * each)


def vision_saved(plan: Plan) -> tuple[float, float]:
    """(kept of a batch for the backward pass, most on top of it while a block runs) of the vision tower."""
    vision, s = plan.model_config.vision_config, plan.dtype.itemsize
    patches = PATCHES * plan.batch * (plan.kept if plan.encoding == "sparse" else plan.cells)
    hidden, wide = vision.hidden_size, vision.intermediate_size
    pixels = s * 3 * vision.temporal_patch_size * vision.patch_size**2
    if plan.learns == "none":  # a pass without gradients: the pixels, and rotary embeddings in fp32 or the MLP
        return 0.0, patches * (pixels + max((24 + 5 * s) * hidden * (s < 4), s * (3 * hidden + 2 * wide)))
    block, backward = vision_block_bytes(plan), s * (2 * hidden + 2 * wide)
    ends = merger_bytes(plan) / PATCHES + (pixels if plan.learns == "all" else 0)
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
    backward = s * (2 * text.hidden_size + 3 * text.intermediate_size)
    if plan.checkpointing:
        return tokens * (len(sizes) * s * text.hidden_size + head), tokens * (max(sizes, default=0.0) + backward)
    return tokens * (sum(sizes) + head), tokens * backward


def pixel_bytes(plan: Plan) -> float:
    """Of a row: flattened patches in fp32."""
    return 4.0 * 3 * plan.model_config.vision_config.temporal_patch_size * CELL**2 * plan.cells


def feature_bytes(plan: Plan) -> float:
    """Of a row: the visual tokens of all DeepStack levels, twice where they are gated."""
    levels = (1 + len(plan.model_config.vision_config.deepstack_visual_indexes)) * (1 + plan.gated)
    return levels * plan.dtype.itemsize * plan.model_config.text_config.hidden_size * plan.kept


def logit_bytes(plan: Plan) -> float:
    """Of a batch."""
    columns = plan.answer_tokens or plan.length
    return plan.batch * columns * plan.model_config.text_config.vocab_size * (plan.dtype.itemsize + 12)


def selector_bytes(plan: Plan) -> tuple[float, float]:
    """(what the selector holds through a step, what it needs while it looks at the images)."""
    vision, hidden = plan.model_config.vision_config, plan.model_config.text_config.hidden_size
    images = plan.batch if plan.stage == 2 else -(-plan.batch // plan.questions_per_image)
    glanced = 4 * vision.hidden_size if plan.sight == "glance" else 0  # of each cell, in fp32
    channels = plan.glance_channels if plan.sight == "glance" else 0
    held = images * plan.cells * (3 * CELL**2 + glanced)  # beside the images as bytes
    small = glance_grid(plan.grid, CELL)
    through_vit = PATCHES * small[0] * small[1] * (24 + 5 * plan.dtype.itemsize) * vision.hidden_size
    seeing = images * (plan.cells * 4 * 3 * CELL**2 + max(plan.cells * TEXTURE_BYTES, through_vit * bool(glanced)))
    image = plan.cells * (IMAGE_BYTES + IMAGE_GLANCE_BYTES * channels)
    of_cell = ROW_BYTES + ROW_TOKEN_BYTES * plan.text_tokens + ROW_GLANCE_BYTES * channels
    row = plan.cells * of_cell + 8 * plan.text_tokens * hidden
    return held + images * image + plan.batch * row, held + seeing
