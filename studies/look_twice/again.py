"""Looking again when unsure: which confidence to trust, and whether a second look is worth its tokens.

python -m studies.look_twice.again --samples runs/again --questions 480                       on a CPU, an hour or so
python -m studies.look_twice.again --samples runs/again --questions 4000 --device cuda        on a GPU

Answers are kept in the folder of samples, by split and seed; what is there is not asked again. The threshold of each
rule is chosen on one seed and reported on the other.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from arr_coc.qwen import ARRCOCQwen
from studies.look_twice.asking_again import START, Tried, as_json, from_json, try_split
from studies.look_twice.rules import CHOSEN, Rule, fixed_curve, outcome, reliability, separations

SPLITS = ("seen", "unseen")
CHOSEN_ON, REPORTED = 4242, 777  # seeds
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RULES = {
    "10 %, doubled": Rule(False, "double", 0.0),
    "10 %, doubled, the surest": Rule(False, "double", 0.0, "surest"),
    "10 %, doubled once": Rule(False, "once", 0.0),
    "10 %, then all": Rule(False, "all", 0.0),
    "auto, doubled": Rule(True, "double", 0.0),
    "auto, doubled, the surest": Rule(True, "double", 0.0, "surest"),
    "auto, doubled once": Rule(True, "once", 0.0),
    "auto, then all": Rule(True, "all", 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, required=True, help="folder of answers, made or gone on with")
    parser.add_argument("--questions", type=int, default=1200, help="of each split and seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/look-again.json"))
    options = parser.parse_args()
    options.samples.mkdir(parents=True, exist_ok=True)
    tried = {(split, seed): read(options, split, seed) for seed in (REPORTED, CHOSEN_ON) for split in SPLITS}
    options.out.write_text(json.dumps(summed(tried), indent=1) + "\n")


def read(options: argparse.Namespace, split: str, seed: int) -> list[Tried]:
    """The answers of one split and seed, asked for where they are not there."""
    path = options.samples / f"{split}-{seed}.json"
    if not path.is_file():
        how: dict[str, Any] = {"selector": "look_twice", "encoding": "sparse", "dtype": "float32"}
        owner = ARRCOCQwen.from_pretrained("mini", device=options.device, **how)
        path.write_text(json.dumps(as_json(try_split(owner, split, seed, options.questions))))
    return from_json(json.loads(path.read_text()))


def summed(tried: dict[tuple[str, int], list[Tried]]) -> dict[str, Any]:
    """The tables."""
    return {
        "about": {
            "model": "mini",
            "selector": "look_twice, sparse, 512 px",
            "questions": {f"{split}, seed {seed}": len(rows) for (split, seed), rows in tried.items()},
            "chosen_on": CHOSEN_ON,
            "reported": REPORTED,
            "confidence": CHOSEN,
        },
        "splits": {split: _split(tried, split) for split in SPLITS},
    }


def _split(tried: dict[tuple[str, int], list[Tried]], split: str) -> dict[str, Any]:
    rows = tried[split, REPORTED]
    return {
        "auroc": separations(rows, START),
        "reliability": reliability(rows, START),
        "fixed": fixed_curve(rows),
        "rules": {name: _rule(tried, split, rule) for name, rule in RULES.items()},
    }


def _rule(tried: dict[tuple[str, int], list[Tried]], split: str, rule: Rule) -> dict[str, Any]:
    """A rule at every threshold, without looking again, and at the threshold that is best on the other seed."""
    baseline = "over_scaled" if rule.automatic else "over_fixed"
    every = [Rule(rule.automatic, rule.goes, unsure, rule.gives) for unsure in THRESHOLDS]
    both = [one for name in SPLITS for one in tried[name, CHOSEN_ON]]
    gains = [outcome(both, one)[baseline]["mean"] for one in every]
    best = every[gains.index(max(gains))]
    rows = tried[split, REPORTED]
    return {
        "one_look": outcome(rows, rule),
        "thresholds": [outcome(rows, one) for one in every],
        "chosen": outcome(rows, best),
    }


if __name__ == "__main__":
    main()
