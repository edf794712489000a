"""The field: every method on the same model, the same questions and the same number of tokens. Writes a table.

The report (`field.json`) holds `rows`, one per dataset, size, selector, encoding and budget; beside it, per dataset and
size, a file of samples with a line per answer. Rows of other datasets and sizes that are in the file stay.
"""

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from arr_coc.config import Keep
from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import PROMPT_OF, Picture, batches, ids_of, read_pictures
from arr_coc.evaluation.field.engines import Engine, FastEngine, PlainEngine
from arr_coc.evaluation.field.methods import (
    FIELD,
    Method,
    Row,
    add_oracle,
    add_tests,
    base_row,
    build,
    check_counts,
    check_prompts,
    plan,
    stamp_of,
)
from arr_coc.evaluation.field.run import Samples, unit
from arr_coc.files import fingerprint, read_json_object, write_json
from arr_coc.qwen.adapting import ADAPTED
from arr_coc.qwen.familiar import is_mini
from arr_coc.qwen.family import deepstack_levels
from arr_coc.qwen.loading import find_adapter, resolve
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.selectors import PLAIN, Selector

Say = Callable[[str], None]
KEEPS: dict[int, tuple[Keep, ...]] = {512: (0.5, 0.25, 0.1, 0.06), 1024: (64, 128, 256, 400)}  # by the side in px
ADAPTER_FILES = "arr_coc[._][cs]*"  # config and safetensors; what is tuned is no part of what is compared
CELLS_AT_ONCE = {"cuda": 262_144, "cpu": 12_288}  # cells of all questions of a batch: bounds the memory


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """What to compare, and on what."""

    model: str = "mini"
    datasets: tuple[str, ...] = ("scenes",)
    selectors: tuple[str, ...] = ()  # none: the field and the plain model
    keeps: tuple[Keep, ...] = ()  # none: those of KEEPS for the side
    encodings: tuple[str, ...] = ("sparse", "dense")
    sides: tuple[int, ...] = (512,)  # px of scenes
    questions: int = 500
    seed: int = 0
    metric: str | None = None  # of generic files
    prompt: str | None = None  # behind every question of files, "" for none; None: what suits the dataset and the model
    out: Path = Path("out/field.json")
    most_tokens: int = 96  # of an answer
    engine: str = "auto"  # or "plain": every method through ARRCOCQwen's own path
    device: str | None = None
    dtype: str = "float32"  # what the fast engine needs
    cells_at_once: int = 0  # 0: what suits the device
    max_pixels: int | None = None  # of an image as the model sees it; None: as the model has it
    min_pixels: int | None = None
    max_broken: float | None = None  # share of the rows of a file that may be; None: as everywhere
    bar: bool = True  # of the answers so far, on a terminal


