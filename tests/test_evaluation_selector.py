"""Evaluation of a selector: equality with the product's own path, knock-outs, statistics, and the report."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import arr_coc
from arr_coc.balancing import product
from arr_coc.config import SCORERS, TENSIONS, ARRCOCConfig
from arr_coc.evaluation.statistics import Clustered, difference_of, mean_of
from arr_coc.files import read_json_object
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import load_processor
from arr_coc.qwen.storage import save_adapter
from arr_coc_scenes.words import WORDINGS
from studies import answering
from studies.answering import Row
from studies.asked import ask_about
from studies.batched import forward
from studies.cells import boxes_cells
from studies.mini.evaluation import load_answerer
from studies.outcomes import Outcome, interval
from studies.selector import main as selector
from studies.selector import worlds
from studies.selector.ablation import (
    DEFAULT_GROUPS,
    fixed_policy,
    knock_outs,
    spread_budget,
    with_tension,
    without_scorer,
    without_textures,
)
from studies.selector.adapters import load_fitting
from studies.selector.failures import (
    UNSTRUCTURED,
    corner_boxes,
    corner_pairs,
    empty_block,
    grey_scene,
    twice,
    unstructured,
)
from studies.selector.measures import of_full, ratio_of
from studies.selector.questions import boxes_meet, different_pairs, parse, rephrase, reworded, slots_of
from studies.selector.selection import Alteration, Chooser, Chosen, Glances, at_random
from studies.selector.study import WHOLE, answer_ways, recalls, scores
from studies.selector.weights import CLAIMS, claim, per_image, permutation_p, table, write_docs

MINI = Path(arr_coc.__file__).parent / "models" / "mini"
PX = 256  # 64 cells


def chosen(image=0, cells=(0, 1), evidence=(1, 2, 3), family="colour", weights=(0.2, 0.3, 0.5), **more):
    facts = {"question": 0, "difficulty": "plain", "total": 64, "tensions": (0.5, 0.1, 0.2)} | more
    return Chosen(image=image, family=family, cells=cells, evidence=frozenset(evidence), weights=weights, **facts)


@pytest.fixture(scope="module")
def answerer():
    return load_answerer(MINI, "cpu", torch.float32)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """A layer with a look that nobody trained, but that does not sit at its starting point either."""
    torch.manual_seed(0)
    dims = {"glance_dim": 256, "look_dim": 20}
    config = ARRCOCConfig(256, sight="look", **dims, trained=True, base_model="mini", context="never")
    layer = ARRCOCLayer.from_config(config)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("adapter")
    save_adapter(folder, config, layer)
    return folder


@pytest.fixture(scope="module")
def chooser(answerer, adapter):
    _, layer = load_fitting(adapter, answerer.model)
    return Chooser(answerer.model, answerer.turns, layer)


@pytest.fixture(scope="module")
def asked():
    return ask_about("seen", 14, (PX, PX))


@pytest.fixture(scope="module")
def judgement(chooser, asked):
    return judged(chooser, asked)


def judged(chooser, asked, *alteration):
    images = [one.image for one in asked[:2]]
    return chooser.judge(images, [(n, q.text) for n in (0, 1) for q in asked[n].questions], *alteration)


# ---------------------------------------------------------------- what is kept


def test_recall_and_overlap_by_hand():
    assert chosen(cells=(0, 1), evidence=(1, 2, 3)).recall == 1 / 2  # two cells could hold two of three
    assert chosen(cells=(0, 1, 2, 9), evidence=(1, 2, 3)).recall == 2 / 3
    assert chosen(cells=(0, 1), evidence=(1, 2, 3)).iou == 1 / 4
    assert chosen(cells=(0, 1)).share == 2 / 64
    assert not chosen(family="count").localised
    assert not chosen(evidence=()).localised
    listed = [chosen(0), chosen(0, cells=(1, 2)), chosen(1, family="count"), chosen(1, evidence=())]
    assert recalls(listed).values.tolist() == [0.5, 1.0]
    assert recalls(listed, localised=False).values.tolist() == [0.5, 1.0, 0.5]


def test_chance_keeps_exactly_k_of_the_same_questions():
    listed = [chosen(n, total=256) for n in range(40)]
    drawn = at_random(listed, 0.1, seed=3)
    assert all(len(set(one.cells)) == 26 and tuple(sorted(one.cells)) == one.cells for one in drawn)
    assert [one.image for one in drawn] == list(range(40))
    assert drawn == at_random(listed, 0.1, seed=3) != at_random(listed, 0.1, seed=4)
    assert len({cell for one in drawn for cell in one.cells}) > 230


@pytest.mark.parametrize("keep", [0.25, "auto"])
def test_the_chooser_keeps_what_the_product_keeps(answerer, adapter, chooser, asked, keep):
    config, layer = load_fitting(adapter, answerer.model)
    owner = ARRCOCQwen(answerer.model, config, layer, load_processor(str(MINI)), keep=keep, break_even=0).eval()
    found = chooser.over(asked[:2], [keep])[keep]
    for one in found[:2] + found[-1:]:
        about = asked[one.image]
        inputs = owner_inputs(owner, about.image, about.questions[one.question].text)
        selection = owner.prepare(**inputs).images[0][0]
        assert selection.kept.tolist() == list(one.cells)
        assert list(selection.weights.values()) == pytest.approx(one.weights, abs=1e-5)
        assert one.evidence == boxes_cells(about.questions[one.question].evidence, 8, 8)


def owner_inputs(owner, image, text):
    return owner.encode_question(Image.fromarray(image), text)


def test_a_glance_is_taken_once(answerer, asked, monkeypatch):
    taken = []
    monkeypatch.setattr(
        "studies.selector.selection.glance", lambda m, x, *rest: taken.append(len(x)) or torch.zeros(len(x), 4, 8, 8)
    )
    glances = Glances(answerer.model)
    images = [one.image for one in asked[:3]]
    pixels = torch.zeros(3, 3, PX, PX)
    assert glances.of(images[:2], pixels[:2]).shape == (2, 4, 8, 8)
    assert glances.of(images, pixels).shape == (3, 4, 8, 8)
    assert taken == [2, 1]


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("encoding", ["dense", "sparse"])
def test_cut_answers_have_the_logits_of_the_product(answerer, adapter, asked, encoding, monkeypatch):
    """The first answer token's logits, after the ViT saw all cells or only the kept ones."""
    config, layer = load_fitting(adapter, answerer.model)
    owner = ARRCOCQwen(answerer.model, replace(config, encoding=encoding), layer, load_processor(str(MINI))).eval()
    recorded = []
    plain = forward.logits
    monkeypatch.setattr(forward, "logits", lambda *a: recorded.append(plain(*a)) or recorded[-1])
    for question in asked[0].questions[:2]:
        inputs = owner_inputs(owner, asked[0].image, question.text)
        with torch.no_grad():
            output = owner(**inputs, keep=0.2, output_arr_coc_info=True)
        cells = tuple(output.arr_coc.images[0][0].kept.tolist())
        recorded.clear()
        [[text]] = answerer.answer([Row(asked[0].image, (question.text,), cells, encoding)])
        torch.testing.assert_close(recorded[0][0], output.logits[0, -1].float(), atol=2e-4, rtol=1e-4)
        assert text == owner.ask(Image.fromarray(asked[0].image), question.text, keep=0.2).text


