"""The notebook of the docs runs from top to bottom, and says what it said when it was made."""

import json

from studies import notebook


def test_the_tour_runs_and_is_the_one_in_the_docs():
    assert notebook.main(["--check"]) == 0, "run python -m studies.notebook"


def test_another_tour_would_be_found(tmp_path, monkeypatch):
    cells = (("markdown", "# Few"), ("code", "1 + 1\nprint('two')"), ("code", "print('three')"))
    monkeypatch.setattr(notebook, "CELLS", cells)
    monkeypatch.setattr(notebook, "PAGE", tmp_path / "few.ipynb")
    assert notebook.main([]) == notebook.main(["--check"]) == 0
    page = json.loads(notebook.PAGE.read_text())
    assert notebook.printed(page) == ["two\n", "three\n"]
    notebook.PAGE.write_text(notebook.PAGE.read_text().replace("three", "four"))
    assert notebook.main(["--check"]) == 1
