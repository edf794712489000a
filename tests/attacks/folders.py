"""Hostile model and adapter folders: a good tiny one, and what can be done to it, each in a line or two.

`ATTACKS` are changes of a folder by name; those in `LOADS` leave a model that loads. `make` makes the folder of a
number, of 240: every attack once, then bytes changed at random in one of its files.
"""

import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import tiny
import torch
from safetensors.torch import load_file, save_file

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.adapting import adapt, save_adapted
from arr_coc.qwen.storage import save_adapter

COUNT = 240
WEIGHTS, ADAPTER, LORA, DELTA = (
    "model.safetensors",
    "arr_coc.safetensors",
    "base/adapter_model.safetensors",
    "base/delta.safetensors",
)
SETTINGS = (
    *("config.json", "generation_config.json", "processor_config.json", "tokenizer_config.json", "tokenizer.json"),
    *("chat_template.jinja", "arr_coc_config.json", "base/adapter_config.json"),
)
FIRST = "model.language_model.layers.0.self_attn.q_proj.weight"
RAN = "ran"  # a file that hostile code would make

Attack = Callable[[Path, random.Random], None]


@lru_cache
def good_folder(place: Path) -> Path:
    """A tiny model with its processor, an adapter and LoRA."""
    stock = tiny.stock()
    stock.save_pretrained(place)
    tiny.processor().save_pretrained(place)
    config = ARRCOCConfig(hidden_dim=32, trained=True, encoding="sparse")
    save_adapter(place, config, ARRCOCLayer.from_config(config))
    save_adapted(adapt(stock, "lora", rank=2)[0], "lora", place / "base")
    return place


# ---------------------------------------------------------------- ways to change a file


def said(file: str, **changed: object) -> Attack:
    """Keys of a JSON file set; "a.b" is within a, None takes away."""

    def attack(folder: Path, _: random.Random) -> None:
        path = folder / file
        data = json.loads(path.read_text()) if path.is_file() else {}
        for name, value in changed.items():
            *outer, last = name.split("__")
            inner = data
            for one in outer:
                inner = inner[one]
            inner[last] = value
        path.write_text(json.dumps(data))

    return attack


def holds(file: str, content: str | bytes) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return attack


def gone(file: str) -> Attack:
    return lambda folder, _: (folder / file).unlink()


def pipe(file: str) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        (folder / file).unlink(missing_ok=True)
        os.mkfifo(folder / file)

    return attack


def link(file: str, to: str) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to(to)

    return attack


def tensors(file: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        found = load_file(folder / file)
        change(found)
        save_file(found, folder / file, metadata={"format": "pt"})

    return attack


def header(file: str, change: Callable[[dict, bytes], tuple[bytes, bytes]]) -> Attack:
    """The header's JSON and the bytes behind it, as they are made anew."""

    def attack(folder: Path, _: random.Random) -> None:
        data = (folder / file).read_bytes()
        length = int.from_bytes(data[:8], "little")
        text, rest = change(json.loads(data[8 : 8 + length]), data[8 + length :])
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + rest)

    return attack


def cut(file: str, share: float) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: int(share * len(data))])

    return attack


def indexed(*names: str) -> Attack:
    """An index that says in which files the weights are."""
    return lambda folder, _: (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {f"w{n}": name for n, name in enumerate(names)}})
    )


def code(file: str, key: str = "auto_map") -> Attack:
    """Settings that name a class in a Python file of the folder, which leaves a trace if it runs."""

    def attack(folder: Path, rng: random.Random) -> None:
        (folder / "evil.py").write_text(f"open({str(folder / RAN)!r}, 'w')\nclass Evil: pass\n")
        names = (
            "AutoConfig",
            "AutoModel",
            "AutoModelForImageTextToText",
            "AutoProcessor",
            "AutoTokenizer",
            "AutoImageProcessor",
        )
        said(file, **{key: dict.fromkeys(names, "evil.Evil")})(folder, rng)

    return attack


class Touch:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple:
        return open, (self.path, "w")


def pickled(file: str, instead_of: str) -> Attack:
    def attack(folder: Path, _: random.Random) -> None:
        (folder / instead_of).unlink()
        (folder / file).write_bytes(pickle.dumps(Touch(folder / RAN)))

    return attack


# ---------------------------------------------------------------- the attacks


