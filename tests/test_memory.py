"""Many different images in a row: nothing is kept."""

import gc
import os

import pytest
import tiny


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ask_many(model, first: int, count: int) -> None:
    for seed in range(first, first + count):
        picture = tiny.picture(64 + 32 * (seed % 9), 64 + 32 * (seed // 9 % 9), seed)
        model.ask(picture, f"what is number {seed}?", keep=0.5, max_new_tokens=2)


@pytest.mark.parametrize("count", [200, pytest.param(3000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
@pytest.mark.parametrize("selector", ["arr_coc", "training_free"])
def test_different_images_leave_no_memory_behind(selector, count):
    model = tiny.wrapped(tiny.stock(), selector=selector)
    ask_many(model, 0, 90)  # every size once: allocators and caches fill up
    gc.collect()
    before = resident_bytes()
    ask_many(model, 1000, count)
    gc.collect()
    assert resident_bytes() < 1.01 * before
