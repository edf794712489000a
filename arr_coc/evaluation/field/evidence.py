"""How good a choice is where nobody knows the answer: what of the truth is kept, without a word being generated.

The truth is where the answer is (boxes, as COCO has them), or where people looked (fixations). Of each budget:

    recall      share of the cells with truth that are kept
    precision   share of the kept cells that have truth

beside what any choice must beat: cells drawn at random, an even grid, the most variance, the nearest to the centre.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from arr_coc.config import Keep
from arr_coc.evaluation.field.data import Picture, Query, Record, ids_of, read_pictures
from arr_coc.evaluation.field.main import Bench, FieldOptions, Say, samples_path, short_name
from arr_coc.evaluation.field.methods import REFERENCE, Method
from arr_coc.evaluation.field.run import Samples, pack_cells
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.files import read_json_object, write_json
from arr_coc.images.reader import read_images
from arr_coc.qwen.processor import Conversation, encode_asked
from arr_coc.qwen.request import Hints, evidence_mask

KEEPS: tuple[Keep, ...] = (0.1, 0.25, 0.5)
BASELINES = ("random:seed=0", "even_grid", "variance", "centre")
HOW = "evidence"  # in place of an encoding: nothing is encoded


def truth_cells(query: Query, grid: tuple[int, int]) -> set[int]:
    """Cells that any box touches, or that anyone looked at."""
    truth_HW = evidence_mask(query.boxes or (), grid)
    for x, y in query.gaze or ():
        if 0 <= x < 1 and 0 <= y < 1:
            truth_HW[int(y * grid[0]), int(x * grid[1])] = True
    return set(torch.nonzero(truth_HW.flatten()).flatten().tolist())


def shares(kept: set[int], truth: set[int]) -> tuple[float, float]:
    """(recall, precision)."""
    both = len(kept & truth)
    return both / len(truth), both / len(kept)


class EvidenceBench(Bench):
    """A model whose choices are looked at."""

    def specs(self) -> tuple[str, ...]:
        """The selectors that were asked for, else the model's own; and what they must beat."""
        trained = (REFERENCE,) if self.owner.arr_coc_config.trained else ()
        own = self.options.selectors or (*trained, "look_twice")
        return (*own, *(one for one in BASELINES if one not in own))

    def line(self, picture: Picture, name: str, query: Query, inputs: dict[str, Any], method: Method) -> Record:
        """One choice."""
        owner = self.owner
        owner.selector = self.selectors[method.selector]
        hints = Hints(image_numbers=[picture.number])
        chosen = owner.choose({**inputs, "hints": hints}, keep=method.keep)[0]
        kept, total = chosen.kept.tolist(), chosen.grid[0] * chosen.grid[1]
        recall, precision = shares(set(kept), truth_cells(query, chosen.grid))
        where = {"grid": list(chosen.grid), "cells": pack_cells(kept, total), "total": total, "tokens": len(kept)}
        known = {"method": method.key, "question": name, "image": picture.number, "family": query.family}
        return {**known, **where, "recall": recall, "precision": precision}

    def fill(self, pictures: Sequence[Picture], methods: Sequence[Method], samples: Samples, bar: bool) -> None:
        """Every choice that is not in the file yet."""
        hidden = None if bar else True
        for picture in tqdm(pictures, unit=" images", disable=hidden, file=sys.stderr):
            asked = ids_of([picture])
            waiting = [method for method in methods if not samples.has(method, [name for name, _, _ in asked])]
            if not waiting:
                continue
            images = read_images(picture.read())
            for name, _, query in asked:  # nobody asked, where people looked freely
                inputs = encode_asked(self.owner.processor, Conversation(images, query.text))
                samples.add([self.line(picture, name, query, inputs, method) for method in waiting])


def score_evidence(options: FieldOptions, say: Say, show: Say | None = None) -> dict[str, Any]:
    """The table, also written to `options.out` under "evidence"; `show`, else `say`, gets a line per row."""
    started, report = time.perf_counter(), read_json_object(options.out)
    what, found = (options.questions, options.sides[0], options.seed, None), list[tuple[str, list[Picture]]]()
    for dataset in options.datasets:  # all of them before the model is loaded
        pictures = with_truth(read_pictures(dataset, *what, say, max_broken=options.max_broken))
        found.append((short_name(dataset), pictures))
        if not pictures:
            raise ValueError(f"{found[-1][0]}: no row has boxes or fixations, which --score evidence needs; add either")
    bench = EvidenceBench(options)
    for name, pictures in found:
        keeps = options.keeps or KEEPS
        methods = [Method(selector, HOW, keep) for keep in keeps for selector in bench.selectors]
        samples = Samples(samples_path(options.out, f"{name}-{HOW}", None), bench.about(name, None), bench.stamps)
        bench.fill(pictures, methods, samples, options.bar)
        ids = [name for name, _, _ in ids_of(pictures)]
        records = {method: [samples.records[method.key][one] for one in ids] for method in methods}
        rows = [row_of(method, records, {"dataset": name}) for method in methods]
        kept = [row for row in report.get(HOW, []) if row["dataset"] != name]
        report = {**report, HOW: [*kept, *rows], f"{HOW}_seconds": round(time.perf_counter() - started, 1)}
        write_json(options.out, report)
        for row in rows:
            (show or say)(described(row))
    return report


def with_truth(pictures: Sequence[Picture]) -> list[Picture]:
    """The questions of which the truth is known, and is somewhere."""
    known = [(one, tuple(query for query in one.queries if query.boxes or query.gaze)) for one in pictures]
    return [Picture(one.number, one.size, one.read, queries) for one, queries in known if queries]


def row_of(method: Method, records: dict[Method, list[Record]], about: dict[str, Any]) -> dict[str, Any]:
    """Means of a method with intervals, and by how much its recall beats a random choice."""

    def values(of: Method, what: str) -> Clustered:
        return Clustered.of((record["image"], record[what]) for record in records[of])

    chance = Method(BASELINES[0], HOW, method.keep)
    gain = None if method == chance else difference_of(values(method, "recall"), values(chance, "recall"))
    return {
        **about,
        "selector": method.selector,
        "keep": method.keep,
        "questions": len(records[method]),
        "images": len({record["image"] for record in records[method]}),
        "tokens": round(float(np.mean([record["tokens"] for record in records[method]])), 2),
        "recall": mean_of(values(method, "recall")),
        "precision": mean_of(values(method, "precision")),
        "over_random": gain,
    }


def described(row: dict[str, Any]) -> str:
    """One line about a row."""
    over = "" if row["over_random"] is None else f"  {100 * row['over_random']['mean']:+5.1f} over random"
    recall, low, high = (100 * one for one in (row["recall"]["mean"], *row["recall"]["ci95"]))
    return (
        f"{row['selector']:>24.24s}  keep {row['keep']!s:5s} recall {recall:5.1f}% ({low:.1f} to {high:.1f})  "
        f"precision {100 * row['precision']['mean']:5.1f}%  tokens {row['tokens']:6.1f}{over}"
    )
