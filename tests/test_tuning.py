"""Tuning: what it picks and tells, what loading finds again, and what it must not be led astray by."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from jsonschema import Draft202012Validator

from arr_coc import ARRCOCQwen
from arr_coc.cli.loading import load
from arr_coc.cli.run import EXIT_INTERRUPTED, run
from arr_coc.evaluation import advice, tuning
from arr_coc.evaluation.field.data import METRICS, found_evidence
from arr_coc.evaluation.field.methods import ENCODINGS, Method
from arr_coc.evaluation.tuning import ALL, CLOSE, KEEPS, Tuner
from arr_coc.files import write_json
from arr_coc.qwen.tuned import TUNING_FILE, default_settings, place_to_write, weights_key
from arr_coc.selectors import make_selector, read_selector

SCHEMA = json.loads((Path(__file__).parent.parent / "arr_coc" / "cli" / "tune.schema.json").read_text())
OTHER = {"least": 9, "most": 9, "depth": 0.5, "information": 0.25, "perspectival": 0.5, "steepness": 3.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model without an adapter, on disk."""
    made = tmp_path_factory.mktemp("tiny") / "model"
    tiny.stock().save_pretrained(made)
    tiny.processor().save_pretrained(made)
    return made


@pytest.fixture(autouse=True)
def _own_cache(folder, tmp_path, monkeypatch):
    """Nothing is left beside the model, nor found in a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    (folder / TUNING_FILE).unlink(missing_ok=True)


def tuning_of(folder, **changes):
    return {"format_version": 1, "fingerprint": weights_key(folder), "settings": OTHER, **changes}


def settings_in_force(loaded):
    """What a loaded model looks twice with."""
    selector, look = loaded.selector, loaded.selector.first_look
    numbers = (look.least, look.most, look.depth, *selector.exponents[:2], float(selector.allocator.steepness))
    return dict(zip(default_settings(), numbers, strict=True))


# ---------------------------------------------------------------- what loading finds


def test_loading_applies_what_was_tuned(folder, caplog):
    assert settings_in_force(ARRCOCQwen.from_pretrained(folder)) == default_settings()
    write_json(folder / TUNING_FILE, tuning_of(folder))
    loaded = ARRCOCQwen.from_pretrained(folder, keep=4)
    assert settings_in_force(loaded) == OTHER
    assert caplog.messages == []
    loaded.choose(tiny.picture(), "what?")
    assert loaded.notices == ["no trained adapter: the model looks twice, as arr-coc tune has set it"]


@pytest.mark.parametrize(
    "content",
    [
        {"format_version": 2},
        {"fingerprint": "0123456789abcdef"},
        {"settings": None},
        {"settings": {**OTHER, "least": 0}},
        {"settings": {**OTHER, "least": 9.5}},
        {"settings": {**OTHER, "most": True}},
        {"settings": {**OTHER, "information": "1"}},
        {"settings": {**OTHER, "information": float("nan")}},
        {"settings": {**OTHER, "perspectival": -1.0}},
        {"settings": {**OTHER, "depth": 1.5}},
        {"settings": {**OTHER, "more": 1}},
        {"settings": {"least": 9}},
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_passed_over_with_one_line(content, folder, caplog):
    write_json(folder / TUNING_FILE, tuning_of(folder, **content))
    assert settings_in_force(ARRCOCQwen.from_pretrained(folder)) == default_settings()
    (line,) = caplog.messages
    assert TUNING_FILE in line
    assert str(folder) not in line


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b'{"format_version": 1, "settings": {"lea', b"[" * 100_000]
)
def test_a_damaged_file_is_passed_over_with_one_line(content, folder, caplog):
    (folder / TUNING_FILE).write_bytes(content)
    assert settings_in_force(ARRCOCQwen.from_pretrained(folder)) == default_settings()
    assert len(caplog.messages) == 1


def test_settings_that_are_given_win(folder):
    write_json(folder / TUNING_FILE, tuning_of(folder))
    plain = ARRCOCQwen.from_pretrained(folder, selector="even_grid")
    assert plain.selector.name == "even_grid"
    own = make_selector("look_twice", plain.arr_coc_config, plain.layer, information=2.0)
    given = ARRCOCQwen.from_pretrained(folder, selector=own)
    assert settings_in_force(given) == {**default_settings(), "information": 2.0}
    typed = load(str(folder), "look_twice:information=2.0", quiet=True)
    assert settings_in_force(typed) == {**OTHER, "information": 2.0}


def test_a_trained_selector_is_not_touched(monkeypatch):
    write_json(place_to_write("mini", weights_key("mini")), tuning_of("mini"))
    assert load("mini").selector.name == "arr_coc"
    assert settings_in_force(load("mini", "look_twice")) == OTHER


def test_what_cannot_lie_beside_the_model_lies_in_the_cache(folder, tmp_path, monkeypatch):
    assert place_to_write(folder, "ab") == folder / TUNING_FILE
    monkeypatch.setattr(os, "access", lambda *_: False)
    key = weights_key(folder)
    place = place_to_write(folder, key)
    assert place.is_relative_to(tmp_path / "cache")
    assert place_to_write("mini", "ab").is_relative_to(tmp_path / "cache")  # nothing is put into the package
    write_json(place, tuning_of(folder))
    write_json(place_to_write(folder, "0123"), tuning_of(folder, settings=default_settings()))  # one of the same name
    assert settings_in_force(ARRCOCQwen.from_pretrained(folder)) == OTHER


def test_other_weights_have_another_key(folder, tmp_path):
    tiny.stock(seed=1).save_pretrained(tmp_path / "model")
    assert weights_key(tmp_path / "model") != weights_key(folder)
    with pytest.raises(ValueError, match="load it once"):
        weights_key("nobody/nothing")
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="safetensors"):  # or all models without would be the same one
        weights_key(tmp_path / "none")


# ---------------------------------------------------------------- scores and settings


@pytest.mark.parametrize(
    ("given", "answer", "right"),
    [
        ("Red.", "red", 1),
        ("The colour is red.", "red", 1),
        ("It is reddish", "red", 0),
        ("There are three of them.", "3", 1),
        ("13", "3", 0),
        ("a", "A", 1),
        ("An apple", "apple", 1),
        ("", "red", 0),
        ("3.5", "3", 0),
        ("STOP here", "stop here", 1),
    ],
)
def test_an_answer_may_stand_in_a_sentence(given, answer, right):
    assert METRICS["contains"](given, ["something else", answer]) == right


def test_all_settings_that_are_tried_can_be_made():
    owner = tiny.wrapped(tiny.stock())
    tried = [one for look in tuning.first_looks() for one in tuning.with_exponents(look)] + tuning.few_settings()
    assert {spec: one for one in tried if (spec := tuning.spec_of(one))} != {}
    for settings in tried:
        selector = read_selector(tuning.spec_of(settings), owner.arr_coc_config, owner.layer)
        assert settings_in_force(SimpleNamespace(selector=selector)) == settings


def test_shares_of_the_evidence_are_those_of_the_field():
    torch.manual_seed(0)
    keep_RN, evidence_RN = torch.rand(20, 30) < 0.3, torch.rand(20, 30) < 0.2
    evidence_RN[3] = False
    wanted = [
        found_evidence(set(keep.nonzero().flatten().tolist()), set(evidence.nonzero().flatten().tolist()))[0]
        for keep, evidence in zip(keep_RN, evidence_RN, strict=True)
    ]
    assert tuning.kept_share(keep_RN, evidence_RN, keep_RN.sum(-1)) == pytest.approx(wanted)


def test_what_luck_may_have_given_is_no_gain():
    usual = [(image, 0.5) for image in range(20)]
    sure = [(image, 0.6) for image in range(20)]
    lucky = [(image, 1.5 if image == 0 else 0.5) for image in range(20)]
    assert tuning.sure_gain(usual, usual) == 0
    assert tuning.sure_gain(sure, usual) == pytest.approx(0.1)
    assert tuning.sure_gain(lucky, usual) < 0.01
    assert tuning.sure_gain([(0, 1.0)] * 9, [(0, 0.5)] * 9) < 0  # nine questions about one image


def test_a_larger_first_look_must_find_more():
    usual = default_settings()
    assert tuning.price_of(usual, 7) == 0
    assert tuning.price_of({**usual, "least": 128}, 7) == pytest.approx(tuning.PRICE, abs=0.002)
    found = {
        tuning.spec_of(one): [(image, 0.5 + 0.1 * (one["information"] == 2.0)) for image in range(9)]
        for look in tuning.first_looks()
        for one in tuning.with_exponents(look)
    }
    best = tuning.finalists(found, 7)[1]
    assert best["information"] == 2.0
    assert {**best, "information": usual["information"]} == usual  # nothing speaks for another first look


# ---------------------------------------------------------------- advice


def answers_where(right):
    """Answers of all methods to 60 questions about 20 images; `right` tells a method's from its family."""
    specs = ("look_twice", "even_grid", "random")
    methods = [Method(spec, encoding, keep) for spec in specs for encoding in ENCODINGS for keep in KEEPS]
    families = ("colour", "count", "sign")
    return {
        method: [
            {"image": n // 3, "family": families[n % 3], "score": float(right(method, families[n % 3], n))}
            for n in range(60)
        ]
        for method in (*methods, ALL)
    }


def test_families_that_lose_are_named():
    made = answers_where(lambda method, family, n: method == ALL or (method.name == "look_twice" and family != "count"))
    lines = advice.when_not(made, "look_twice", advice.recommend(made, "look_twice"))
    assert "count questions lose 100 points at 25%: keep all tokens for them" in lines
    assert any("every budget loses" in line for line in lines)
    assert not any("colour" in line or "even grid" in line or "only" in line for line in lines)
    few = {method: records[:9] for method, records in made.items()}
    assert any(
        "only 9 questions" in line for line in advice.when_not(few, "look_twice", {"encoding": "sparse", "keep": 0.5})
    )


def test_the_least_budget_and_the_better_encoding_are_recommended():
    made = answers_where(lambda method, _, n: method.keep >= 0.1)
    recommended = advice.recommend(made, "look_twice")
    assert recommended == {"encoding": "sparse", "keep": 0.1}
    lines = advice.when_not(made, "look_twice", recommended)
    assert sum("even grid is not surely worse" in line for line in lines) == len(KEEPS)
    made = answers_where(lambda method, _, n: method.encoding == "dense" or n % 4 > 0)
    assert advice.recommend(made, "look_twice") == {"encoding": "dense", "keep": 0.06}
    assert any("use dense" in line for line in advice.when_not(made, "look_twice", {"encoding": "dense", "keep": 0.06}))


def test_what_is_surely_worse_than_another_is_told():
    made = answers_where(lambda method, _, n: method.name != "look_twice" or n % 2 > 0)
    figure = advice.against_best(made, "look_twice", ["look_twice", "even_grid"])
    assert (figure["best"], figure["surely_worse"]) == ("even_grid", True)
    assert not advice.against_best(made, "look_twice", ["look_twice"])["surely_worse"]


# ---------------------------------------------------------------- the whole command


class Clock:
    """Time that passes with the work, so that no machine is too slow for these tests."""

    def __init__(self, each):
        self.now, self.each = 100.0, each

    def monotonic(self):
        self.now += 1e-3
        return self.now

    perf_counter = monotonic

    def unit(self, *arguments):
        self.now += self.each
        return self.real(*arguments)


@pytest.fixture
def clock(monkeypatch):
    """An answer of a batch takes a tenth of a second; few settings are tried, and images are small."""
    made = Clock(0.1)
    made.real = tuning.unit
    for name, value in {
        "unit": made.unit,
        "time": made,
        "SIDE": 128,
        "ALONE": (128,),
        "MOST_TOKENS": 2,
        "MOST_QUESTIONS": 24,
    }.items():
        monkeypatch.setattr(tuning, name, value)
    monkeypatch.setattr(advice, "time", made)
    monkeypatch.setattr("arr_coc.cli.train.time", made)
    for name, value in {"GLANCES": ((2, 4),), "DEPTHS": (1.0,), "INFORMATION": (0.5,), "PERSPECTIVAL": (0.0,)}.items():
        monkeypatch.setattr(tuning, name, value)
    return made


def tune(folder, *options, minutes="0.7"):
    return run(["tune", "--model", str(folder), "--minutes", minutes, "--device", "cpu", *options])


def test_tuning_ends_in_time_and_is_found_again(folder, clock, capsys):
    clock.each, began = 0.3, clock.now
    assert tune(folder) == 0
    assert clock.now - began <= 42
    out, err = capsys.readouterr()
    assert "questions will be judged" in err
    assert "128 px" in out
    assert out.count("sparse") >= 5
    report = json.loads((folder / TUNING_FILE).read_text())
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(report)
    assert report["complete"]
    assert 0 < report["table"][0]["n"] < tuning.MOST_QUESTIONS / 2
    assert {row["encoding"] for row in report["table"]} == set(ENCODINGS)
    assert {row["keep"] for row in report["table"]} == {*KEEPS, "auto", 1.0}
    assert len({row["n"] for row in report["table"]}) == 1
    assert settings_in_force(ARRCOCQwen.from_pretrained(folder)) == report["settings"]
    assert not report["recommended_vs_best"]["surely_worse"]


def test_the_halves_share_no_image_and_questions_ask_for_short_answers(folder, clock, monkeypatch):
    seen = []
    monkeypatch.setattr("arr_coc.evaluation.tuning.is_mini", lambda _: False)
    tuner = Tuner(tuning.TuneOptions(str(folder), minutes=0.7, device="cpu", bar=False), seen.append)
    tuner.run()
    picking = {record["image"] for record in tuner.confirmed[Method("look_twice", "sparse", CLOSE[0])]}
    judging = tuner.judged["128 px"][ALL]
    assert picking
    assert not picking & {record["image"] for record in judging}
    assert all(record["text"].endswith(tuning.BRIEF) for record in judging)
    assert all(record["family"] != "describe" for record in judging)


@pytest.mark.parametrize("stage", ["_look", "_confirm", "first batch", "second batch"])
def test_an_interrupt_ends_it_with_what_there_is(stage, folder, clock, monkeypatch, capsys):
    calls, answer = [], Tuner._answer

    def interrupted(self, looked, methods):
        calls.append(len(methods))
        if calls.count(calls[-1]) == (1 if stage == "first batch" else 2) and len(methods) > 20:
            raise KeyboardInterrupt
        return answer(self, looked, methods)

    def at_once(*_):
        raise KeyboardInterrupt

    if stage.endswith("batch"):
        monkeypatch.setattr(Tuner, "_answer", interrupted)  # of the table
    else:
        monkeypatch.setattr(Tuner, stage, at_once)
    assert tune(folder, "--json") == EXIT_INTERRUPTED
    out, err = capsys.readouterr()
    report = json.loads(out)
    Draft202012Validator(SCHEMA).validate(report)
    assert not report["complete"]
    assert err.endswith("arr-coc: interrupted\n")
    assert bool(report["table"]) == (stage == "second batch") == (folder / TUNING_FILE).is_file()


def test_own_questions_without_answers_are_held_against_the_model_itself(folder, clock, tmp_path):
    for number in range(4):
        tiny.picture(128, 128, number).save(tmp_path / f"{number}.png")
    lines = [json.dumps({"image": f"{n}.png", "question": "what?"}) for n in range(4)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    assert tune(folder, "--data", f"jsonl:{tmp_path}/own.jsonl", "--out", str(tmp_path / "r.json"), minutes="2") == 0
    report = json.loads((tmp_path / "r.json").read_text())
    (whole,) = [row for row in report["table"] if row["keep"] == 1.0]
    assert whole["accuracy"] == 1
    assert report["tried"]["by_evidence"] == 0
    assert not (folder / TUNING_FILE).exists()


def test_too_little_time_and_too_few_images_are_told(folder, clock, tmp_path, capsys):
    clock.each = 5.0
    assert tune(folder) == 3
    assert "give --minutes" in capsys.readouterr().err
    clock.each = 0.1
    tiny.picture(128, 128).save(tmp_path / "0.png")
    (tmp_path / "own.jsonl").write_text(json.dumps({"image": "0.png", "question": "what?"}))
    assert tune(folder, "--data", f"jsonl:{tmp_path}/own.jsonl") == 3
    assert "two images" in capsys.readouterr().err


@pytest.mark.soak
def test_mini_is_tuned_in_a_minute(tmp_path, capsys):
    assert run(["tune", "--model", "mini", "--minutes", "1", "--out", str(tmp_path / "r.json")]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert not report["recommended_vs_best"]["surely_worse"]
    rows = {(row["settings"], row["encoding"], row["keep"]): row["accuracy"] for row in report["table"]}
    (chosen,) = {row["settings"] for row in report["table"] if row["keep"] == "auto"}
    assert rows[chosen, "sparse", 0.25] > rows["even_grid", "sparse", 0.25]
