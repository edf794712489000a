"""The tokenizer of mini: whole words for the words of the world, bytes for everything else.

A word of the world is one token, with and without a space before it. Any other string is spelled: a letter
is a token, a letter outside ASCII is its UTF-8 bytes. So every text can be encoded and decoded exactly, signs
never seen can be read aloud letter by letter, and a word outside the world shows itself by being spelled.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

MAX_ENTRIES = 1536
# A word with the space before it, a digit, a mark (with the space before it), or white space.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s"
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
TEMPLATE_WORDS = ("user", "assistant", "system")


def build_tokenizer(words: Iterable[str]) -> Tokenizer:
    """The tokenizer for a world of `words` (upper-case words stay spelled: they are free strings)."""
    entries = dict.fromkeys(SPECIAL_TOKENS)
    entries |= dict.fromkeys(sorted(pre_tokenizers.ByteLevel.alphabet()))
    for word in sorted({*words, *TEMPLATE_WORDS}):
        for piece in re.findall(r"[^\W\d_]+", word):
            if len(piece) > 1 and not piece.isupper() and piece.isascii():
                entries |= dict.fromkeys((piece, f"Ġ{piece}"))
    if len(entries) > MAX_ENTRIES:
        raise ValueError(f"{len(entries)} entries, at most {MAX_ENTRIES} are allowed: take words out of the world")
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    # With no merges, a piece is found whole in the vocabulary or falls apart into its bytes.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and a `tokenizer_config.json` that the stock Qwen3-VL processor understands."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "Qwen3VLProcessor",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
