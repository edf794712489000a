"""What lies outside the world of mini, the embedded model: words that it does not know, and photographs.

mini meets people halfway: a word that it knows in another form or by another name is read as that. What it cannot know
is told before its answer. No other model has such limits, and nothing here touches one.
"""

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arr_coc.files import read_json_object
from arr_coc.qwen import vision
from arr_coc.qwen.memory import Memory, lasting

MINI_ENTRIES = 1536  # mini's vocabulary is smaller than this, any Qwen's a hundred times larger
PROBE = "familiar.json"  # in the folder of a model that can tell photographs from what it knows
SIDE = 256  # px of the longer side of the small copy that is judged
SURE = 0.85  # score above which it is told; at 0 it would be told of one in twenty scenes drawn upon a photograph
# Names of other people for what is in the drawn world. All on the right is known to mini.
CALLED = {
    **{"icon": "symbol", "icons": "symbols", "shape": "thing", "shapes": "things", "items": "things", "pic": "picture"},
    **{"drawing": "picture", "illustration": "picture", "caption": "title", "violet": "purple", "scarlet": "red"},
    **{"crimson": "red", "beneath": "below", "underneath": "below", "over": "above", "near": "beside"},
    **{"tallest": "highest", "shortest": "lowest", "maximum": "highest", "minimum": "lowest", "big": "large"},
    **{"smartphone": "phone", "cellphone": "phone", "jet": "plane", "mail": "envelope", "email": "envelope"},
    **{"gem": "diamond", "shamrock": "clover", "kitty": "kitten", "blossom": "flower", "thunderbolt": "lightning"},
    **{"smile": "smiley", "emoji": "smiley", "explain": "describe", "identify": "name", "amount": "number"},
    **{"this": "the", "these": "the", "those": "the"},
}
SHORT = (  # how people write in haste, and what is meant; letters of either case
    (re.compile(r"\b(what|which|where|how|there|that)['\u2019]?s\b", re.I), r"\1 is"),
    (re.compile(r"^\W*(?:the )?colou?r of (.*\w)\W*$", re.I), r"What is the colour of \1?"),
    (re.compile(r"^\W*how many (\w+)\W*$", re.I), r"How many \1 are there?"),
    (re.compile(r"\bwhich words are\b", re.I), "which word is"),
)
ANY = re.compile(r"\W*are there (?:any )?(\w+)\W*", re.I)
WORD = re.compile(r"[^\W\d_]+")


def is_mini(tokenizer: Any) -> bool:
    """Whether this is the tokenizer of the embedded model: a small one, which knows a word of its world."""
    return len(tokenizer) <= MINI_ENTRIES and "umbrella" in tokenizer.get_vocab()


def outside_words(tokenizer: Any, text: str) -> list[str]:
    """Words of `text` that mini does not know, in order. Upper-case words and single letters are free.

    `tokenizer` is what AutoTokenizer loads from mini's folder.
    """
    vocabulary = tokenizer.get_vocab()
    special = "|".join(re.escape(token.content) for token in tokenizer.added_tokens_decoder.values())
    words = WORD.findall(re.sub(special, " ", text))
    return [w for w in words if len(w) > 1 and not w.isupper() and w not in vocabulary]


def meant(tokenizer: Any, question: str) -> str:
    """The question in words that mini knows, as far as it is clear which: capitals, plurals, other names.

    What it knows stays as it is, and upper-case words stay texts of the image unless all of the question is upper case.
    """
    if not is_mini(tokenizer):
        return question
    vocabulary = tokenizer.get_vocab()
    shouted = question.isupper() and sum(word.lower() in vocabulary for word in WORD.findall(question)) > 2

    def known(found: re.Match[str]) -> str:
        word, low = found.group(), found.group().lower()
        if shouted and low in vocabulary:
            return low
        if len(word) < 2 or word.isupper() or word in vocabulary:
            return word
        forms = (low, CALLED.get(low, low), *singulars(low), f"{low}s")
        return next((form for form in forms if form in vocabulary), word)

    for pattern, form in SHORT:
        question = pattern.sub(form, question)
    if wanted := ANY.fullmatch(question):
        low = wanted.group(1).lower()
        question = f"Is there a {next((form for form in singulars(low) if form in vocabulary), low)}?"
    return WORD.sub(known, question)