def repeated(made: dict, rest: bytes) -> tuple[bytes, bytes]:
    text = json.dumps(made)
    name = next(one for one in made if one != "__metadata__")
    return (text[:-1] + f", {json.dumps(name)}: {json.dumps(made[name])}}}").encode(), rest


def moved(key: str, value: object) -> Callable[[dict, bytes], tuple[bytes, bytes]]:
    def change(made: dict, rest: bytes) -> tuple[bytes, bytes]:
        name = sorted(one for one in made if one != "__metadata__")[1]
        made[name][key] = value
        return json.dumps(made).encode(), rest

    return change


def many_keys(made: dict, rest: bytes) -> tuple[bytes, bytes]:
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    more = {f"model.language_model.layers.{n}.mlp.up_proj.weight": nothing for n in range(400_000)}
    return json.dumps(made | more).encode(), rest


def of_weights(file: str) -> dict[str, Attack]:
    """What can be done to any file of tensors."""

    def poison(value: float) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda found: next(iter(found.values())).view(-1)[:1].fill_(value)

    def first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
        def attack(found: dict[str, torch.Tensor]) -> None:
            name = next(iter(sorted(found)))
            found[name] = change(found[name])

        return attack

    return {
        "NaN": tensors(file, poison(float("nan"))),
        "infinite": tensors(file, poison(float("-inf"))),
        "one missing": tensors(file, lambda found: found.pop(min(found))),
        "one more": tensors(file, lambda found: found.update(more=torch.zeros(3))),
        "one renamed": tensors(file, lambda found: found.update(other=found.pop(min(found)))),
        "all missing": tensors(file, lambda found: found.clear()),
        "another shape": tensors(file, first(lambda one: one.new_zeros(*one.shape, 2))),
        "whole numbers": tensors(file, first(lambda one: one.to(torch.int32))),
        "booleans": tensors(file, first(lambda one: one.bool())),
        "empty": holds(file, b""),
        "no tensors": holds(file, b"no tensors here, but some text"),
        "cut in its header": cut(file, 0.01),
        "cut in the middle": cut(file, 0.5),
        "cut at its end": lambda folder, _: (folder / file).write_bytes((folder / file).read_bytes()[:-1]),
        "more at its end": lambda folder, _: (folder / file).write_bytes((folder / file).read_bytes() + b"\0" * 8),
        "a header without end": holds(file, struct.pack("<Q", 2**62) + b"{}"),
        "a header of 99 MB": holds(file, struct.pack("<Q", 99_000_000) + b" " * 99_000_000),
        "a header that is no text": holds(file, struct.pack("<Q", 4) + b"\xff\xfe\x00\x01"),
        "a header that is no object": holds(file, struct.pack("<Q", 2) + b"[]"),
        "a header without shapes": holds(file, struct.pack("<Q", 8) + b'{"a":{}}'),
        "a header of brackets": holds(file, struct.pack("<Q", 900_000) + b"[" * 900_000),
        "a key twice": header(file, repeated),
        "offsets past the end": header(file, moved("data_offsets", [0, 2**40])),
        "offsets that overlap": header(file, moved("data_offsets", [0, 4])),
        "negative offsets": header(file, moved("data_offsets", [-8, 0])),
        "a shape too large": header(file, moved("shape", [2**40, 2**40])),
        "a dtype that is none": header(file, moved("dtype", "F99")),
        "400,000 keys": header(file, many_keys),
        "a pipe": pipe(file),
        "a device": link(file, "/dev/zero"),
        "a link to nothing": link(file, "nothing"),
    }


def layers(count: int) -> Attack:
    return said("config.json", text_config__num_hidden_layers=count)


def images(**changed: object) -> Attack:
    return said("processor_config.json", **{f"image_processor__{name}": value for name, value in changed.items()})


