"""What the parts of looking twice are worth for the choice: exponents, rules for them, knock-outs, planted sinks.

    python -m studies.look_twice.choice --out results/look-twice-choice.json

R questions (rows), N cells, G exponents, H W grid of cells, h w grid of a small copy.

Evidence is told by recall: the share of the cells with the answer that are among the best K. What a rule is fitted on
(`--fit`) and what it is tried on (`--seed`) are different scenes. Answers are asked for only where it says so.
"""

import argparse
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from arr_coc.config import blind_names
from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import Picture, batches, scene_pictures, score
from arr_coc.evaluation.field.engines import FastEngine, PlainEngine
from arr_coc.evaluation.field.methods import Method, build
from arr_coc.files import write_json
from arr_coc.knowing import inside_bits
from arr_coc.qwen.first_look import spread_over
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.records import Judgement, TexturePyramid
from arr_coc.selectors.look_twice import LookTwiceSelector

EXPONENTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)  # of information
BUDGETS = (0.06, 0.1, 0.25)  # shares KEPT
AT = 0  # of BUDGETS: where exponents are told apart
LEAST_WORDS = 12  # questions that a word must be in to be a feature of the rule
RIDGES = (10.0, 100.0, 1000.0)
SINKS = ((2, 3.0), (4, 3.0), (4, 10.0), (8, 10.0))  # cells of the small copy, times the most attention
CELLS_AT_ONCE = 12_288
NOT_CHOOSING = ("vision", "prefill", "generate")


@dataclass(frozen=True, slots=True)
class Sample:
    """One question: recall by exponent and budget, and what a rule may read."""

    family: str
    words: frozenset[str]
    maps: Tensor  # features of the maps
    recall_GB: Tensor
    knocked_B: dict[str, Tensor]


def recall_of(relevance_RHW: Tensor, evidence_RN: Tensor) -> Tensor:
    """Share of each row's evidence among its best cells, for every budget: `[R, budgets]`."""
    order = relevance_RHW.flatten(1).sort(dim=-1, descending=True, stable=True).indices
    found_RN = evidence_RN.gather(1, order).float().cumsum(-1) / evidence_RN.sum(-1, keepdim=True).clamp(min=1)
    places = [max(1, round(budget * evidence_RN.shape[1])) - 1 for budget in BUDGETS]
    return found_RN[:, places]