def test_rows_of_all_kinds_answer_together_as_alone(answerer, asked):
    cells = tuple(range(0, 64, 13))
    rows = [
        row
        for one in asked[:3]
        for question in one.questions[:1]
        for row in (
            Row(one.image, (question.text,)),
            Row(one.image, (question.text,), tuple(range(64)), "dense"),
            Row(one.image, (question.text,), cells, "dense"),
            Row(one.image, (question.text,), cells, "sparse"),
        )
    ]
    together = answerer.answer(rows, cells_per_batch=150)
    assert together == [answerer.answer([row])[0] for row in rows]
    assert together[0::4] == together[1::4] != together[3::4]


def test_an_image_is_encoded_once_for_its_dense_rows_and_known_rows_not_again(answerer, chooser, asked, monkeypatch):
    encoded = []
    plain = answering.encode_vision
    monkeypatch.setattr(
        answering, "encode_vision", lambda m, p, t, cells: encoded.append((len(p), cells)) or plain(m, p, t, cells)
    )
    found = chooser.over(asked[:2], [0.1, 0.25])
    known = {}
    ways = {"a": (found[0.1], "dense"), "b": (found[0.25], "dense"), "again": (found[0.1], "dense")}
    answers = answer_ways(answerer, asked[:2], ways, whole=True, known=known)
    assert encoded == [(2, None)]
    assert answers["a"] == answers["again"]
    assert [o.expected for o in answers[WHOLE]] == [q.answer for one in asked[:2] for q in one.questions]
    assert answer_ways(answerer, asked[:2], ways, known=known)["b"] == answers["b"]
    assert len(encoded) == 1


