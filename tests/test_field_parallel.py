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
