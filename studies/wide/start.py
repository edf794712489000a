"""Where wide training starts: mini's weights with room for the new words.

    python -m studies.wide.start --source arr_coc/models/mini --out runs/wide/start
    python -m studies.wide.start --source WEIGHTS --as-is --out DIR      # a model to ask, of weights alone

The folder is a whole model. Old tokens keep their numbers and rows; a new word takes the next number, and its row
starts as that of the word it stands for ("color" as "colour"), so that much of what was learned holds for it at once.
Words came in two lots, for wide scenes, then for clips and several images: weights that know the first lot get the
second, and weights that know both are taken as they are.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from studies.mini.model import MAX_PARAMETERS, TILE, copy_assets, count_parameters, mini_config, new_model
from studies.mini.shards import INDEX, export_weights
from studies.mini.tokenizer import MAX_ENTRIES
from studies.wide.clip_words import ORIGINS
from studies.wide.wording import new_words

EMBEDDING = "model.language_model.embed_tokens.weight"
LOTS = (new_words, lambda: ORIGINS)  # never sorted together: old numbers must stay
SPACE = "Ġ"  # a word with the space before it, as the tokenizer writes it


def first_vocabulary(vocabulary: dict[str, int]) -> dict[str, int]:
    """The old world's entries of a vocabulary that may know the new words: those stand at its end."""
    later = {entry for words in LOTS for word in words() for entry in (word, SPACE + word)}
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    while ordered and ordered[-1] in later:
        ordered.pop()
    return {entry: vocabulary[entry] for entry in ordered}


def widen_vocabulary(vocabulary: dict[str, int]) -> tuple[dict[str, int], dict[int, int]]:
    """(the vocabulary with the new words at its end, number of each new entry -> number of the one it starts from)."""
    wider, origins = dict(vocabulary), {}
    for words in LOTS:
        for word, old in sorted(words().items()):
            for entry, origin in ((word, old), (SPACE + word, SPACE + old)):
                if entry in wider:
                    continue
                same = [wider[name] for name in (origin, SPACE + old, old) if name in wider]
                assert same, f"{old} is no word of the world"
                wider[entry] = len(wider)
                origins[wider[entry]] = same[0]
    if len(wider) > MAX_ENTRIES:
        raise ValueError(f"{len(wider)} entries, at most {MAX_ENTRIES} are allowed: take words out of wording.SYNONYMS")
    return wider, origins


def known_entries(rows: int, vocabulary: dict[str, int]) -> int:
    """How many entries weights of so many rows were trained with: those of the old world, of the wide one, or all."""
    wider, _ = widen_vocabulary(vocabulary)
    first = {entry for word in new_words() for entry in (word, SPACE + word)}
    for size in (len(vocabulary), len({*vocabulary, *first}), len(wider)):
        if -(-size // TILE) * TILE == rows:
            return size
    raise ValueError(
        f"an embedding of {rows} rows fits no vocabulary of mini: give weights of mini or of its wide world"
    )


def widen_rows(rows_VD: Tensor, origins: dict[int, int], wanted: int) -> Tensor:
    """The embedding with `wanted` rows: old ones as they are, new words near the words that they stand for."""
    wider = torch.zeros(wanted, rows_VD.shape[1])
    wider[: len(rows_VD)] = rows_VD.float()
    generator = torch.Generator().manual_seed(0)
    noise = 0.1 * float(rows_VD.float().std())
    for number, origin in sorted(origins.items()):
        # Nine tenths: as the table is also the output, the old word must stay the likelier answer.
        wider[number] = 0.9 * wider[origin] + noise * torch.randn(rows_VD.shape[1], generator=generator)
    return wider


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder of shards."""
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder} holds no {INDEX}: give a folder that `python -m studies.mini.train` wrote")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values())):
        weights |= load_file(folder / file)
    return weights


def write_start(source: Path, assets: Path, out: Path, widened: bool = True) -> int:
    """Write the model folder to start from, or, if not `widened`, the weights' own; returns its number of parameters.

    `source` has the weights, `assets` the tokenizer, with the new words or without, and the other settings.
    """
    out.mkdir(parents=True, exist_ok=True)
    stored = json.loads((assets / "tokenizer.json").read_text())
    old_vocabulary = first_vocabulary(stored["model"]["vocab"])
    vocabulary, origins = widen_vocabulary(old_vocabulary)
    weights = read_weights(source)
    known = known_entries(len(weights[EMBEDDING]), old_vocabulary)
    if not widened:
        vocabulary = {entry: number for entry, number in vocabulary.items() if number < known}
    stored["model"]["vocab"] = vocabulary
    model = new_model(mini_config(vocabulary), seed=0)
    wanted = model.config.text_config.vocab_size
    if len(weights[EMBEDDING]) != wanted:
        lacking = {number: origin for number, origin in origins.items() if number >= known}
        weights[EMBEDDING] = widen_rows(weights[EMBEDDING], lacking, wanted)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise ValueError(f"{source} does not fit mini: missing {missing[:3]}, unexpected {unexpected[:3]}")
    parameters = count_parameters(model)
    assert parameters <= MAX_PARAMETERS
    copy_assets(assets, out, model.config)
    (out / "tokenizer.json").write_text(json.dumps(stored, ensure_ascii=False, indent=2))
    export_weights(model, out)
    head = source / "dense_head.safetensors"
    if head.is_file():
        shutil.copyfile(head, out / head.name)
    return parameters


def main() -> None:
    """Command line: see the top of this file."""
    shipped = Path("arr_coc") / "models" / "mini"
    parser = argparse.ArgumentParser(description="Write the model that wide training starts from.")
    parser.add_argument("--source", type=Path, default=shipped, help="folder with the weights to start from")
    parser.add_argument("--assets", type=Path, default=shipped, help="folder with the old tokenizer and settings")
    parser.add_argument("--as-is", action="store_true", help="with the words that the weights know, and no more")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    parameters = write_start(arguments.source, arguments.assets, arguments.out, not arguments.as_is)
    print(f"wrote {arguments.out}: {parameters:,} parameters")


if __name__ == "__main__":
    main()