def test_a_fraction_of_the_full_accuracy():
    full = [Outcome(n, "colour" if n % 2 else "count", "plain", "red", "red") for n in range(8)]
    found = [replace(one, given="red" if n < 4 else "blue") for n, one in enumerate(full)]
    found[1] = replace(found[1], given="blue")
    figures = of_full(found, full)
    assert figures["fraction"]["mean"] == 3 / 8
    assert figures["localised_fraction"]["mean"] == 1 / 4
    assert figures["families"]["count"]["mean"] == 1 / 2
    assert len(scores(found, localised=True)) == 4


# ---------------------------------------------------------------- knock-outs


def test_a_scorer_knocked_out_leaves_the_others(chooser, asked, judgement):
    changed = judged(chooser, asked, without_scorer("participatory"))
    kept = judgement.balance.weights_BS.clone()
    kept[:, 2] = 0
    assert torch.equal(changed.balance.weights_BS, kept)
    maps = torch.stack(list(judgement.maps.values()), dim=1)
    torch.testing.assert_close(changed.balance.relevance_BHW, product(maps[:, :2], kept[:, :2]))
    assert not torch.allclose(changed.balance.relevance_BHW, judgement.balance.relevance_BHW)


def test_a_tension_and_the_policy_are_fixed(chooser, asked, judgement):
    changed = judged(chooser, asked, with_tension("explore", 1.0)).balance
    assert changed.tensions_BT[:, 1].tolist() == [1.0] * len(changed.tensions_BT)
    assert torch.equal(changed.tensions_BT[:, ::2], judgement.balance.tensions_BT[:, ::2])
    torch.testing.assert_close(changed.relevance_BHW, judgement.balance.relevance_BHW)
    fixed = judged(chooser, asked, fixed_policy((0.0, 1.0, 0.0), (0.1, 0.2, 0.3)))
    torch.testing.assert_close(fixed.balance.relevance_BHW, fixed.maps["perspectival"], atol=2e-3, rtol=0)
    assert fixed.balance.tensions_BT.unique(dim=0).tolist() == [pytest.approx([0.1, 0.2, 0.3])]


@pytest.mark.parametrize("group", DEFAULT_GROUPS)
def test_textures_knocked_out_are_flat_and_the_rest_is_not(chooser, asked, group):
    images, channels = [asked[0].image], list(DEFAULT_GROUPS[group])
    before, after = chooser.see(images), chooser.see(images, without_textures(channels))
    others = [c for c in range(13) if c not in channels]
    for level in ("fine_BChw", "middle_BChw", "cell_BCHW"):
        was, now = getattr(before, level), getattr(after, level)
        assert torch.equal(was[:, others], now[:, others])
        torch.testing.assert_close(
            now[:, channels], was[:, channels].mean((2, 3), keepdim=True).expand_as(now[:, channels])
        )
    assert not torch.allclose(before.seen_BGHW[:, :45], after.seen_BGHW[:, :45])  # the small copy's textures, the stem
    assert torch.equal(before.seen_BGHW[:, 45:], after.seen_BGHW[:, 45:])  # the glance reads none


