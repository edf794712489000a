"""The list of mutants names lines and tests that are there; whether the tests bite, studies/mutants.py finds out."""

from pathlib import Path

import pytest

from studies import mutants

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_its_line_and_its_test_are_there(mutant):
    assert (ROOT / "arr_coc" / mutant.file).read_text().count(mutant.old) == 1
    file, _, words = mutant.test.partition("::")
    assert f"\ndef {words.split()[0]}" in (ROOT / "tests" / file).read_text()


def test_there_are_forty_and_none_twice():
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(names) == len(set(names)) >= 40


def test_a_mutant_is_killed_survives_or_is_stale(tmp_path, monkeypatch):
    (tmp_path / "arr_coc").mkdir()
    (tmp_path / "arr_coc" / "limits.py").write_text("MOST = 3\n")
    seen = []

    def run_test(tree, test, seconds):
        seen.append((tree / "arr_coc" / "limits.py").read_text())
        return codes.pop()

    monkeypatch.setattr(mutants, "run_test", run_test)
    codes = [5, 1, 0]
    mutant = mutants.Mutant("most", "limits.py", "3", "10**9", "x")
    assert [mutants.judge(tmp_path, mutant) for _ in range(2)] == ["survived", "killed"]
    assert mutants.judge(tmp_path, mutant).startswith("not tested")
    assert seen == ["MOST = 10**9\n"] * 3
    assert (tmp_path / "arr_coc" / "limits.py").read_text() == "MOST = 3\n"
    assert mutants.judge(tmp_path, mutants.Mutant("gone", "limits.py", "4", "5", "x")) == "stale"


def test_with_all_tests_a_mutant_is_killed_by_what_passes_without_it(tmp_path, monkeypatch):
    (tmp_path / "arr_coc").mkdir()
    file = tmp_path / "arr_coc" / "limits.py"
    file.write_text("MOST = 3\n")
    busy, most = "tests/a.py::test_flaky", "tests/a.py::test_most"
    turns = [[busy], [], [most], [most], []]  # the suite, those alone; the rest, those alone, those without it
    seen = []

    def run_suite(tree, options):
        seen.append((file.read_text(), options))
        return turns.pop(0)

    monkeypatch.setattr(mutants, "run_suite", run_suite)
    mutant = mutants.Mutant("most", "limits.py", "3", "10**9", "x")
    found = mutants.judge_whole(tmp_path, mutant)
    assert (found["verdict"], found["failed"], found["left_out"]) == ("killed", [most], [busy])
    assert [options for _, options in seen] == [
        *(mutants.suite(), [busy], [*mutants.suite(), f"--deselect={busy}"], [most], [most]),
    ]
    assert [text for text, _ in seen] == ["MOST = 10**9\n"] * 4 + ["MOST = 3\n"]
    turns += [[most], [most], [most], []]  # it fails without the mutant too, and nothing else does
    assert mutants.judge_whole(tmp_path, mutant)["verdict"] == "survived"
    assert {mutant.name for mutant in mutants.MUTANTS} >= set(mutants.ROOMS)
    assert {"-n", "not soak", "-x"} <= set(mutants.suite())
