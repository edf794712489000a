"""The dial and the saved settings: nonsense is refused with a next step."""

import json

import pytest

from arr_coc.config import CONFIG_FILE, FORMAT_VERSION, ARRCOCConfig, check_keep, check_keeps, tokens_to_keep


@pytest.mark.parametrize(
    "keep", [0, -1, 1, True, False, 1.01, 0.0, -0.5, float("nan"), float("inf"), "abc", None, [0.5]]
)
def test_a_dial_that_means_nothing_is_refused(keep):
    with pytest.raises(ValueError, match="keep="):
        check_keep(keep)


@pytest.mark.parametrize(
    ("keep", "cells", "tokens"),
    [(1.0, 77, 77), (0.25, 1024, 256), (0.001, 100, 1), (2, 100, 2), (500, 100, 100), (0.5, 1, 1), ("auto", 9, None)],
)
def test_what_a_dial_stands_for(keep, cells, tokens):
    assert tokens_to_keep(check_keep(keep), cells) == tokens


def test_one_dial_or_one_per_sample():
    assert check_keeps(0.5, 3) == [0.5] * 3
    assert check_keeps([0.5, 7, "auto"], 3) == [0.5, 7, "auto"]
    with pytest.raises(ValueError, match="one per sample"):
        check_keeps([0.5, 0.5], 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_dim": 0},
        {"min_tokens": 9, "max_tokens": 4},
        {"encoding": "half"},
        {"position_policy": "none"},
        {"pooling": "sum"},
        {"sight_channels": 0},
        {"glance_channels": 0},
    ],
)
def test_contradictions_are_refused(wrong):
    with pytest.raises(ValueError, match=r"expected|give"):
        ARRCOCConfig(**{"hidden_dim": 8, **wrong})


def test_round_trip(tmp_path):
    config = ARRCOCConfig(hidden_dim=8, pooling="last", trained=True, base_model="somewhere")
    (tmp_path / CONFIG_FILE).write_text(config.as_json())
    assert ARRCOCConfig.load(tmp_path) == config


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format_version": 0}, "format_version"),
        ({"format_version": FORMAT_VERSION - 1}, "format_version"),
        ({"glance_channels": 96.0}, "glance_channels"),
        ({"colour": 1}, "colour"),
        ({"min_tokens": None}, "min_tokens"),
        ({"trained": 1}, "trained"),
        ({"hidden_dim": True}, "hidden_dim"),
    ],
)
def test_a_config_of_another_version_is_refused_by_key(tmp_path, change, named):
    path = tmp_path / "arr_coc_config.json"
    path.write_text(json.dumps(json.loads(ARRCOCConfig(hidden_dim=8).as_json()) | change))
    with pytest.raises(ValueError, match=rf"arr_coc_config.json.*{named}"):
        ARRCOCConfig.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\x80"])
def test_a_damaged_config_is_refused(tmp_path, content):
    (tmp_path / "arr_coc_config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=r"arr_coc_config.json"):
        ARRCOCConfig.load(tmp_path)


@pytest.mark.parametrize("key", ["max_tokens", "glance_channels"])
def test_a_missing_key_is_named(tmp_path, key):
    path = tmp_path / "arr_coc_config.json"
    data = json.loads(ARRCOCConfig(hidden_dim=8).as_json())
    del data[key]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=key):
        ARRCOCConfig.load(tmp_path)