@pytest.mark.parametrize(("part", "first", "last"), [("small textures", 0, 13), ("stem", 13, 45), ("glance", 45, 141)])
def test_sight_knocked_out_is_dark(chooser, adapter, asked, part, first, last):
    alteration = knock_outs(ARRCOCConfig.load(adapter), (1, 1, 1), (0, 0, 0))[part]
    before = chooser.see([asked[0].image]).seen_BGHW
    after = chooser.see([asked[0].image], alteration).seen_BGHW
    others = [channel for channel in range(before.shape[1]) if not first <= channel < last]
    assert before.shape[1] == 141
    assert torch.equal(before[:, others], after[:, others])
    assert before[:, first:last].abs().amax((0, 2, 3)).min() > 0
    assert not after[:, first:last].any()


def test_every_part_has_its_knock_out():
    names = knock_outs(ARRCOCConfig(hidden_dim=8, sight="stem"), (1, 1, 1), (0, 0, 0))
    assert "stem" in names
    assert "glance" not in names
    assert all(any(part in name for name in names) for part in (*SCORERS, *TENSIONS, *DEFAULT_GROUPS, "policy"))
    config = ARRCOCConfig(hidden_dim=8, texture_channels=40, sight="look", glance_dim=4, look_dim=6)
    names = knock_outs(config, (1, 1, 1), (0, 0, 0))
    assert {"small textures", "stem", "glance", "look", "textures saliency", "textures text"} <= set(names)


def test_without_the_look_a_layer_chooses_at_a_glance(chooser, asked, judgement):
    light = judged(chooser, asked, Alteration(light=True))
    for name in ("information", "perspectival"):
        torch.testing.assert_close(light.maps[name], judgement.maps[name])
    assert not torch.allclose(light.maps["participatory"], judgement.maps["participatory"])


def test_every_way_is_measured_in_a_world(chooser):
    found = worlds.measure(chooser, "old seen", 5, PX, ([0.5, 0.5, 1.0], [0.5, 0.1, 0.2]))
    ways = {"balanced", "light", "exponents at their means", "look twice", *(f"without {name}" for name in SCORERS)}
    assert set(found["recall"]) == ways
    assert found["questions"] == 5
    assert all(0 <= found["recall"][way][str(keep)]["mean"] <= 1 for way in ways for keep in worlds.KEEPS)
    assert set(found["exponents"]) >= set(found["families"]["balanced"]["0.25"])


@settings(max_examples=50, deadline=None)
@given(st.floats(3.0, 11.99), st.integers(1, 60))
def test_a_spread_budget_has_the_mean_asked_for(mean, count):
    few = int(mean)
    fewer, more = ([chosen(n, cells=tuple(range(k))) for n in range(count)] for k in (few, few + 1))
    found = sum(len(one.cells) for one in spread_budget(fewer, more, mean))
    assert abs(found - mean * count) <= 0.5 + 1e-6


# ---------------------------------------------------------------- questions


def test_rephrasing_keeps_what_is_asked():
    kinds = set()
    for one in ask_about("seen", 240, (512, 512), seed=2):
        for question in one.questions:
            key, template, slots = parse(question.text, question.family)
            assert template.format(**slots) == question.text
            kinds.add(key)
            for other in rephrase(question.text, question.family):
                again_key, wording, again = parse(other, question.family)
                assert other != question.text
                assert again_key == key
                assert wording in WORDINGS["seen"][key]
                assert again == {name: slots[name] for name in slots_of(wording)}
    assert len(kinds) > 18


def test_rephrasing_by_hand():
    assert "Which thing is to the left of the red star?" in rephrase("What is to the left of the red star?", "spatial")
    assert rephrase("Read the total of the receipt.", "lookup") == [
        "What is the total?",
        "How much is the total?",
        "Tell me the total.",
    ]
    assert rephrase("What is the word on the left?", "read_sign") == []  # the others would say "sign" or "text"
    assert rephrase("Why?", "colour") == []


def test_pairs_are_about_different_things_and_images_take_turns(chooser, asked):
    found = chooser.over(asked, [0.1])[0.1]
    pairs = different_pairs(asked, found, 500)
    assert pairs
    for a, b in pairs:
        boxes = [asked[one.image].questions[one.question].evidence for one in (a, b)]
        assert a.image == b.image
        assert a.question != b.question
        assert a.localised
        assert b.localised
        assert not boxes_meet(*boxes)
    first = [a.image for a, _ in pairs[: len({a.image for a, _ in pairs})]]
    assert len(set(first)) == len(first)
    assert different_pairs(asked, found, 1) == pairs[:1]


