"""Scores, intervals and the card."""

import json

import pytest

from arr_coc.evaluation.card import model_card
from arr_coc.evaluation.metrics import Outcome, by_group, interval, majority, pair_f1, pairs, summary
from arr_coc.training.mini import ASSETS


def outcome(expected, given, family="colour", image=0):
    return Outcome(image, family, "plain", expected, given)


def test_answers_must_be_exact():
    assert outcome("red", " red ").score == 1
    assert outcome("red", "Red").score == 0
    assert outcome("red star, blue cup", "blue cup, red star", "describe").score == 1


def test_pairs_count_repetitions():
    assert pairs("red star, red star, blue pair of scissors") == {
        ("red", "star"): 2,
        ("blue", "pair of scissors"): 1,
    }
    assert pair_f1("red star, red star", "red star") == pytest.approx(2 / 3)
    assert pair_f1("red star", "") == 0


def test_interval_is_over_images():
    scores = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    alone = interval(scores, range(8))
    together = interval(scores, [0, 0, 0, 0, 1, 1, 1, 1])
    assert alone[0] > together[0] == 0.0
    assert alone[1] < together[1] == 1.0
    assert interval([0.5] * 4, range(4)) == [0.5, 0.5]


def test_majority_is_per_family():
    found = [outcome("red", ""), outcome("red", ""), outcome("blue", ""), outcome("3", "", "count")]
    assert majority(found) == 0.75
    assert by_group(found, "family")["count"]["majority"] == 1.0
    assert summary([]) == {"accuracy": None, "ci95": None, "n": 0}


def test_card_tells_every_figure():
    figure = {"accuracy": 0.931, "ci95": [0.92, 0.94], "n": 4000, "majority": 0.2}
    names = ("overall", "reading", "px1024", "unseen", "sparse25", "blind", "shuffled")
    results = dict.fromkeys(names, figure) | {"families": {"read_sign": figure}}
    config = json.loads((ASSETS / "config.json").read_text())
    card = model_card(config, 894, 15_800_000, results)
    assert "15.8 M parameters" in card
    assert card.count("| 93.1% | 92.0% to 94.0% | 4,000 |") == 8
    assert "Photographs" in card
