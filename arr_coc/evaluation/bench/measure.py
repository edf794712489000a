"""One row of the bench: warm-up, medians and spread of the parts, peak memory."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arr_coc.evaluation.bench.cases import Case, Subject
from arr_coc.qwen.graphs.picking import Picking
from arr_coc.qwen.graphs.recording import Statistics
from arr_coc.qwen.graphs.runner import FastRunner, Job
from arr_coc.qwen.model import ARRCOCQwen
from arr_coc.timing import Stopwatch

PARTS = ("select", "vision", "prefill")
WARM_UPS = 3
DECODES = 3  # generations whose time per token is taken
MEGABYTE = 2**20
Times = dict[str, float]  # milliseconds of select, vision, prefill, and wall: until the token is on the host


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class Peak:
    """Memory at its highest, in MB: in all, and above what was there before (weights and inputs)."""

    total: float = 0.0
    above: float = 0.0


@contextmanager
def watch_peak(device: torch.device) -> Iterator[Peak]:
    """On CUDA what tensors held at most; on a CPU the process's resident memory, where the system tells."""
    peak = Peak()
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / MEGABYTE
        yield peak
        peak.total = torch.cuda.max_memory_allocated(device) / MEGABYTE
    else:
        switch = Path("/proc/self/clear_refs")
        if switch.exists():
            switch.write_text("5")  # forgets the peak so far
        before = resident("VmRSS")
        yield peak
        peak.total = resident("VmHWM")
    peak.above = max(0.0, peak.total - before)


def resident(name: str) -> float:
    """A line of the process's status in MB; 0 where there is no such file."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve a request: once up to the first token, and the time of each token after it."""

    once: Callable[[], Times]
    decode: Callable[[], float]
    recordings: Statistics | None = None  # what could be recorded, where anything was