NESTED = "[" * 100_000
LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
CALLS_ITSELF = "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}"
REACHES_OUT = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
SHOWN = tiny.TEMPLATE
CONFIG: dict[str, Attack] = {
    "300,000 layers": layers(300_000),
    "1,000 layers": layers(1_000),
    "one layer more": layers(5),
    "one layer less": layers(3),
    "no layers": layers(0),
    "minus one layer": layers(-1),
    "a depth of a million": said("config.json", vision_config__depth=10**6),
    "a hidden size of a thousand million": said("config.json", text_config__hidden_size=10**9),
    "a vocabulary of ten million": said("config.json", text_config__vocab_size=10**7),
    "a vocabulary of 10^18": said("config.json", text_config__vocab_size=10**18),
    "sizes that are no numbers": said("config.json", text_config__hidden_size="32"),
    "sizes that are fractions": said("config.json", text_config__intermediate_size=48.5),
    "a size of infinity": holds("config.json", '{"model_type": "qwen3_vl", "text_config": {"hidden_size": Infinity}}'),
    "a head dimension of zero": said("config.json", text_config__head_dim=0),
    "a patch of ten million": said("config.json", vision_config__patch_size=10**7),
    "a million levels": said("config.json", vision_config__deepstack_visual_indexes=list(range(10**6))),
    "levels that are not there": said("config.json", vision_config__deepstack_visual_indexes=[0, 1, 99]),
    "text_config that is text": said("config.json", text_config="evil"),
    "a thousand million labels": said("config.json", num_labels=10**9),
    "as many labels of its text": said("config.json", text_config__num_labels=10**9),
    "quantised": said("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "another family": said("config.json", model_type="llama"),
    "a family that is a list": said("config.json", model_type=["qwen3_vl"]),
    "no family": said("config.json", model_type=None),
    "config that is no JSON": holds("config.json", "{'model_type': 1}"),
    "config that is empty": holds("config.json", ""),
    "config that is a list": holds("config.json", "[1]"),
    "config of brackets": holds("config.json", NESTED),
    "config that is no text": holds("config.json", b"\xff\xfe\xfd"),
    "config that is gone": gone("config.json"),
    "config that is a pipe": pipe("config.json"),
    "an index outside": indexed("../../etc/passwd"),
    "an index to /": indexed("/etc/passwd"),
    "an index to a folder within": indexed("base/adapter_model.safetensors"),
    "an index to nothing": indexed("model-00001-of-00009.safetensors"),
    "an index of numbers": holds("model.safetensors.index.json", '{"weight_map": {"a": 3}}'),
    "an index without a map": holds("model.safetensors.index.json", '{"metadata": {}}'),
    "an index of brackets": holds("model.safetensors.index.json", NESTED),
    "a pickle for weights": pickled("pytorch_model.bin", WEIGHTS),
    "a pickle named safetensors": pickled(WEIGHTS, WEIGHTS),
    "a thousand million new tokens": said("generation_config.json", max_new_tokens=10**9),
    "a million beams": said("generation_config.json", num_beams=10**6),
    "a temperature of infinity": holds("generation_config.json", '{"do_sample": true, "temperature": Infinity}'),
    "a pipe beside them": pipe("more.json"),
    "a tokenizer that is a pipe": pipe("tokenizer.json"),
    "a tokenizer that is a device": link("tokenizer.json", "/dev/zero"),
    "a tokenizer that is no JSON": holds("tokenizer.json", "{"),
    "a tokenizer that is empty": holds("tokenizer.json", "{}"),
    "a tokenizer cut in half": cut("tokenizer.json", 0.5),
    "70 MB of settings": holds("more.json", b" " * 70_000_000),
    "no patches": images(patch_size=0),
    "images of 10^12 pixels": images(size={"shortest_edge": 10**12, "longest_edge": 10**12}),
    "images of less than nothing": images(size={"shortest_edge": -5, "longest_edge": -1}),
    "cells of a million": images(merge_size=10**6),
    "cells of another size": images(merge_size=3),
    "a mean of infinity": images(image_mean=[float("inf")] * 3),
    "a processor that is no JSON": holds("processor_config.json", "no"),
    "an endless template": holds("chat_template.jinja", LOOP + SHOWN),
    "a template that calls itself": holds("chat_template.jinja", CALLS_ITSELF + SHOWN),
    "a template of half a sentence": holds("chat_template.jinja", "{% for"),
    "a template that forgets the question": holds("chat_template.jinja", "<|im_start|>user\n"),
    "a template that repeats it": holds("chat_template.jinja", SHOWN + SHOWN),
    "a template with images of its own": holds("chat_template.jinja", SHOWN + "<|image_pad|>"),
    "a template with texts of its own": holds("chat_template.jinja", SHOWN + "\ue00077\ue001"),
    "a template that reaches out": holds("chat_template.jinja", REACHES_OUT + SHOWN),
    "a template of a million letters": holds("chat_template.jinja", SHOWN + "a" * 1_000_000),
}  # fmt: skip
ADAPTERS: dict[str, Attack] = {
    "adapter of width 10^9": said("arr_coc_config.json", hidden_dim=10**9),
    "adapter of width 48": said("arr_coc_config.json", hidden_dim=48),
    "adapter of a thousand million channels": said("arr_coc_config.json", sight_channels=10**9),
    "adapter of another version": said("arr_coc_config.json", format_version=99),
    "adapter with a key more": said("arr_coc_config.json", evil=1),
    "adapter with a number for text": said("arr_coc_config.json", pooling=3),
    "adapter config that is no JSON": holds("arr_coc_config.json", "{"),
    "adapter config of brackets": holds("arr_coc_config.json", NESTED),
    "adapter config that is a pipe": pipe("arr_coc_config.json"),
    "adapter that is a pickle": pickled(ADAPTER, ADAPTER),
    "LoRA that imports": said("base/adapter_config.json", megatron_config={"a": 1}, megatron_core="evil"),
    "LoRA of rank 10^9": said("base/adapter_config.json", r=10**9),
    "LoRA of rank 3": said("base/adapter_config.json", r=3),
    "LoRA of rank text": said("base/adapter_config.json", r="two"),
    "LoRA of no rank": said("base/adapter_config.json", r=0),
    "LoRA with another alpha": said("base/adapter_config.json", lora_alpha=float("inf")),
    "LoRA with a slow pattern": said("base/adapter_config.json", target_modules="(a+)+$"),
    "LoRA that is another": said("base/adapter_config.json", peft_type="IA3"),
    "LoRA with DoRA": said("base/adapter_config.json", use_dora=True),
    "LoRA started from an SVD": said("base/adapter_config.json", init_lora_weights="pissa"),
    "LoRA config of brackets": holds("base/adapter_config.json", NESTED),
    "LoRA that is gone": gone(LORA),
    "a delta of NaN": lambda folder, _: save_file({FIRST: torch.full((32, 32), torch.nan)}, _delta(folder)),
    "a delta of another model": lambda folder, _: save_file({"other": torch.zeros(1)}, _delta(folder)),
}  # fmt: skip
LOADS: dict[str, Attack] = {
    "images without sizes": images(size=None),
    "code in its config": code("config.json"),
    "code in its text's config": code("config.json", "text_config__auto_map"),
    "code in its processor": code("processor_config.json"),
    "code in its image processor": code("processor_config.json", "image_processor__auto_map"),
    "code in its tokenizer": code("tokenizer_config.json"),
    "attention from elsewhere": said("config.json", _attn_implementation="evil/kernel"),
    "attention from elsewhere, by another name": said("config.json", attn_implementation="evil/kernel"),
    "attention of its text from elsewhere": said("config.json", text_config___attn_implementation="evil/kernel"),
    "a Python file beside it": holds("modeling_qwen3_vl.py", "raise SystemExit"),
}  # fmt: skip
ATTACKS: dict[str, Attack] = {
    **CONFIG,
    **ADAPTERS,
    **LOADS,
    **{f"weights: {name}": attack for name, attack in of_weights(WEIGHTS).items()},
    **{f"adapter: {name}": attack for name, attack in of_weights(ADAPTER).items()},
    **{f"LoRA: {name}": attack for name, attack in of_weights(LORA).items()},
}


def _delta(folder: Path) -> Path:
    """In place of LoRA."""
    shutil.rmtree(folder / "base")
    (folder / "base").mkdir()
    return folder / DELTA


def scrambled(folder: Path, rng: random.Random) -> str:
    """A few bytes of one settings file, or of a header, changed."""
    path = folder / rng.choice([*SETTINGS, WEIGHTS, ADAPTER, LORA])
    data = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(min(len(data), 4_000))] = rng.randrange(256)
    path.write_bytes(bytes(data))
    return path.name


def make(good: Path, folder: Path, number: int) -> str:
    """The hostile folder of that number; returns what was done to it."""
    shutil.copytree(good, folder)
    rng = random.Random(number)
    if number < 0:
        return "good"
    if number < len(ATTACKS):
        name, attack = list(ATTACKS.items())[number]
        attack(folder, rng)
        return name
    return f"bytes changed in {scrambled(folder, rng)}"
