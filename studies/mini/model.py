"""mini: the Qwen3-VL architecture at less than 16 M parameters, and the files that stand beside its weights.

    python -m studies.mini.model --out arr_coc/models/mini --template DIR

writes tokenizer, configuration, processor settings and chat template; `python -m studies.mini.train` adds the weights.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.config import CONFIG_FILE
from arr_coc.qwen.familiar import PROBE
from studies.mini.tokenizer import build_tokenizer, write_tokenizer

MAX_PARAMETERS = 16_000_000
TILE = 64  # rows of the embedding come in whole tiles of the matrix units
MAX_ANSWER = 96  # new tokens; the longest answer is a description of a full scene


def mini_config(vocabulary: dict[str, int], hidden: int = 256, layers: tuple[int, int] = (6, 7)) -> Qwen3VLConfig:
    """The configuration; `hidden` and `layers` (vision, text) are smaller in tests.

    The rotary base is 10,000 and not Qwen's 5,000,000: positions end near 150, and a larger base would leave
    most frequencies unused. The position table has 32 x 32 places, one per patch at 512 px.
    """
    rows = -(-len(vocabulary) // TILE) * TILE
    vision = {
        "depth": layers[0],
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_heads": hidden // 64,
        "out_hidden_size": hidden,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "num_position_embeddings": 1024,
        "deepstack_visual_indexes": [1, 3] if layers[0] > 3 else [0],
    }
    text = {
        "vocab_size": rows,
        "hidden_size": hidden,
        "intermediate_size": 7 * hidden // 2,
        "num_hidden_layers": layers[1],
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": max(1, hidden // 128),
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [12, 10, 10],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "pad_token_id": vocabulary["<|endoftext|>"],
        "bos_token_id": None,
        "eos_token_id": vocabulary["<|im_end|>"],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.dtype = "bfloat16"
    return config


def new_model(config: Any, seed: int) -> Any:
    """A model with fresh weights in float32, the same for the same seed."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    config._attn_implementation = "sdpa"
    model = Qwen3VLForConditionalGeneration(config).float()
    torch.random.set_rng_state(state)
    return model


def count_parameters(model: Any) -> int:
    """Parameters, tied ones once."""
    return sum(p.numel() for p in model.parameters())


def write_assets(folder: Path, words: tuple[str, ...], template: Path | None = None) -> None:
    """Write everything of the model's folder except the weights. Files that are there are replaced.

    `template` is a folder with Qwen3-VL's `chat_template.jinja`; None keeps the one in `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(words)
    write_tokenizer(tokenizer, folder)
    config = mini_config(tokenizer.get_vocab())
    (folder / "config.json").write_text(config.to_json_string())
    vocabulary = tokenizer.get_vocab()
    generation = {
        "do_sample": False,
        "eos_token_id": [vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]],
        "pad_token_id": vocabulary["<|endoftext|>"],
        "max_new_tokens": MAX_ANSWER,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    size = {"shortest_edge": 64 * 64, "longest_edge": 1024 * 1024}  # pixels in all, as Qwen counts them
    pixels = {
        "processor_class": "Qwen3VLProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size,
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    image = pixels | {"image_processor_type": "Qwen2VLImageProcessorFast"}
    video = pixels | {"video_processor_type": "Qwen3VLVideoProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(image, indent=2) + "\n")
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2) + "\n")
    if template is not None:
        shutil.copyfile(template / "chat_template.jinja", folder / "chat_template.jinja")


def copy_assets(source: Path, folder: Path, config: Any) -> None:
    """Tokenizer, settings and template of `source` beside weights of `config`, so that `folder` is a whole model."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (*source.glob("*.json"), *source.glob("*.jinja")):
        if path.name not in ("config.json", "model.safetensors.index.json", CONFIG_FILE, PROBE):
            shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(config.to_json_string())


def main() -> None:
    """Command line: see the top of this file."""
    from arr_coc_scenes import world_words

    parser = argparse.ArgumentParser(description="Write the files of mini that stand beside its weights.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--template", type=Path, help="folder with Qwen3-VL's chat_template.jinja")
    arguments = parser.parse_args()
    write_assets(arguments.out, world_words(), arguments.template)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
