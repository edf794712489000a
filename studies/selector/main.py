"""Evaluation of a trained selector on scenes it has not seen. Writes results/selector.json.

python -m studies.selector.main --model arr_coc/models/mini --questions 4000 --out results/selector.json

Parts can be run apart: what a part says replaces what it said before, all else in the file stays. Key by key:

    recall      recall.<keep>, with intervals, families, chance and untrained layers; px1024.iou_64
    accuracy    dense.<keep>, sparse.<keep>, random_dense.<keep>, random_sparse.<keep>: fractions of the full accuracy
    auto        auto.mean_keep, auto.fraction, budgets by family
    hard        difficulties: plain scenes and hard variants
    questions   other questions keep other cells, other words the same
    adaptive    the policy against fixed weights and tensions at equal tokens
    failures    grey text, no structure, bright corners
    weights     weights by family, and what is said of them
    ablation    parts knocked out at inference
    against     gains over the adapter of --against
    others      the adapters of --other NAME=FOLDER
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from arr_coc.files import fingerprint, read_json_object, write_json
from arr_coc.qwen.storage import WEIGHTS_FILE
from studies.mini.evaluation import load_answerer
from studies.selector import ablation, adapters, failures, measures, questions, weights
from studies.selector.measures import Part
from studies.selector.study import ALL_QUESTIONS, Study

LARGER = "px1024"  # key of what was measured on larger scenes
TOGETHER = (LARGER, "others", "runs")  # keys that several parts, or runs of one, fill


@dataclass(frozen=True, slots=True)
class OtherAdapters:
    """Adapters to compare with."""

    against: Path | None = None
    others: Mapping[str, Path] = field(default_factory=dict)


def _both(
    *measures: Callable[[Study, int], Part], larger: Callable[[Study, int], Part] | None = None
) -> Callable[[Study, OtherAdapters], Part]:
    """A part that measures at 512 px and again at 1024 px, where it may measure more."""

    def run(study: Study, given: OtherAdapters) -> Part:
        report = [measure(study, study.size) for measure in measures]
        more = [measure(study, 2 * study.size) for measure in (*measures, *filter(None, [larger]))]
        return {k: v for part in report for k, v in part.items()} | {
            LARGER: {k: v for part in more for k, v in part.items()}
        }

    return run


def _once(measure: Callable[[Study, int], Part]) -> Callable[[Study, OtherAdapters], Part]:
    """A part that measures at 512 px alone."""
    return lambda study, given: measure(study, study.size)


def _against(study: Study, given: OtherAdapters) -> Part:
    if given.against is None:
        raise ValueError("part 'against' compares two adapters: give the other one with --against FOLDER")
    return adapters.against(study, study.size, given.against)


def _others(study: Study, given: OtherAdapters) -> Part:
    if not given.others:
        raise ValueError("part 'others' measures more adapters: give them with --other NAME=FOLDER")
    return adapters.others(study, study.size, given.others)


PARTS: dict[str, Callable[[Study, OtherAdapters], Part]] = {
    "recall": _both(measures.recall, larger=measures.overlap),
    "accuracy": _both(measures.accuracy),
    "auto": _both(measures.auto),
    "hard": _once(adapters.hard),
    "questions": _once(questions.questions),
    "adaptive": _once(ablation.adaptive),
    "failures": _once(failures.failures),
    "weights": _once(weights.weights),
    "ablation": _once(ablation.ablation),
    "against": _against,
    "others": _others,
}


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the keys of `new` in place of its own; keys that several parts fill are merged one level deeper."""
    merged = dict(old)
    for key, value in new.items():
        merged[key] = {**merged.get(key, {}), **value} if key in TOGETHER else value
    return merged


def evaluate(study: Study, parts: Sequence[str], given: OtherAdapters, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report of some parts; `about` says under "runs" what each was measured with."""
    report: dict[str, Any] = {}
    for name in parts:
        started = time.perf_counter()
        found = PARTS[name](study, given)
        seconds = round(time.perf_counter() - started, 1)
        report = merge(report, found | {"runs": {name: {**about, "seconds": seconds}}})
    return report


def mixed_runs(report: Mapping[str, Any]) -> list[str]:
    """Parts that were measured with another model or adapter than the part measured last."""
    runs = list(report.get("runs", {}).items())
    if not runs:
        return []
    same = [runs[-1][1].get(key) for key in ("model", "adapter")]
    return [name for name, run in runs if [run.get(key) for key in ("model", "adapter")] != same]


def named_parts(text: str | None, given: OtherAdapters) -> list[str]:
    """Names of parts from "a,b"; None: all for which there is what they need."""
    if text is None:
        possible = {"against": given.against is not None, "others": bool(given.others)}
        return [name for name in PARTS if possible.get(name, True)]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}: use some of {', '.join(PARTS)}")
    return names


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the command line asks for; returns the whole report."""
    given = OtherAdapters(arguments.against, dict(arguments.other))
    parts = named_parts(arguments.parts, given)
    report = read_json_object(arguments.out)
    if parts:
        on_gpu = torch.device(arguments.device).type == "cuda"
        answerer = load_answerer(arguments.model, arguments.device, torch.bfloat16 if on_gpu else torch.float32)
        adapter = arguments.adapter or arguments.model
        config, layer = adapters.load_fitting(adapter, answerer.model)
        study = Study(answerer, config, layer, arguments.questions, arguments.size, arguments.seed, arguments.log)
        about = {
            "model": fingerprint(arguments.model, "model*.safetensors"),
            "adapter": fingerprint(adapter, WEIGHTS_FILE),
            "sight": config.sight,
            "parameters": sum(parameter.numel() for parameter in layer.parameters()),
            "questions": arguments.questions,
            "size": arguments.size,
            "seed": arguments.seed,
            "device": torch.cuda.get_device_name(arguments.device) if on_gpu else "cpu",
        }
        for name in parts:  # written part by part, so that a long run that is cut short leaves what it has
            report = merge(report, evaluate(study, [name], given, about))
            if arguments.out is not None:
                write_json(arguments.out, report, indent=2)
    if old := mixed_runs(report):
        arguments.log(f"of another model or adapter: {', '.join(old)}; run these parts again")
    if arguments.docs:
        if "weights" not in report:
            raise ValueError("--docs needs the part 'weights': run it first, or name it in --parts")
        weights.write_docs(report["weights"], arguments.docs)
    return report


def _named_folder(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=FOLDER")
    return name, Path(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: see the top of this file."""
    parser = argparse.ArgumentParser(description="Evaluate a trained selector on scenes that it has not seen.")
    parser.add_argument("--model", type=Path, default=Path(__file__).parents[2] / "arr_coc" / "models" / "mini")
    parser.add_argument("--adapter", type=Path, help="folder of the adapter; default: the model's own")
    parser.add_argument("--against", type=Path, help="folder of an adapter to compare with on hard variants")
    parser.add_argument("--other", type=_named_folder, action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--questions", type=int, default=ALL_QUESTIONS, help="at 512 px (1024 px: a quarter)")
    parser.add_argument("--parts", help=f"some of {','.join(PARTS)}; default: all; '': none")
    parser.add_argument("--out", type=Path, help="JSON file to write, or to complete")
    parser.add_argument("--docs", type=Path, help="folder for the table and the plot of the weights")
    parser.add_argument("--size", type=int, default=512, help="px a side of the smaller scenes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)
    arguments.log = lambda line: print(line, flush=True)
    try:
        run(arguments)
    except ValueError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
