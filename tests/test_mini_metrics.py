"""Scores, intervals and the card."""

import json

import numpy as np
import pytest

from arr_coc.evaluation.field.data import pair_f1, pairs
from studies.asked import ask_about
from studies.cells import boxes_cells
from studies.mini.card import SPLITS, count_weights, model_card
from studies.mini.evaluation import blind_rows, distracted_rows, shuffled_rows, sparse_rows
from studies.mini.train import ASSETS
from studies.outcomes import Outcome, by_group, interval, majority, summary


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
    figure = {"accuracy": 0.931, "ci95": [0.92, 0.94], "n": 4000}
    results = dict.fromkeys(SPLITS, figure | {"families": {"read_sign": figure}})
    config = json.loads((ASSETS / "config.json").read_text())
    card = model_card(config, 894, 15_800_000, results)
    assert "15.8 M parameters" in card
    assert card.count("| 93.1% | 92.0% to 94.0% | 4,000 |") == len(SPLITS) + 3
    assert "Photographs" in card


def test_an_interval_of_a_known_spread():
    """A hundred images, half of them right: the 95 % interval of the mean is 0.5 -+ 1.96 * 0.05."""
    low, high = interval([float(n % 2) for n in range(100)], list(range(100)))
    assert low == pytest.approx(0.402, abs=0.012)
    assert high == pytest.approx(0.598, abs=0.012)


@pytest.fixture(scope="module")
def asked():
    return ask_about("seen", 24, (256, 256))


def test_sparse_rows_hold_the_evidence(asked):
    for rows in (sparse_rows(asked), distracted_rows(asked)):
        questions = [(a, q) for a in asked for q in a.questions]
        for row, (a, question) in zip(rows, questions, strict=True):
            evidence = boxes_cells(question.evidence, 8, 8)
            assert evidence <= set(row.cells)
            assert len(row.cells) == max(16, len(evidence))
            assert np.array_equal(row.image, a.image)


def test_distracted_rows_hold_distractors_where_they_fit(asked):
    held = lambda row, q: len(boxes_cells(q.distractors, 8, 8) & set(row.cells))  # noqa: E731
    questions = [q for a in asked for q in a.questions]
    with_them = sum(held(row, q) for row, q in zip(distracted_rows(asked), questions, strict=True))
    without = sum(held(row, q) for row, q in zip(sparse_rows(asked), questions, strict=True))
    assert with_them > 1.3 * without


def test_controls_do_not_show_the_image(asked):
    assert all(np.ptp(row.image) == 0 for row in blind_rows(asked))
    for row, a in zip(shuffled_rows(asked), asked, strict=True):
        assert row.image.shape == a.image.shape
        assert not np.array_equal(row.image, a.image)
        assert row.questions == tuple(q.text for q in a.questions)


def test_the_shipped_card_is_made_from_the_results():
    config = json.loads((ASSETS / "config.json").read_text())
    results = json.loads((ASSETS.parents[2] / "results" / "mini.json").read_text())
    vocabulary = len(json.loads((ASSETS / "tokenizer.json").read_text())["model"]["vocab"])
    assert (ASSETS / "README.md").read_text() == model_card(config, vocabulary, count_weights(ASSETS), results)