class Bench:
    """A model with the selectors that are compared on it."""

    def __init__(self, options: FieldOptions) -> None:
        if options.engine not in ("auto", "plain"):
            raise ValueError(f"engine {options.engine!r}: expected auto or plain")
        self.options = options
        pixels = {"max_pixels": options.max_pixels, "min_pixels": options.min_pixels}
        how: dict[str, Any] = {"device": options.device, "dtype": options.dtype, **pixels}
        self.owner = ARRCOCQwen.from_pretrained(options.model, fast=False, **how)
        self.prompts = options.prompt is not None or not is_mini(self.owner.processor.tokenizer)  # mini knows none
        specs = self.specs()
        self.selectors: dict[str, Selector] = build(self.owner, specs)
        self.stamps = {spec: stamp_of(selector) for spec, selector in self.selectors.items()}
        self.plain = PlainEngine(self.owner, self.selectors, options.most_tokens)
        self.fast = FastEngine(self.owner, self.selectors, options.most_tokens)
        self.has_plain_row = any(spec == PLAIN for spec in specs)

    def specs(self) -> tuple[str, ...]:
        """What is compared."""
        return self.options.selectors or (*FIELD, PLAIN)

    def prompt(self, dataset: str) -> str:
        """What stands behind a dataset's questions."""
        usual = PROMPT_OF.get(dataset.partition(":")[0], "") if self.prompts else ""
        return usual if self.options.prompt is None else self.options.prompt

    def engine_of(self, method: Method) -> Engine:
        """The fast engine where the method and the model suit it."""
        model = self.owner.model
        plain_weights = model.config.model_type == "qwen3_vl" and model.dtype == torch.float32
        if self.options.engine == "auto" and plain_weights and self.fast.suits(method):
            return self.fast
        return self.plain

    @property
    def cells_at_once(self) -> int:
        return self.options.cells_at_once or CELLS_AT_ONCE[self.owner.device.type]

    def about(self, dataset: str, side: int | None) -> dict[str, Any]:
        """What decides the answers of a method; a run goes on only from samples of the same."""
        options = self.options
        folder = Path(resolve(options.model))
        base = Path(find_adapter(options.model)[0])
        return {
            "dataset": dataset,
            "side": side,
            "questions": options.questions,
            "seed": options.seed,
            "metric": options.metric,
            "prompt": options.prompt,
            "pixels": [options.min_pixels, options.max_pixels],
            "model": Path(options.model).name,
            "weights": fingerprint(base, "model*.safetensors")
            + fingerprint(folder, ADAPTER_FILES)
            + (fingerprint(folder / ADAPTED, "*.safetensors") if (folder / ADAPTED).is_dir() else ""),
            "most_tokens": options.most_tokens,
            "engine": options.engine,
            "device": self.owner.device.type,
            "dtype": str(self.owner.model.dtype).removeprefix("torch."),
            "cells_at_once": self.cells_at_once,
        }

    def _answer(self, pictures: Sequence[Picture], methods: Sequence[Method], samples: Samples) -> None:
        """Fill `samples` with every method's answers; what is there already is not run again.

        On a terminal a bar, if wanted, shows the answers and the time left.
        """
        parts, warm = list(batches(pictures, self.cells_at_once, self.owner.geometry.cell)), False
        total = len(methods) * sum(len(ids_of(part)) for part in parts)
        hidden = None if self.options.bar else True  # None: where nobody sees it
        with tqdm(total=total, unit=" answers", disable=hidden, file=sys.stderr, smoothing=0.05) as shown:
            for part in parts:
                ids = [name for name, _, _ in ids_of(part)]
                waiting = [method for method in methods if not samples.has(method, ids)]
                shown.update((len(methods) - len(waiting)) * len(ids))
                if waiting and not warm:
                    self._warm_up(part[0], waiting)
                    warm = True
                batch = make_batch(self.owner, part) if waiting else None
                for method in waiting:
                    assert batch is not None
                    samples.add(unit(batch, method, self.engine_of(method)))
                    shown.update(len(ids))

    def _warm_up(self, picture: Picture, methods: Sequence[Method]) -> None:
        """One question for every selector and encoding, not counted: the first call of anything is slow."""
        first = {(method.selector, method.encoding): method for method in reversed(methods)}
        batch = make_batch(self.owner, [replace(picture, queries=picture.queries[:1])])
        for method in first.values():
            self.engine_of(method).run(batch, method)

    def rows(
        self, pictures: Sequence[Picture], methods: Sequence[Method], samples: Samples, about: Row
    ) -> dict[Method, Row]:
        """Run what is missing, check that the comparison is fair, and sum it up."""
        self._answer(pictures, methods, samples)
        questions = [name for name, _, _ in ids_of(pictures)]
        table = {method.key: samples.records[method.key] for method in methods}
        check_prompts(table)
        records = {method: [table[method.key][name] for name in questions] for method in methods}
        rows: dict[Method, Row] = {}
        layers = self.owner.model.config.text_config.num_hidden_layers
        levels = deepstack_levels(self.owner.model.config)
        for method in methods:
            selector = self.selectors.get(method.selector)
            check_counts(method, records[method], selector is not None and selector.resizes)
            full = 0 if selector is None else selector.full_layers(levels)
            pays = "ViT: all; LM: all tokens" if selector is None else selector.pays
            rows[method] = base_row(method, records[method], layers, full, about) | {"pays": pays}
        add_tests(rows, records)
        add_oracle(rows)
        return rows


def evaluate_field(options: FieldOptions, say: Say, show: Say | None = None) -> dict[str, Any]:
    """The whole table, also written to `options.out`; `show`, else `say`, gets a line per row."""
    started, bench, report = time.perf_counter(), Bench(options), read_json_object(options.out)
    asked = [(one, side) for one in options.datasets for side in (options.sides if one == "scenes" else (None,))]
    for dataset, side in asked:
        name = short_name(dataset)
        keeps = options.keeps or KEEPS.get(side or 0, KEEPS[512])
        methods = plan(bench.selectors, keeps, options.encodings, bench.has_plain_row)
        what, how = (options.questions, side or 512, options.seed, options.metric), bench.prompt(dataset)
        pictures = read_pictures(dataset, *what, say, how, options.max_broken)
        path = samples_path(options.out, name, side)
        samples = Samples(path, bench.about(name, side), bench.stamps)
        rows = list(bench.rows(pictures, methods, samples, {"dataset": name, "side": side}).values())
        kept = [r for r in report.get("rows", []) if (r["dataset"], r["side"]) != (name, side)]
        report = {**report, "rows": [*kept, *rows], "runs": {**report.get("runs", {}), path.stem: samples.about}}
        for row in rows:
            (show or say)(describe(row))
        report["seconds"] = round(time.perf_counter() - started, 1)
        write_json(options.out, report)
    return report


def samples_path(out: Path, dataset: str, side: int | None) -> Path:
    """Where the samples of a dataset lie: beside the report."""
    return out.with_name(f"{out.stem}.{dataset}{'' if side is None else f'-{side}'}.jsonl")


def short_name(dataset: str) -> str:
    """A dataset from files by its kind and the name of its first file: no paths of a machine in results."""
    if dataset == "scenes":
        return dataset
    kind, _, rest = dataset.partition(":")
    return re.sub(r"[^\w.-]", "_", f"{kind}-{Path(rest.partition(':')[0]).stem}")


def describe(row: Row) -> str:
    """One line about a row."""

    def share(value: float | None) -> str:
        return "     -" if value is None else f"{100 * value:5.1f}%"

    p = "" if row["p_vs_arr_coc"] is None else f"  p {row['p_vs_arr_coc']:.4f}"
    mark = "*" if row["trained"] else " "
    return (
        f"{row['selector']:>24.24s}{mark} {row['encoding']:6s} keep {row['keep']!s:5s} {share(row['accuracy'])}  "
        f"recall {share(row['recall'])}  tokens {row['tokens']:6.1f}  {row['time_ms']['first_token']:7.1f} ms{p}"
    )