def singulars(word: str) -> tuple[str, ...]:
    """What a word may be the plural of, the likeliest first."""
    ends = (("ves", "f"), ("ies", "y"), ("men", "man"), ("s", ""), ("es", ""))
    return tuple(word.removesuffix(end) + one for end, one in ends if word.endswith(end))


def words_notices(tokenizer: Any, question: str) -> list[str]:
    """Lines about words that mini does not know: those it reads as others, and those that mean nothing to it."""
    if not is_mini(tokenizer):
        return []
    read = meant(tokenizer, question)
    changed = [] if read.lower() == question.lower() else [f'mini reads this as "{read}"']
    unknown = outside_words(tokenizer, read)
    return changed + ([f"mini only knows drawn scenes, and not the words: {', '.join(unknown)}"] if unknown else [])


# ---------------------------------------------------------------- photographs


Probe = tuple[Tensor, float]  # weights [X] and bias of what tells photographs from what a model knows


def probe_of(model: Any) -> Probe | None:
    """The probe in the model's folder; None: it has none. It is read with the model, so that damage is told then."""
    path = Path(model.config._name_or_path, PROBE) if model.config._name_or_path else None
    said = read_json_object(path)
    if not said:
        return None
    try:
        weight_X, bias = torch.tensor(said["weight"], dtype=torch.float32), float(said["bias"])
    except (KeyError, TypeError, ValueError, RuntimeError):
        weight_X, bias = torch.empty(0), 0.0
    if weight_X.shape != (model.config.vision_config.hidden_size,):
        raise ValueError(f"{path}: not for this model, or damaged; copy the model again, or take the file away")
    return weight_X, bias


@torch.no_grad()
def impression(model: Any, image_3hw: Tensor, geometry: vision.Geometry) -> Tensor:
    """Mean `[X]` of what the ViT makes of a small copy of an image, uint8 or in [0, 1]. Costs 64 cells of the ViT."""
    high, wide = image_3hw.shape[-2:]
    cells = SIDE / geometry.cell / max(high, wide)
    grid = max(1, round(high * cells)), max(1, round(wide * cells))
    image = image_3hw.to(model.device)
    image = image.float() / 255 if image.dtype == torch.uint8 else image
    return vision.glance(model, image.unsqueeze(0), grid, geometry).mean((0, 2, 3))


def leave_impressions(
    seen: Memory | None, keys: Sequence[Hashable], glance_BXHW: Tensor | None, small: vision.Grid, cell: int
) -> None:
    """Into `seen`, if somebody reads it, from a glance at copies of `small` cells, where they are of SIDE px.

    It differs from `impression` by what the patches at the edges weigh, and costs nothing.
    """
    if seen is not None and glance_BXHW is not None and max(small) * cell == SIDE:
        for key, mean_X in zip(keys, glance_BXHW.mean((2, 3)).cpu(), strict=True):
            seen.put(lasting(key, [key]), (mean_X.clone(),))


def picture_notices(
    model: Any, probe: Probe, images: Sequence[Tensor], geometry: vision.Geometry, seen: Memory
) -> list[str]:
    """A line where images look like photographs to a model that knows drawings alone; `seen` are impressions of others.

    An image that nothing has glanced at pays for it, once: about 40 ms on two cores.
    """
    weight_X, bias = probe
    scores = []
    for image, key in zip(images, seen.keys(images, model.model), strict=True):
        held = seen.get(key)
        if held is None:
            held = (impression(model, image, geometry).cpu(),)
            seen.put(key, held)
        scores.append(float(held[0] @ weight_X + bias))
    found = [str(number) for number, score in enumerate(scores, 1) if score > SURE]
    which = "this" if len(images) == 1 else f"image {', '.join(found)}"
    return [f"{which} looks like a photograph; mini knows drawings"] if found else []