def test_rewording_changes_the_words_alone(asked):
    for before, after in zip(asked, reworded(asked, 0), strict=True):
        assert after.image is before.image
        for a, b in zip(before.questions, after.questions, strict=True):
            assert replace(b, text=a.text) == a
    assert sum(a.questions != b.questions for a, b in zip(asked, reworded(asked, 0), strict=True)) >= len(asked) - 1


# ---------------------------------------------------------------- failures


def test_empty_blocks_are_found_wherever_they_start():
    kept = np.zeros((8, 8), bool)
    kept[::2, ::2] = True
    assert not empty_block(kept)
    assert not empty_block(~kept)
    kept[1:5, 2:6] = False
    assert empty_block(kept)
    assert not empty_block(kept, step=4)  # it lies across the tiles
    assert empty_block(np.zeros((8, 8), bool), step=4)


def test_twice_as_many_on_the_text():
    assert twice(4, 2)
    assert twice(1, 0)
    assert not twice(3, 2)
    assert not twice(0, 0)


def test_grey_scenes_tell_text_and_box_apart():
    for seed in (0, 1, 2, 222, 330):  # in the last two a bright box reaches into a cell of the text
        one, beside = grey_scene(seed, 512)
        assert one.questions[0].family == "grey_text"
        assert beside.text == boxes_cells(one.questions[0].evidence, 16, 16)
        assert beside.nearest
        assert not any(beside.text & box for box in (beside.nearest, *beside.loud))
        assert beside.nearest in beside.loud
        assert len(beside.loud) == len(one.questions[0].distractors)


def test_corners_are_drawn_where_nothing_is():
    scenes = ask_about("seen", 90, (512, 512))
    pairs = corner_pairs(scenes, 0)
    assert 0 < len(pairs) < len(scenes)
    inside = np.zeros((512, 512), bool)
    for x0, y0, x1, y1 in corner_boxes(512, 512):
        inside[y0:y1, x0:x1] = True
    for before, after in pairs:
        assert after.questions == before.questions
        changed = (before.image != after.image).any(2)
        assert changed[inside].mean() > 0.95
        assert not changed[~inside].any()
        assert not any(inside[y0:y1, x0:x1].any() for q in before.questions for x0, y0, x1, y1 in q.evidence)


@pytest.mark.parametrize("kind", UNSTRUCTURED)
def test_images_without_structure(kind):
    image = unstructured(kind, 256, 1)
    assert image.shape == (256, 256, 3)
    assert image.dtype == np.uint8
    assert np.array_equal(image, unstructured(kind, 256, 1))
    assert not np.array_equal(image, unstructured(kind, 256, 2))
    quarters = [image[y : y + 128, x : x + 128].mean() for y in (0, 128) for x in (0, 128)]
    assert np.ptp(quarters) < 30  # nowhere else than elsewhere
    assert image.std() > 5


# ---------------------------------------------------------------- statistics


def test_figures_by_hand():
    a = Clustered.of([(0, 1.0), (0, 0.0), (1, 1.0)])
    b = Clustered.of([(0, 0.5), (1, 0.5)])
    assert mean_of(a)["mean"] == pytest.approx(2 / 3, abs=1e-5)
    assert ratio_of(a, b)["mean"] == pytest.approx(4 / 3, abs=1e-5)
    assert difference_of(a, b)["mean"] == pytest.approx(1 / 6, abs=1e-5)
    assert sorted(per_image(a)) == [0.5, 1.0]
    assert mean_of(Clustered.of([])) == {"mean": None, "ci95": None, "n": 0}
    assert ratio_of(a, Clustered.of([(0, 0.0)]))["mean"] is None


def test_intervals_are_over_images_and_paired():
    rng = np.random.default_rng(0)
    values, images = rng.random(60), np.repeat(np.arange(12), 5)
    sample = Clustered(values, images)
    assert mean_of(sample)["ci95"] == pytest.approx(interval(values, images), abs=1e-4)
    better = Clustered(values + 0.1, images)
    assert difference_of(better, sample)["ci95"] == pytest.approx([0.1, 0.1])
    assert np.ptp(mean_of(sample)["ci95"]) > 0.05


