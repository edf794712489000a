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
from arr_coc.qwen.graphs.recording import Statistics
from arr_coc.qwen.graphs.rules import Picking
from arr_coc.qwen.graphs.runner import FastRunner
from arr_coc.qwen.memory import Memory
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


@contextmanager
def watch_peak(device: torch.device) -> Iterator[dict[str, float]]:
    """Memory at its highest, in MB: `peak_mb` in all, `peak_above_mb` above what was there (weights and inputs).

    On CUDA what tensors held at most; on a CPU the process's resident memory, where the system tells.
    """
    peak: dict[str, float] = {}
    gc.collect()  # what goes meanwhile would be taken from what comes
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) / MEGABYTE
    else:
        switch = Path("/proc/self/clear_refs")
        if switch.exists():
            switch.write_text("5")  # forgets the peak so far
        before = resident("VmRSS")
    yield peak
    most = torch.cuda.max_memory_allocated(device) / MEGABYTE if device.type == "cuda" else resident("VmHWM")
    peak |= {"peak_mb": most, "peak_above_mb": max(0.0, most - before)}


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


@torch.no_grad()
def measure(subject: Subject, case: Case, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Times and peak of one case, as a row of the results."""
    device, whole = torch.device(subject.stock.device), case.dial == 1.0
    with watch_peak(device) as peak:
        way = way_of(subject, case, inputs)
        for _ in range(WARM_UPS):
            way.once()
        times = [way.once() for _ in range(case.repeats)]
        recorded = None if way.recordings is None else asdict(way.recordings)
        del way
    decode = None
    if case.decode:  # ms per token after the first: the median of a few generations, the first of which does not count
        way = way_of(subject, case, inputs)
        decode = statistics.median([way.decode() for _ in range(1 + DECODES)][1:])
    selector = subject.owner(case).selector.name
    return {
        "model": subject.name,
        "side": case.side,
        "batch": case.batch,
        "tokens": case.tokens,
        "kept": case.tokens if whole else case.kept,
        "text_tokens": inputs["input_ids"].shape[1] - case.tokens,
        "encoding": case.encoding,
        # Without CUDA there is nothing to capture.
        "mode": case.mode if device.type == "cuda" or case.mode == "eager" else "own forward",
        "sight": None if whole else (subject.owner(case).arr_coc_config.sight if selector == "arr_coc" else selector),
        **summarize(times),
        **peak,
        "decode_ms": decode,
        "recordings": recorded,
    }


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
    owner.memory = Memory(0)  # what is measured is a first question: nothing is remembered of an image
    encoding = "dense" if case.encoding == "after-vit" else case.encoding
    owner.arr_coc_config = replace(owner.arr_coc_config, encoding=encoding)
    return (eager_way if case.mode == "eager" else fast_way)(owner, case, inputs)


def fast_way(owner: ARRCOCQwen, case: Case, inputs: dict[str, Tensor]) -> Way:
    """The fast path, with recordings of its own."""
    looker, encoding = owner.looker(), owner.encoding
    runner = FastRunner(owner.model, compiled=case.mode == "compiled")

    def run(most: int) -> Times:
        return runner.run(looker, encoding, inputs, [case.dial] * case.batch, Picking(most, (), 0)).timings_ms

    def once() -> Times:
        times = run(1)
        return {**{name: times[name] for name in PARTS}, "wall": times["wall_ttft"]}

    return Way(once, lambda: run(1 + case.decode)["decode"], runner.recordings.statistics)


def eager_way(owner: ARRCOCQwen, case: Case, inputs: dict[str, Tensor]) -> Way:
    """Plain transformers: the stock model with all tokens, or chosen and encoded as ever, then the stock forward."""
    model, whole = owner.model, case.dial == 1.0
    left_out = "question_mask" if whole else "mm_token_type_ids"
    given: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name != left_out}

    def serve() -> Stopwatch:
        if whole:
            stopwatch, ready = Stopwatch(model.device), {**given}
            with stopwatch.part("vision"):
                seen = model.model.get_image_features(
                    ready.pop("pixel_values"), given["image_grid_thw"], return_dict=True
                )
            ready["mm_encoder_outputs"] = {"image": seen}
        else:
            prepared = owner.prepare(**given, keep=case.dial)
            stopwatch, ready = prepared.stopwatch, prepared.model_inputs()
        with stopwatch.part("prefill"):
            model(**ready, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1).tolist()
        return stopwatch

    def once() -> Times:
        synchronize(model.device)
        start = time.perf_counter()
        stopwatch = serve()
        wall = 1e3 * (time.perf_counter() - start)
        parts = stopwatch.milliseconds()
        select = sum((value for name, value in parts.items() if name not in PARTS), 0.0)
        return {"select": select, "vision": parts["vision"], "prefill": parts["prefill"], "wall": wall}

    def generate(most: int) -> None:
        owner.fast = False
        length: dict[str, Any] = {"do_sample": False, "max_new_tokens": most, "min_new_tokens": most}
        model.generate(**given, **length) if whole else owner.generate(**given, keep=case.dial, **length)

    return Way(once, lambda: per_token(generate, case.decode, model.device))


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
