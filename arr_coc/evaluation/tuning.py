"""Tuning: what looking twice is worth on one model and one machine, and the settings that suit it.

R questions (rows), N cells of an image.

As many questions are asked as fit into the time. Images are split in two halves. On the first, many settings are tried
by the evidence that they find (a first look and textures, nothing is answered), and the few best by answers; where
nobody knows the evidence, a few settings by answers alone. The second half judges what was picked, beside the even
grid, chance, and all tokens. A batch that Ctrl-C cuts short is left out; all before it counts.
"""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf, log2
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm  # type: ignore[import-untyped]

from arr_coc.config import FirstLook, tokens_to_keep
from arr_coc.evaluation.field.batch import Batch, make_batch
from arr_coc.evaluation.field.data import BRIEF, METRICS, PER_IMAGE, Picture, Record, batches, read_pictures
from arr_coc.evaluation.field.data import scene_pictures as drawn_pictures
from arr_coc.evaluation.field.main import Bench, FieldOptions
from arr_coc.evaluation.field.methods import ENCODINGS, Method, build
from arr_coc.evaluation.field.run import unit
from arr_coc.qwen.familiar import is_mini
from arr_coc.qwen.tuned import TUNED, Settings, default_settings, weights_key
from arr_coc.selectors import PLAIN, settings_of
from arr_coc.selectors.look_twice import LookTwiceSelector
from arr_coc.texture import texture_pyramid

Say = Callable[[str], None]
Answers = dict[Method, list[Record]]
Values = list[tuple[int, float]]  # (image, value) of each question
Found = dict[str, Values]  # the evidence that settings find, by their text

KEEPS = (0.5, 0.25, 0.1, 0.06)  # of the table
CLOSE = (0.1, 0.06)  # where settings are told apart
QUARTER = 0.25
BLIND = ("even_grid", "random")
ALL = Method(PLAIN, "dense", 1.0)
GLANCES = ((36, 144), (64, 256), (100, 400))  # cells of the small copy, at least and at most
DEPTHS = (2 / 7, 3 / 7, 4 / 7, 5 / 7, 1.0)
INFORMATION = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
PERSPECTIVAL = (0.0, 0.25, 0.5)
STEEPNESS = (2.0, 3.0, 4.0, 6.0, 8.0)
PRICE = 0.01  # what a first look of twice the work must find more, to be worth it
USUAL_GRID = (16, 16)  # cells of an image of 512 px
ENOUGH = 0.97  # of the evidence that a quarter of the tokens holds: an automatic budget that keeps so much will do
BELIEVED = 24  # questions from which on the usual steepness is given up
RIVALS = 3  # settings that what is picked is held against

MOST_TOKENS = 16  # of an answer
SIDE, LARGE = 512, 1024  # px of scenes
LARGE_FROM = 96  # questions that must fit before large scenes are judged as well
LARGE_TIME = 0.3  # of the table's time
MOST_QUESTIONS = 2000
ALONE = (256, 512, 1024)  # px of scenes that are asked about one by one, to tell from where on choosing pays
TRIAL, LOOK, CONFIRM = 0.1, 0.2, 0.2  # shares of the time; the rest judges
AT_ONCE = {"cuda": 48, "cpu": 12}  # questions of SIDE px in one batch
TOO_FEW = "tuning needs questions about two images or more: one half picks the settings, the other judges them"


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """What to tune, on what, and for how long."""

    model: str = "mini"
    data: str = "scenes"
    minutes: float = 5.0
    seed: int = 0
    metric: str | None = None  # of generic files
    max_broken: float | None = None  # share of the rows of a file that may be; None: as everywhere
    device: str | None = None
    bar: bool = True
    started: float = 0.0  # time.monotonic() when the time began to run; 0: when the run begins


# ---------------------------------------------------------------- settings that are tried, and what is worth answers


def spec_of(settings: Settings) -> str:
    """Looking twice with these settings, as `read_selector` takes it: what is as ever is left out."""
    changed = [f"{name}={value}" for name, value in settings.items() if value != default_settings()[name]]
    return f"{TUNED}:{','.join(changed)}" if changed else TUNED


def changed(base: Settings, *changes: dict[str, Any]) -> list[Settings]:
    """Settings and others that differ from them by each of the changes, none twice."""
    return list({spec_of(one): one for one in (base, *({**base, **change} for change in changes))}.values())


