"""A trial of a few steps: it learns its batch, and says what it took."""

import json

import pytest

from arr_coc.training.config import SelectorTrainConfig
from studies.selector.trial import main, try_out

SMALL = {"cells_per_batch": 128, "questions": 2, "sizes": ((128, 128, 1.0), (64, 64, 1.0)), "workers": 0}


@pytest.mark.parametrize("stage", [1, 2])
def test_a_repeated_batch_is_learned(stage):
    rates = {"warmup_steps": 1, "base_rate": 1e-3, "precision": "float32"}  # 16 bits are slow on a CPU
    found = try_out(SelectorTrainConfig(stage=stage, **rates, **SMALL), steps=6, device="cpu")
    assert found["learns"]
    assert found["questions"] == 8
    assert found["estimate_bytes"] > 0
    assert found["peak_bytes"] is None  # counted on a GPU alone


def test_trials_are_added_to_a_list(tmp_path, monkeypatch, capsys):
    config, out = tmp_path / "small.json", tmp_path / "trials.json"
    config.write_text(json.dumps(SMALL | {"sizes": [[128, 128, 1.0]]}))
    monkeypatch.setattr("sys.argv", ["trial", "--config", str(config), "--steps", "1", "--out", str(out)])
    main()
    main()
    assert len(json.loads(out.read_text())) == 2
    assert json.loads(capsys.readouterr().out.split("\n}\n")[0] + "\n}")["model"] == "mini"