def test_permutations_tell_chance_from_a_difference():
    rng = np.random.default_rng(1)
    a, b = (Clustered.of(enumerate(rng.normal(size=60))) for _ in range(2))
    higher = Clustered(a.values + 2, a.images)
    assert permutation_p(higher, b) < 0.001
    assert permutation_p(b, higher) > 0.99
    assert 0.01 < permutation_p(a, b) < 0.99


def weight_rows(perspectival=0.9):
    rng = np.random.default_rng(2)
    means = {
        "colour": (0.2, 0.3, 0.9),
        "describe": (0.6, 0.3, 0.5),
        "odd_one_out": (0.2, perspectival, 0.5),
        "title": (0.1, 0.5, 0.5),
    }
    return [
        (n, family, tuple(m + 0.05 * rng.normal() for m in mean)) for family, mean in means.items() for n in range(30)
    ]


def test_claims_hold_or_are_refuted():
    assert [claim(weight_rows(), *one)["holds"] for one in CLAIMS] == [True, True, True]
    highest = CLAIMS[2]
    refuted = claim(weight_rows(perspectival=0.4), *highest)  # above colour and describe, below title
    assert not refuted["holds"]
    assert refuted["against"]["colour"]["p"] < 0.01 < refuted["p"] == refuted["against"]["title"]["p"]
    tiny = [(n, f, tuple(1e-4 * w for w in ws)) for n, f, ws in weight_rows()]
    sure = claim(tiny, *highest)
    assert sure["p"] < 0.01
    assert not sure["holds"]
    assert claim([row for row in tiny if row[1] != "odd_one_out"], *highest)["holds"] is None


# ---------------------------------------------------------------- the report


def test_parts_replace_their_own_keys_alone():
    old = {"recall": {"0.1": 0.5}, "px1024": {"recall": 1, "dense": 2}, "runs": {"recall": {"seed": 0}}}
    new = {"recall": {"0.25": 0.9}, "px1024": {"recall": 3}, "runs": {"auto": {"seed": 1}}}
    assert selector.merge(old, new) == {
        "recall": {"0.25": 0.9},
        "px1024": {"recall": 3, "dense": 2},
        "runs": {"recall": {"seed": 0}, "auto": {"seed": 1}},
    }
    assert old["px1024"]["recall"] == 1
    runs = {"recall": {"model": "a", "adapter": "b"}, "auto": {"model": "a", "adapter": "c"}}
    assert selector.mixed_runs({"runs": runs}) == ["recall"]
    assert selector.mixed_runs({"runs": runs | {"recall": runs["auto"]}}) == []


def test_parts_are_chosen_by_name(tmp_path):
    nobody = selector.OtherAdapters()
    assert "against" not in selector.named_parts(None, nobody)
    assert "against" in selector.named_parts(None, selector.OtherAdapters(against=tmp_path))
    assert selector.named_parts("auto, recall", nobody) == ["auto", "recall"]
    assert selector.named_parts("", nobody) == []
    with pytest.raises(ValueError, match="unknown part 'speed'"):
        selector.named_parts("recall,speed", nobody)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match=r"broken\.json: not readable as JSON"):
        read_json_object(tmp_path / "broken.json")


LATER = "accuracy,auto,hard,adaptive,failures,ablation,against,others"


@pytest.fixture(scope="module")
def report(adapter, tmp_path_factory):
    """The command, run twice into one file."""
    out = tmp_path_factory.mktemp("report") / "selector.json"
    out.write_text('{"mine": 1}')
    common = ["--adapter", str(adapter), "--questions", "8", "--size", str(PX), "--out", str(out), "--device", "cpu"]
    selector.main([*common, "--parts", "recall,questions,weights"])
    first = json.loads(out.read_text())
    selector.main([*common, "--parts", LATER, "--against", str(adapter), "--other", f"twin={adapter}"])
    return first, json.loads(out.read_text())