def first_looks() -> list[Settings]:
    """The usual first look, then others: another size of the small copy, or another depth, not both."""
    sizes = [{"least": least, "most": most} for least, most in GLANCES]
    return changed(default_settings(), *sizes, *({"depth": depth} for depth in DEPTHS))


def with_exponents(look: Settings) -> list[Settings]:
    """A first look with every pair of exponents, its own first."""
    return changed(look, *({"information": g, "perspectival": p} for g in INFORMATION for p in PERSPECTIVAL))


def few_settings() -> list[Settings]:
    """What is tried where only answers tell: the usual settings, and one thing at a time changed."""
    weights = [*({"information": g} for g in (0.0, 0.5, 2.0)), {"perspectival": PERSPECTIVAL[-1]}]
    return changed(default_settings(), *first_looks(), *weights)


def price_of(settings: Settings, layers: int) -> float:
    """What must be gained for what its first look costs: PRICE for twice the usual work, nothing for less."""

    def work(of: Settings) -> int:
        look = FirstLook(of["least"], of["most"], of["depth"])
        height, width = look.grid(USUAL_GRID)
        return height * width * look.layers(layers)

    return max(0.0, PRICE * log2(work(settings) / work(default_settings())))


def sure_gain(values: Values, usual: Values) -> float:
    """Mean gain over the usual settings on the same questions, less twice its standard error over images."""
    gains = np.array([value for _, value in values]) - np.array([value for _, value in usual])
    places = np.unique([image for image, _ in values], return_inverse=True)[1]
    if not gains.any():
        return 0.0
    error = np.sqrt(np.square(np.bincount(places, gains - gains.mean())).sum()) / len(gains)
    return float(gains.mean() - 2 * error) if places.max() else -1.0  # one image tells nothing


def ranked(tried: Found, layers: int) -> list[Settings]:
    """The one rule that picks: settings by what they surely gain over the usual ones, less their price; best first."""
    settings = {spec: {**default_settings(), **settings_of(spec)[1]} for spec in tried}
    losses = {spec: price_of(one, layers) - sure_gain(tried[spec], tried[TUNED]) for spec, one in settings.items()}
    return [settings[spec] for spec in sorted(tried, key=lambda spec: losses[spec])]


def finalists(found: Found, layers: int) -> list[Settings]:
    """The usual settings, the best ones, the best of each thing put together, and the best with another first look."""
    usual, order = default_settings(), ranked(found, layers)
    size = next(one for one in order if one["depth"] == usual["depth"])
    depth = next(one for one in order if one["least"] == usual["least"])
    together = {**order[0], "least": size["least"], "most": size["most"], "depth": depth["depth"]}
    other = [one for one in order if any(one[key] != order[0][key] for key in ("least", "most", "depth"))]
    return changed(usual, order[0], together, *other[:1])


def kept_share(keep_RN: Tensor, evidence_RN: Tensor, most_R: Tensor | None = None) -> list[float | None]:
    """Share of each row's evidence that is kept, of the most that so many cells could hold; None without evidence."""
    wanted_R = evidence_RN.sum(-1)
    possible_R = wanted_R if most_R is None else torch.minimum(wanted_R, most_R)
    share_R = (keep_RN & evidence_RN).sum(-1) / possible_R.clamp(min=1)
    return [share if there else None for share, there in zip(share_R.tolist(), wanted_R.tolist(), strict=True)]