def measure(subject: Subject, case: Case, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Times and peak of one case, as a row of the results."""
    with watch_peak(torch.device(subject.stock.device)) as peak, torch.no_grad():
        way = way_of(subject, case, inputs)
        for _ in range(WARM_UPS):
            way.once()
        times = [way.once() for _ in range(case.repeats)]
        recorded = None if way.recordings is None else asdict(way.recordings)
        del way
    row = {**describe(subject, case, inputs), **summarize(times), "peak_mb": peak.total, "peak_above_mb": peak.above}
    decode = measure_decode(subject, case, inputs) if case.decode else None
    return {**row, "decode_ms": decode, "recordings": recorded}


def measure_decode(subject: Subject, case: Case, inputs: dict[str, Tensor]) -> float:
    """Milliseconds per token after the first: the median of a few generations, the first of which does not count."""
    with torch.no_grad():
        way = way_of(subject, case, inputs)
        return statistics.median([way.decode() for _ in range(1 + DECODES)][1:])


def describe(subject: Subject, case: Case, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """What the row is about."""
    on_gpu = torch.device(subject.stock.device).type == "cuda"
    mode = case.mode if on_gpu or case.mode == "eager" else "own forward"  # without CUDA there is nothing to capture
    return {
        "model": subject.name,
        "side": case.side,
        "batch": case.batch,
        "tokens": case.tokens,
        "kept": case.tokens if case.dial == 1.0 else case.kept,
        "text_tokens": inputs["input_ids"].shape[1] - case.tokens,
        "encoding": case.encoding,
        "mode": mode,
        "sight": None if case.dial == 1.0 else chooser_of(subject.owner(case)),
    }


def chooser_of(owner: ARRCOCQwen) -> str:
    """What chooses, as rows name it: the sight of the ARR-COC layer, or the name of another selector."""
    return owner.config.sight if owner.selector.name == "arr_coc" else owner.selector.name


def summarize(times: list[Times]) -> dict[str, Any]:
    """Medians in ms; `ttft_ms` is the sum of the parts' medians, `spread_ms` the middle half of its runs."""
    middle = {name: statistics.median(one[name] for one in times) for name in (*PARTS, "wall")}
    sums = sorted(sum(one[name] for name in PARTS) for one in times)
    quarter = len(sums) // 4
    return {
        **{f"{name}_ms": middle[name] for name in PARTS},
        "ttft_ms": sum(middle[name] for name in PARTS),
        "spread_ms": sums[len(sums) - 1 - quarter] - sums[quarter],
        "wall_ttft_ms": middle["wall"],
        "repeats": len(times),
    }


def way_of(subject: Subject, case: Case, inputs: dict[str, Tensor]) -> Way:
    """The way that the case names."""
    owner = subject.owner(case)
    owner.config = replace(owner.config, encoding="dense" if case.encoding == "after-vit" else case.encoding)
    if case.mode != "eager":
        return fast_way(owner, case, inputs)
    return stock_way(owner.model, case, inputs) if case.dial == 1.0 else plain_way(owner, case, inputs)


def fast_way(owner: ARRCOCQwen, case: Case, inputs: dict[str, Tensor]) -> Way:
    """The fast path, with recordings of its own."""
    looker, encoding = owner.looker(), owner.encoding
    job = Job.of(inputs, [case.dial] * case.batch)
    runner = FastRunner(owner.model, compiled=case.mode == "compiled")

    def once() -> Times:
        times = runner.run(looker, encoding, job, Picking(1, (), 0)).timings_ms
        return {**{name: times[name] for name in PARTS}, "wall": times["wall_ttft"]}

    def decode() -> float:
        return runner.run(looker, encoding, job, Picking(1 + case.decode, (), 0)).timings_ms["decode"]

    return Way(once, decode, runner.recordings.statistics)


def eager_way(model: Any, case: Case, serve: Callable[[], Stopwatch], generate: Callable[[int], Any]) -> Way:
    """A way through plain transformers: `serve` gives the first token and says what its parts took."""

    def once() -> Times:
        synchronize(model.device)
        start = time.perf_counter()
        stopwatch = serve()
        wall = 1e3 * (time.perf_counter() - start)
        parts = stopwatch.milliseconds()
        select = sum((value for name, value in parts.items() if name not in PARTS), 0.0)
        return {"select": select, "vision": parts["vision"], "prefill": parts["prefill"], "wall": wall}

    return Way(once, lambda: per_token(generate, case.decode, model.device))


def stock_way(model: Any, case: Case, inputs: dict[str, Tensor]) -> Way:
    """Plain transformers with all tokens: its vision encoder, then its forward with a cache."""
    text = {name: inputs[name] for name in ("input_ids", "attention_mask", "mm_token_type_ids", "image_grid_thw")}
    whole = {name: tensor for name, tensor in inputs.items() if name != "question_mask"}

    def serve() -> Stopwatch:
        stopwatch = Stopwatch(model.device)
        with stopwatch.part("vision"):
            seen = model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"], return_dict=True)
        with stopwatch.part("prefill"):
            _first_token(model, **text, mm_encoder_outputs={"image": seen})
        return stopwatch

    return eager_way(model, case, serve, lambda most: model.generate(**whole, **_greedy(most)))


def plain_way(owner: ARRCOCQwen, case: Case, inputs: dict[str, Tensor]) -> Way:
    """The plain path: chosen and encoded as ever, then the stock forward with a cache."""
    given: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name != "mm_token_type_ids"}

    def serve() -> Stopwatch:
        prepared = owner.prepare(**given, keep=case.dial)
        with prepared.stopwatch.part("prefill"):
            _first_token(owner.model, **prepared.model_inputs())
        return prepared.stopwatch

    def generate(most: int) -> None:
        owner.fast = False
        owner.generate(**given, keep=case.dial, **_greedy(most))

    return eager_way(owner.model, case, serve, generate)


def _first_token(model: Any, **inputs: Any) -> None:
    model(**inputs, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1).tolist()


def _greedy(most: int) -> dict[str, Any]:
    return {"do_sample": False, "max_new_tokens": most, "min_new_tokens": most}


def per_token(generate: Callable[[int], Any], tokens: int, device: torch.device) -> float:
    """Milliseconds of each of `tokens` tokens after the first: a long generation less one of a single token."""
    ends = []
    for most in (1, 1 + tokens):
        synchronize(device)
        start = time.perf_counter()
        generate(most)
        synchronize(device)
        ends.append(1e3 * (time.perf_counter() - start))
    return (ends[1] - ends[0]) / tokens