def features_of(judgement: Judgement) -> Tensor:
    """What the maps look like, `[R, 8]`: how even each is, how they agree, how much lies at their peaks."""
    information, wanted = (judgement.maps[name].flatten(1).clamp(min=1e-4) for name in ("information", "participatory"))
    shares = [one / one.sum(-1, keepdim=True) for one in (information, wanted)]
    even = [-(share * share.log()).sum(-1) for share in shares]
    logs = [one.log() - one.log().mean(-1, keepdim=True) for one in (information, wanted)]
    spread = [one.square().mean(-1).sqrt() for one in logs]
    agree = (logs[0] * logs[1]).mean(-1) / (spread[0] * spread[1]).clamp(min=1e-6)
    top = [share.sort(-1, descending=True).values[:, : share.shape[1] // 16].sum(-1) for share in shares]
    return torch.stack([*even, *spread, agree, *top, information.mean(-1)], dim=-1)


def collect(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> list[Sample]:
    """Every question that has evidence; the first look is taken once."""
    specs = {g: f"look_twice:information={g}" for g in EXPONENTS}
    selectors = build(owner, specs.values())
    found: list[Sample] = []
    for part in batches(pictures, CELLS_AT_ONCE, owner.geometry.cell):
        looked = make_batch(owner, part)
        evidence_RN = looked.told(True)["evidence_BHW"].flatten(1)
        judged = {g: looked.judge(selectors[spec])[0] for g, spec in specs.items()}
        recall_RGB = torch.stack(
            [recall_of(j.balance.relevance_BHW, evidence_RN) for j in judged.values()], dim=1
        ).cpu()
        one = judged[1.0]
        alone = {name: recall_of(one.maps[name], evidence_RN).cpu() for name in one.maps}
        features_RF = features_of(one).cpu()
        for row, query in enumerate(looked.queries):
            if evidence_RN[row].any():
                words = frozenset(re.findall("[a-z]+", query.text.lower()))
                knocked = {name: recall[row] for name, recall in alone.items()}
                found.append(Sample(query.family, words, features_RF[row], recall_RGB[row], knocked))
    return found


# ---------------------------------------------------------------- exponents and rules


def rule(fit: Sequence[Sample], test: Sequence[Sample], reads: str) -> dict[str, Any]:
    """A linear rule from what it reads to the exponent, fitted on some questions and tried on others.

    It predicts what each exponent finds above the mean of all; its strength of shrinking is the best on the fit.
    """
    counted = Counter(word for sample in fit for word in sample.words)
    vocabulary = sorted(word for word, count in counted.items() if count >= LEAST_WORDS)

    def rows(samples: Sequence[Sample]) -> Tensor:
        words = torch.tensor([[float(word in sample.words) for word in vocabulary] for sample in samples])
        maps = torch.stack([sample.maps for sample in samples])
        return torch.cat([part for name, part in (("words", words), ("maps", maps)) if name in reads], dim=1)

    (known_RF, new_RF), (known_RG, new_RG) = (
        (make(fit), make(test)) for make in (rows, lambda samples: torch.stack([s.recall_GB[:, AT] for s in samples]))
    )
    mean, spread = known_RF.mean(0), known_RF.std(0).clamp(min=1e-6)
    known_RF, new_RF = (F.pad((x - mean) / spread, (0, 1), value=1.0) for x in (known_RF, new_RF))
    best: tuple[float, Tensor] | None = None
    for ridge in RIDGES:
        target = known_RG - known_RG.mean(1, keepdim=True)
        weights = torch.linalg.solve(known_RF.T @ known_RF + ridge * torch.eye(known_RF.shape[1]), known_RF.T @ target)
        reached = float(known_RG.gather(1, (known_RF @ weights).argmax(1, keepdim=True)).mean())
        if best is None or reached > best[0]:
            best = reached, weights
    assert best is not None
    return {"fit": best[0], "test": float(new_RG.gather(1, (new_RF @ best[1]).argmax(1, keepdim=True)).mean())}


def exponents(fit: Sequence[Sample], test: Sequence[Sample]) -> dict[str, Any]:
    """Recall by exponent, the best fixed one, what rules gain over it, and what could be gained."""
    tables = {"fit": fit, "test": test}
    recall = {name: torch.stack([sample.recall_GB for sample in samples]) for name, samples in tables.items()}
    best = int(recall["fit"][:, :, AT].mean(0).argmax())
    fixed = float(recall["test"][:, best, AT].mean())
    families: dict[str, Any] = {}
    for family in sorted({sample.family for sample in test}):
        of_family = torch.stack([sample.recall_GB[:, AT] for sample in test if sample.family == family])
        families[family] = {"n": len(of_family), "recall": of_family.mean(0).tolist()}
    by_family = sum(max(one["recall"]) * one["n"] for one in families.values()) / len(test)
    rules = {reads: rule(fit, test, reads) for reads in ("words", "maps", "words and maps")}
    return {
        "exponents": list(EXPONENTS),
        "budgets": list(BUDGETS),
        "recall": recall["test"].mean(0).tolist(),
        "best_fixed": EXPONENTS[best],
        "recall_fixed": fixed,
        "families": families,
        "rules": rules,
        "best_of_each_family": by_family,
        "best_of_each_question": float(recall["test"][:, :, AT].amax(1).mean()),
        "gain_of_the_best_rule": max(one["test"] for one in rules.values()) - fixed,
    }


# ---------------------------------------------------------------- planted sinks and automatic budgets, by answers


class PlantedSelector(LookTwiceSelector):
    """Looking twice with attention drawn to the emptiest cells of the small copy; only the glance is altered."""

    sinks, times = 0, 1.0

    def seen(self, pyramid: TexturePyramid) -> dict[str, Tensor]:
        return super().seen(pyramid) | {"information": inside_bits(pyramid, blind_names(self.channels)).mean(1)}

    def weigh(
        self, seen: dict[str, Tensor], attended_RHW: Tensor, asked_R: Tensor, image_R: Tensor | None = None
    ) -> Judgement:
        if self.sinks:
            grid = (attended_RHW.shape[1], attended_RHW.shape[2])
            assert self.first_look is not None
            small = self.first_look.grid(grid)
            information_BHW = seen["information"]
            information_RHW = information_BHW if image_R is None else information_BHW[image_R]
            empty_Rn = (
                F.adaptive_max_pool2d(information_RHW, small)
                .flatten(1)
                .sort(dim=-1, stable=True)
                .indices[:, : self.sinks]
            )
            seen_Rn = F.adaptive_avg_pool2d(attended_RHW, small).flatten(1)
            most_R1 = seen_Rn.amax(-1, keepdim=True)
            planted = seen_Rn.scatter(1, empty_Rn, (self.times * most_R1).expand(-1, self.sinks).contiguous())
            attended_RHW = spread_over(planted.view(-1, 1, *small), grid).squeeze(1)
        return super().weigh(seen, attended_RHW, asked_R, image_R)


def sinks(owner: ARRCOCQwen, pictures: Sequence[Picture], keep: float) -> list[dict[str, Any]]:
    """Accuracy of sparse answers with so many sinks of so many times the most attention."""
    plain = build(owner, ["look_twice"])["look_twice"]
    assert isinstance(plain, LookTwiceSelector)
    planted = PlantedSelector(owner.arr_coc_config).to(owner.device)
    engine = FastEngine(owner, {"look_twice": planted}, 96)
    parts = [make_batch(owner, part) for part in batches(pictures, CELLS_AT_ONCE, owner.geometry.cell)]
    rows: list[dict[str, Any]] = []
    for count, times in ((0, 1.0), *SINKS):
        planted.sinks, planted.times = count, times
        scores: list[float] = []
        for batch in parts:
            made = engine.run(replace(batch, known={}), Method("look_twice", "sparse", keep))
            answers = zip(batch.queries, made.answers, strict=True)
            scores += [score(query.metric, given, query.answers) or 0.0 for query, given in answers]
        rows.append({"sinks": count, "times": times, "n": len(scores), "accuracy": sum(scores) / len(scores)})
    return rows


def automatic(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> dict[str, Any]:
    """Tokens and accuracy of keep="auto" without an adapter, beside all tokens."""
    engine = PlainEngine(owner, build(owner, ["look_twice"]), 96)
    whole, chosen, tokens = [], [], []
    families: dict[str, list[float]] = {}
    for part in batches(pictures, CELLS_AT_ONCE, owner.geometry.cell):
        looked = make_batch(owner, part)
        auto = engine.run(looked, Method("look_twice", "sparse", "auto"))
        plain = engine.run(looked, Method("plain", "dense", 1.0))
        for row, query in enumerate(looked.queries):
            whole.append(score(query.metric, plain.answers[row], query.answers) or 0.0)
            chosen.append(score(query.metric, auto.answers[row], query.answers) or 0.0)
            tokens.append(auto.tokens[row] / looked.cells)
            families.setdefault(query.family, []).append(tokens[-1])
    full, kept = sum(whole) / len(whole), sum(chosen) / len(chosen)
    shares = {family: sum(values) / len(values) for family, values in sorted(families.items())}
    mean = sum(tokens) / len(tokens)
    return {"n": len(whole), "tokens": mean, "accuracy": kept, "all": full, "kept": kept / full, "families": shares}


def second_question(owner: ARRCOCQwen, pictures: Sequence[Picture]) -> dict[str, Any]:
    """Ms of the choice for a first and a second question about the same image, and the share that the second takes."""
    spent: list[list[float]] = [[], []]
    for picture in pictures:
        image = Image.fromarray(picture.read())
        owner.memory.clear()
        for number, query in enumerate(picture.queries[:2]):
            timings = owner.ask(image, query.text, keep=0.1, max_new_tokens=1).timings_ms
            spent[number].append(sum(ms for part, ms in timings.items() if part not in NOT_CHOOSING))
    first, second = (statistics.median(values) for values in spent)
    return {"images": len(pictures), "first_ms": first, "second_ms": second, "share": second / first}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--questions", type=int, default=900, help="that a rule is tried on")
    parser.add_argument("--fit", type=int, default=1200, help="that it is fitted on")
    parser.add_argument("--answers", type=int, default=300, help="for sinks and automatic budgets; 0: none")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--seeds", type=int, nargs=2, default=(4242, 777), help="of the fit and of the test")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    owner = ARRCOCQwen.from_pretrained(options.model, selector="look_twice", fast=False, dtype="float32")
    owner.arr_coc_config = replace(owner.arr_coc_config, encoding="sparse")
    fit_seed, seed = options.seeds
    fit = collect(owner, scene_pictures(options.fit, options.side, fit_seed))
    test = collect(owner, scene_pictures(options.questions, options.side, seed))
    found: dict[str, Any] = {"side": options.side, "seeds": [fit_seed, seed], "exponents": exponents(fit, test)}
    found["alone"] = {
        name: torch.stack([sample.knocked_B[name] for sample in test]).mean(0).tolist() for name in test[0].knocked_B
    }
    write_json(options.out, found)
    if options.answers:
        asked = scene_pictures(options.answers, options.side, seed)
        found["sinks"] = sinks(owner, asked, 0.25)
        write_json(options.out, found)
        found["automatic"] = automatic(owner, asked)
        found["second_question"] = second_question(owner, scene_pictures(60, 1024, seed))
    write_json(options.out, found)


if __name__ == "__main__":
    main()