class Tuner:
    """One run. What it has found so far is whole at any time, so that it may be ended at any time."""

    def __init__(self, options: TuneOptions, say: Say) -> None:
        self.options, self.say, self.started = options, say, options.started or time.monotonic()
        named: dict[str, Any] = {"model": options.model, "selectors": (TUNED, *BLIND, PLAIN), "device": options.device}
        self.bench = Bench(FieldOptions(**named, dtype="auto", most_tokens=MOST_TOKENS))
        self.owner = self.bench.owner
        self.key = weights_key(options.model)
        self.layers = int(self.owner.model.config.text_config.num_hidden_layers)
        self.brief = "" if is_mini(self.owner.processor.tokenizer) else f" {BRIEF}"
        self.end = self.started + 60 * options.minutes - min(3 * options.minutes, 10)  # when the last answer is there
        self.alone: list[dict[str, Any]] = []  # per size, ms of one question by itself
        self.found: Found = {}  # evidence by settings
        self.final: list[Settings] = []
        self.confirmed: Answers = {}
        self.kept: dict[tuple[str, float | None], list[tuple[float, float]]] = {}  # (tokens, evidence) by steepness
        self.picked: Settings = {}  # empty until then
        self.judged: dict[str, Answers] = {}  # per group of images

    def run(self) -> None:
        """All stages; an interrupt goes through, and leaves what was found."""
        one, each = self.trial()
        left, scenes = self.end - time.monotonic(), self.options.data == "scenes"
        looking, confirming = (self.end - left * share for share in (1 - LOOK, 1 - LOOK - CONFIRM))
        count = min(MOST_QUESTIONS, 4 * PER_IMAGE + int(4 * left / each))
        pictures = self.pictures(count)
        if len(pictures) < 2:
            raise ValueError(TOO_FEW)
        first, second = pictures[::2], pictures[1::2]
        large = self.pictures(count // 8, LARGE) if scenes and left / each >= LARGE_FROM else []
        with tqdm(total=round(left), unit=" s", disable=None if self.options.bar else True) as self.bar:
            if any(query.boxes for picture in first for query in picture.queries):
                self._through("evidence", first, looking, len(first_looks()) * one, self._look)
                self.final = finalists(self.found, self.layers)
            else:
                self.final = few_settings()
            self._through("answers", first, confirming, 2 * len(self.final) * one, self._confirm)
            self.picked = self._pick()
            until = self.end - (LARGE_TIME * (self.end - confirming) if large else 0)
            self._through("table", second, until, each, self._judge(f"{SIDE} px" if scenes else ""))
            self._through("table", large, self.end, each, self._judge(f"{LARGE} px"))

    def pictures(self, questions: int, side: int = SIDE) -> list[Picture]:
        """Images with about so many short questions in all, asked as the model needs it."""
        options, lenient = self.options, {} if self.options.metric else {"exact": "contains"}

        def short_ones(picture: Picture) -> Picture:
            asked = (one for one in picture.queries if one.metric != "f1")  # every model describes in its own words
            metrics = [(one, lenient.get(one.metric, one.metric)) for one in asked]
            return replace(picture, queries=tuple(replace(o, text=o.text + self.brief, metric=m) for o, m in metrics))

        what = (questions, side, options.seed, options.metric)
        read = read_pictures(options.data, *what, self.say, max_broken=options.max_broken)
        return [picture for picture in map(short_ones, read) if picture.queries]

    # ---------------------------------------------------------------- the clock

    def trial(self) -> tuple[float, float]:
        """Seconds of an answer by looking twice, and of a question in the whole table; what will fit is told."""
        until = 60 * TRIAL * self.options.minutes
        self._time_alone(self.started + until)
        pictures = self.pictures(PER_IMAGE)[:1]
        if not pictures:
            raise ValueError(TOO_FEW)
        few, ways = [replace(pictures[0], queries=pictures[0].queries[:2])], self._methods(default_settings())
        kinds = {self._kind(method): method for method in reversed(ways)}
        seconds = dict.fromkeys(kinds, inf)
        for _ in range(2):  # the first call of anything is slow
            batch = make_batch(self.owner, few)
            for kind, method in kinds.items():
                began = time.monotonic()
                self._answer(batch, [method])
                seconds[kind] = min(seconds[kind], (time.monotonic() - began) / batch.rows)
            if time.monotonic() > self.started + 2 * until:
                break
        each = sum(seconds[self._kind(method)] for method in ways)
        share = (1 - LOOK - CONFIRM) * (self.end - time.monotonic())
        if each > share:
            minutes = self.options.minutes + (each - share) / (1 - LOOK - CONFIRM) / 60
            raise ValueError(f"too little time, a question takes {each:.0f} s here: give --minutes {minutes + 1:.0f}")
        minutes = (self.end - self.started) / 60
        self.say(f"about {share / each:.0f} questions will be judged: done in {minutes:.1f} minutes")
        return seconds[self._kind(Method(TUNED, "sparse", QUARTER))], each

    def _kind(self, method: Method) -> Hashable:
        """What methods of about one duration have in common."""
        return method.name in BLIND, method.name == PLAIN, self.bench.engine_of(method) is self.bench.plain

    def _time_alone(self, until: float) -> None:
        """ms to the first token of one question by itself, as the product asks it: all tokens, a quarter of them."""
        owner = self.owner
        before, owner.selector, owner.fast = owner.selector, self.bench.selectors[TUNED], None
        for side in ALONE:
            picture, row = drawn_pictures(1, side, self.options.seed)[0], dict[str, Any]()
            image = Image.fromarray(picture.read())
            for name, keep in (("all_ms", 1.0), ("quarter_ms", QUARTER)):
                times: list[float] = []
                while len(times) < 2 or (len(times) < 4 and time.monotonic() < until):
                    owner.memory.clear()
                    began = time.perf_counter()
                    answer = owner.ask(image, picture.queries[0].text, keep=keep, max_new_tokens=1)
                    times.append(1e3 * (time.perf_counter() - began))
                row |= {"tokens": answer.tokens_total, name: round(min(times), 1)}
            self.alone.append(row)
            if time.monotonic() > until:
                break
        owner.selector, owner.fast, owner.fast_runner = before, False, None

    def _through(
        self, stage: str, pictures: Sequence[Picture], until: float, each: float, work: Callable[[Batch], None]
    ) -> None:
        """Batches of images for as long as there is time, at least one. A batch may take half of what is left of it.

        `each` are the seconds that a question about an image of SIDE px is thought to take; what is seen corrects it.
        """
        cell, waiting = self.owner.geometry.cell, list(pictures)
        usual, done = (SIDE // cell) ** 2, False
        self.bar.set_description(stage)
        while waiting:
            began = time.monotonic()
            fitting = (until - began) / each
            if done and fitting < 1.5:
                return
            rows = max(1, min(AT_ONCE[self.owner.device.type], int(fitting / 2)))
            part = next(batches(waiting, rows * usual, cell))
            taken = {picture.number for picture in part}
            waiting = [picture for picture in waiting if picture.number not in taken]
            batch = make_batch(self.owner, [replace(picture, queries=picture.queries[:rows]) for picture in part])
            work(batch)
            done, seconds = True, time.monotonic() - began
            each = seconds * usual / (batch.rows * batch.cells)
            self.bar.update(min(self.bar.total, round(time.monotonic() - self.end + self.bar.total)) - self.bar.n)

    # ---------------------------------------------------------------- picking and judging

    def _look(self, batch: Batch) -> None:
        """Evidence that all settings find, mean over the budgets that tell them apart."""
        owner, pixels = self.owner, batch.pixels()[0]
        pyramid = texture_pyramid(pixels, batch.grid, LookTwiceSelector.channels)
        asked_R = owner.looker().question_of(batch.request).asked_B
        evidence_RN = batch.told(True)["evidence_BHW"].flatten(1)
        budgets = [torch.full_like(batch.image_R, tokens_to_keep(keep, batch.cells) or 0) for keep in CLOSE]
        found: Found = {}
        for look in first_looks():
            selectors: dict[str, Any] = build(owner, [spec_of(one) for one in with_exponents(look)])
            looker = replace(owner.looker(), selector=selectors[spec_of(look)])
            seen = looker.first_looker().look(batch.request, list(pixels), batch.image_R.tolist())
            attended_RHW = torch.stack(seen.view["attended_BN"]).view(-1, *batch.grid)
            for spec, selector in selectors.items():
                judgement = selector.weigh(selector.seen(pyramid), attended_RHW, asked_R, batch.image_R)
                chosen = [(selector.choose(judgement, k_R).keep_BHW.flatten(1), k_R) for k_R in budgets]
                several = (kept_share(keep_RN, evidence_RN, k_R) for keep_RN, k_R in chosen)
                pairs = zip(batch.pictures, *several, strict=True)
                known = ((picture.number, shares) for picture, *shares in pairs if None not in shares)
                found[spec] = [(image, sum(shares) / len(shares)) for image, shares in known]
        _extend(self.found, found)

    def _answer(self, batch: Batch, methods: Sequence[Method]) -> Answers:
        """Answers of each method. Where nobody knows the right one, it is the model's own with all tokens."""
        new = {method.selector for method in methods} - {*self.bench.selectors, PLAIN}
        self.bench.selectors.update(build(self.owner, sorted(new)))
        made = {method: unit(batch, method, self.bench.engine_of(method)) for method in methods}
        own = [record["answer"] for record in made.get(ALL, ())]
        for records in made.values():
            for place, record in enumerate(records):
                if record["score"] is None and own:
                    record["score"] = METRICS["contains"](record["answer"], [own[place]])
        return made

    def _confirm(self, batch: Batch) -> None:
        """Answers with the finalists, and automatic budgets: by the evidence kept or, where unknown, by answers."""
        specs = [spec_of(one) for one in self.final]
        methods = [Method(spec, "sparse", keep) for spec in specs for keep in CLOSE]
        if not self.found or any(query.metric == "none" or not query.answers for query in batch.queries):
            methods.append(ALL)
        steep: dict[float | None, Method] = {} if self.found else {None: Method(TUNED, "sparse", QUARTER)}
        for steepness in () if self.found else STEEPNESS[::2]:
            steep[steepness] = Method(spec_of({**default_settings(), "steepness": steepness}), "sparse", "auto")
        made = self._answer(batch, [*methods, *steep.values()])
        told = {n: [(r["tokens"] / r["total"], r["score"]) for r in made[method]] for n, method in steep.items()}
        by_spec = {spec: told or self._automatic(batch, spec) for spec in specs}
        _extend(self.confirmed, made)
        _extend(self.kept, {(spec, n): pairs for spec, of in by_spec.items() for n, pairs in of.items()})

    def _automatic(self, batch: Batch, spec: str) -> dict[float | None, list[tuple[float, float]]]:
        """(share of the tokens, share of the evidence) of automatic budgets by steepness; None: of a quarter."""
        selector = self.bench.selectors[spec]
        judgement = batch.judged(spec, selector)[0]
        evidence_RN = batch.told(True)["evidence_BHW"].flatten(1)
        before, found = float(selector.allocator.steepness), {}
        for steepness in (None, *STEEPNESS):
            selector.allocator.steepness.fill_(steepness or before)
            k_R = selector.automatic_budget(judgement)
            k_R = torch.full_like(k_R, tokens_to_keep(QUARTER, batch.cells) or 0) if steepness is None else k_R
            shares = kept_share(selector.choose(judgement, k_R).keep_BHW.flatten(1), evidence_RN)
            pairs = zip((k_R / batch.cells).tolist(), shares, strict=True)
            found[steepness] = [(tokens, share) for tokens, share in pairs if share is not None]
        selector.allocator.steepness.fill_(before)
        return found

    def _pick(self) -> Settings:
        """The finalist with the best answers and evidence for what its first look costs, and its steepness."""
        tried: Found = {}
        for spec in map(spec_of, self.final):
            records = [r for keep in CLOSE for r in self.confirmed[Method(spec, "sparse", keep)]]
            pairs = [(r["image"], [v for v in (r["score"], r["recall"]) if v is not None]) for r in records]
            tried[spec] = [(image, sum(known) / len(known)) for image, known in pairs if known]
        self.final = ranked(tried, self.layers)
        (_, quarter), *automatic = ((n, self.kept.get((spec_of(self.final[0]), n), [])) for n in (None, *STEEPNESS))
        wanted = ENOUGH * sum(share for _, share in quarter)
        enough = [(sum(tokens for tokens, _ in of), n) for n, of in automatic if of and sum(s for _, s in of) >= wanted]
        believed = enough and len(quarter) >= BELIEVED
        return {**self.final[0], "steepness": min(enough)[1]} if believed else self.final[0]

    def rivals(self) -> list[str]:
        """What was tried by answers and not picked: the best of these, and the usual settings."""
        usual = default_settings()
        others = [one for one in self.final[1:] if one != usual][: RIVALS - 1]
        return [spec_of(one) for one in (*others, *([usual] if usual in self.final[1:] else []))]

    def _methods(self, settings: Settings) -> list[Method]:
        """What the table holds: the tuned and the blind choices in every encoding, all tokens, and the rivals."""
        spec = spec_of(settings)
        blind = {"sparse": BLIND, "dense": BLIND}  # other encodings begin with a first look
        wide = [Method(one, way, keep) for way in ENCODINGS for one in (spec, *blind.get(way, ())) for keep in KEEPS]
        close = [Method(rival, "sparse", keep) for rival in self.rivals() for keep in CLOSE]
        return [*wide, Method(spec, "sparse", "auto"), ALL, *close]

    def _judge(self, group: str) -> Callable[[Batch], None]:
        methods = self._methods(self.picked)
        return lambda batch: _extend(self.judged.setdefault(group, {}), self._answer(batch, methods))


def _extend(held: dict[Any, list[Any]], more: dict[Any, list[Any]]) -> None:
    for key, values in more.items():
        held.setdefault(key, []).extend(values)