def test_the_command_completes_a_report(report):
    first, second = report
    assert second["mine"] == 1
    assert {key: second[key] for key in first if key not in ("px1024", "runs")} == {
        key: first[key] for key in first if key not in ("px1024", "runs")
    }
    assert list(second["recall"]) == ["0.06", "0.1", "0.25", "0.5"]
    assert 0 <= second["recall"]["0.06"] <= second["recall"]["0.5"] <= 1
    assert set(second["px1024"]) >= {"recall", "iou_64", "auto"}
    assert len(second["recall_above"]["0.06"]["untrained"]["seeds"]) == 3
    assert 0 < second["auto"]["mean_keep"] <= 1
    for kind in ("dense", "sparse", "random_dense", "random_sparse"):
        assert list(second[kind]) == list(second["px1024"][kind]) == ["0.06", "0.1", "0.25", "0.5"][: len(second[kind])]
        detail = second[f"{kind}_detail"]["0.1"]
        assert second[kind]["0.1"] == detail["fraction"]["mean"]
        assert detail["accuracy"]["n"] == 8
    assert set(second["runs"]) == {"recall", "questions", "weights", *LATER.split(",")}
    assert second["runs"]["recall"]["adapter"] == second["runs"]["auto"]["adapter"]


def test_the_report_agrees_with_itself(report):
    _, found = report
    assert found["against"]["plain"]["0.1"]["recall_gain"]["mean"] == 0  # an adapter against itself
    assert found["others"]["twin"]["recall"]["0.1"] == found["recall"]["0.1"]
    assert found["others"]["twin"]["auto_mean_keep"]["mean"] == found["auto"]["mean_keep"]
    assert found["ablation"]["nothing"]["recall_0.1_change"]["mean"] == 0
    assert found["random_sparse_detail"]["0.25"]["accuracy"] != found["sparse_detail"]["0.25"]["accuracy"]
    assert found["px1024"]["iou_64"]["trained"]["mean"] <= found["px1024"]["iou_64"]["ceiling"]["mean"] < 1
    full, sparse = found["full"]["accuracy"]["mean"], found["sparse_detail"]["0.1"]["accuracy"]["mean"]
    assert found["sparse"]["0.1"] == pytest.approx(sparse / full, abs=1e-4)
    levels = [found["difficulties"][level]["0.1"]["accuracy"] for level in ("plain", "hard")]
    assert sum((one["mean"] or 0) * one["n"] for one in levels) / 8 == pytest.approx(sparse, abs=1e-4)
    kept = found["adaptive"]["keep"]["auto"]
    assert kept["adaptive"]["mean"] == pytest.approx(kept["fixed"]["mean"], abs=0.5 / 64 / 8 + 1e-5)
    assert found["failures"]["grey_text"]["0.25"]["tokens_on_text"]["n"] == 1


def test_weights_are_written_for_people(report, tmp_path):
    write_docs(report[1]["weights"], tmp_path)
    page = (tmp_path / "selector-weights.md").read_text()
    assert page == table(report[1]["weights"])
    assert page.count("| ") > 40
    assert "](selector-weights.png)" in page
    assert Image.open(tmp_path / "selector-weights.png").size[0] > 500


def test_mistakes_are_told_in_one_line(tmp_path, capsys):
    for arguments, said in (
        (["--parts", "recall", "--adapter", str(tmp_path)], "holds no adapter"),
        (["--parts", "", "--docs", str(tmp_path)], "needs the part 'weights'"),
        (["--parts", "pace"], "unknown part 'pace'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            selector.main(arguments)
        assert stopped.value.code == 2
        error = [line for line in capsys.readouterr().err.splitlines() if "Loading weights" not in line]
        assert said in error[-1]


def test_an_adapter_of_another_width_is_refused(answerer, tmp_path):
    config = ARRCOCConfig(hidden_dim=64, sight="textures", trained=True)
    save_adapter(tmp_path, config, ARRCOCLayer.from_config(config))
    with pytest.raises(ValueError, match="an adapter for widths 64 and 0"):
        load_fitting(tmp_path, answerer.model)


def test_a_bare_machine_can_import_it():
    block = "import sys; sys.modules.update(dict.fromkeys(('matplotlib', 'typer', 'rich', 'peft', 'datasets')));"
    code = f"{block} import studies.selector.main"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
