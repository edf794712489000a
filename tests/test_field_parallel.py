"""The field by several processes: which parts may stand in one table."""

import json

import pytest

from studies.gpu import field_parallel as parallel

BASE, OTHER_BASE, ADAPTER, OTHER_ADAPTER = "0" * 16, "1" * 16, "a" * 16, "b" * 16


def header(weights: str, questions: int = 4000) -> str:
    return json.dumps({"about": {"side": 512, "questions": questions, "weights": weights}})


def test_only_arr_coc_needs_its_adapter():
    ours, theirs = header(BASE + ADAPTER), header(BASE + OTHER_ADAPTER)
    assert parallel.header_of(512, [theirs, ours, theirs], [False, True, False]) == ours
    assert parallel.header_of(512, [theirs, theirs], [False, False]) == theirs


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ([header(BASE + ADAPTER), header(OTHER_BASE + ADAPTER)], [True, False]),
        ([header(BASE + ADAPTER), header(BASE + OTHER_ADAPTER)], [True, True]),
        ([header(BASE + ADAPTER), header(BASE + ADAPTER, questions=600)], [True, False]),
    ],
)
def test_parts_of_another_model_or_other_questions_are_refused(headers, ours):
    with pytest.raises(ValueError, match="parts of 512 px were made with different settings"):
        parallel.header_of(512, headers, ours)


def test_a_slow_method_is_a_job_for_each_budget():
    jobs = parallel.jobs_of(["even_grid", "fastv"], 512)
    assert [selectors for selectors, _ in jobs] == [["fastv"]] * 4 + [["even_grid"]]
    assert sorted(keep for _, keeps in jobs[:4] for keep in keeps) == sorted(jobs[4][1])


def row(selector: str, accuracy: float, encoding: str = "dense", keep: float = 0.1, n: int = 400) -> dict:
    ci95 = [accuracy - 0.02, accuracy + 0.02]
    return {
        "side": 512,
        "selector": selector,
        "encoding": encoding,
        "keep": keep,
        "accuracy": accuracy,
        "ci95": ci95,
        "n": n,
    }


def test_a_newer_arr_coc_stands_beside_the_rows_of_others():
    """By intervals: far apart is sure, close is not; a method of dense rows alone is held against the dense ARR-COC."""
    old = {"rows": [row("fastv", 0.80), row("arr_coc", 0.91), row("cdpruner", 0.94), row("oracle", 0.9, "sparse")]}
    new = [row("arr_coc", 0.95), row("arr_coc", 0.93, "sparse")]
    fastv, cdpruner, oracle = parallel.beside(old, new)
    assert fastv["gain_vs_arr_coc"]["mean"] == pytest.approx(-0.15)
    assert fastv["gain_vs_arr_coc"]["ci95"] == pytest.approx([-0.15 - 0.0283, -0.15 + 0.0283], abs=1e-4)
    assert fastv["p_vs_arr_coc"] < 1e-6 < 0.4 < cdpruner["p_vs_arr_coc"]
    assert (fastv["against"], oracle["against"]) == ("arr_coc dense 0.1", "arr_coc sparse 0.1")
    (fewer, *_) = parallel.beside(old, [row("arr_coc", 0.95, n=100)])
    assert fewer["gain_vs_arr_coc"]["n"] == 100
