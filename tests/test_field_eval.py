"""The bench of the field: scores, statistics, engines that agree, runs that go on after a kill, a trained rival."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc import ARRCOCConfig
from arr_coc.cli.run import run
from arr_coc.data.sources import FORMS, METRIC_OF, READERS, read_source
from arr_coc.evaluation.field import main as field_main
from arr_coc.evaluation.field.batch import make_batch
from arr_coc.evaluation.field.data import (
    METRICS,
    SMALL_TEXT,
    anls,
    batches,
    edit_distance,
    exact,
    found_evidence,
    ids_of,
    read_pictures,
    relaxed,
    scene_pictures,
    score,
    vqa,
    vqa_plain,
)
from arr_coc.evaluation.field.main import Bench, FieldOptions, evaluate_field, samples_path
from arr_coc.evaluation.field.methods import FIELD, Method, build, check_counts, check_prompts, plan, reference_of
from arr_coc.evaluation.field.run import Samples, pack_cells
from arr_coc.evaluation.statistics import flip_p, holm
from arr_coc.qwen import vision as encoding
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.qwen.request import Hints
from arr_coc.records import QuestionTokens
from arr_coc.selectors import PLAIN, View, make_selector, settings_of
from arr_coc.timing import Stopwatch
from arr_coc.training.config import SelectorTrainConfig
from arr_coc.training.data import SceneBatches, make_encoder
from studies.cells import unpack_cells
from studies.equal_tokens import equal_tokens
from studies.rival.selector import RivalScorer, RivalSelector, load_rival, mmr_order, save_rival
from studies.rival.train import load_state, make_rival, save_state, train_rival

SMALL = 192  # px of the scenes here: 36 cells
TIMES = ("time_ms", "memory_mb", "seconds")


# ---------------------------------------------------------------- scores


def test_scores_by_hand():
    assert exact(" red ", ("red",)) == 1
    assert exact("Red", ("red", "blue")) == 0
    # "kitten" -> "sitting": two replacements and one insertion; 1 - 3 / 7 = 0.571. One half or less is wrong.
    assert edit_distance("kitten", "sitting") == 3
    assert anls("Kitten", ("sitting",)) == pytest.approx(4 / 7)
    assert anls("ab", ("ac",)) == 0
    assert anls("Total:  12", ("nothing", "total: 12")) == 1
    assert [relaxed("104", ("100",)), relaxed("106", ("100",)), relaxed("0.1", ("0",))] == [1, 0, 0]
    assert [relaxed("12%", ("0.12",)), relaxed("1,040", ("1000",)), relaxed("Norway", ("norway",))] == [1, 1, 1]
    # Said by 2 of 10: leaving one of the two out leaves 1/3 (twice), leaving out any other 2/3 (eight times).
    people = ("cat", "cat", *["dog"] * 8)
    assert vqa("a cat", people) == pytest.approx((2 * 1 / 3 + 8 * 2 / 3) / 10)
    assert vqa("dog.", people) == 1
    assert vqa_plain("The two dogs, 1,000!") == "2 dogs 1000"
    assert score("none", "x", ("x",)) is None
    assert score("f1", "a red cup and a blue hat", ("a red cup",)) == pytest.approx(2 / 3)


@given(st.text(max_size=8), st.text(max_size=8))
def test_edit_distance_is_a_distance(a, b):
    assert edit_distance(a, b) == edit_distance(b, a) <= max(len(a), len(b))
    assert (edit_distance(a, b) == 0) == (a == b)


def test_evidence_is_measured_against_what_could_be_held():
    assert found_evidence({1, 2, 3, 4}, {2, 3}) == (1.0, 0.5)
    assert found_evidence({2}, {2, 3, 4}) == (1.0, 1.0)
    assert found_evidence({5}, {2, 3}) == (0.0, 0.0)
    assert found_evidence({5}, set()) == (None, None)


@given(st.sets(st.integers(0, 199)))
def test_cells_survive_being_packed(cells):
    assert unpack_cells(pack_cells(sorted(cells), 200)) == sorted(cells)
    assert len(pack_cells(sorted(cells), 200)) == 50


# ---------------------------------------------------------------- statistics


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.5; never falling.
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_and_keeps_the_order(p):
    corrected = holm(p)
    assert all(a <= b <= 1 for a, b in zip(p, corrected, strict=True))
    assert [corrected[i] for i in np.argsort(p, kind="stable")] == sorted(corrected)


def test_whole_images_change_their_sign():
    # Ten images that all differ by the same: only all plus or all minus is as large, 2 of 1,024.
    images = np.repeat(np.arange(10), 5)
    p = flip_p(np.stack([np.ones(50), np.zeros(50), np.tile([1.0, -1.0], 25)], 1), images)
    assert p[0] == pytest.approx(2 / 1024, rel=0.3)
    assert p[1] == 1
    # Five questions of each of ten images are ten values, not fifty.
    assert flip_p(np.ones((50, 1)), np.arange(50))[0] < p[0] / 10


# ---------------------------------------------------------------- methods and checks


def test_methods_are_planned_where_they_can_work(bench):
    assert settings_of("rival:path=a/b,diversity=0.5") == ("rival", {"path": "a/b", "diversity": 0.5})
    methods = plan(bench.selectors, [0.25, 9], ["sparse", "dense"], True)
    sparse = {method.name for method in methods if method.encoding == "sparse"}
    assert sparse == {"arr_coc", "look_twice", "random", "even_grid", "oracle"}
    assert {method.name for method in methods if method.encoding == "dense"} == {*bench.selectors_names, PLAIN}
    assert [method.encoding for method in methods] == sorted((m.encoding for m in methods), reverse=True)
    assert {method.name for method in methods if method.trained} == {"arr_coc"}
    with pytest.raises(ValueError, match="works after the ViT: add --encoding dense"):
        plan(bench.selectors, [0.25], ["sparse"], False)
    for keep in ("auto", 1.0, 0.0):
        with pytest.raises(ValueError, match="keep"):
            plan(bench.selectors, [keep], ["dense"], False)
    with pytest.raises(ValueError, match="NAME:KEY=VALUE"):
        settings_of("random:seed")
    with pytest.raises(ValueError, match="no setting 'sed'"):
        build(bench.owner, ["random:sed=1"])


def test_arr_coc_is_held_against_its_own_encoding():
    sparse, dense = Method("arr_coc", "sparse", 0.25), Method("arr_coc", "dense", 0.25)
    assert reference_of(Method("divprune", "dense", 0.25), [sparse, dense]) == dense
    assert reference_of(Method("divprune", "dense", 0.25), [sparse]) == sparse
    assert reference_of(Method("divprune", "dense", 0.1), [sparse, dense]) is None


def test_a_method_that_is_silently_off_is_refused():
    method = Method("x", "dense", 0.25)
    records = [{"total": 256, "tokens": tokens} for tokens in (64, 66)]
    check_counts(method, records, resizes=False)
    with pytest.raises(ValueError, match=r"silently off: x dense 0.25 kept 66.0 .* 64.0 were asked for"):
        check_counts(method, [{"total": 256, "tokens": 66}], resizes=False)
    check_counts(method, [{"total": 256, "tokens": 66}], resizes=True)
    with pytest.raises(ValueError, match="silently off"):
        check_counts(method, [{"total": 256, "tokens": 256}], resizes=True)


def test_other_prompts_and_missing_answers_are_refused():
    table = {"a": {"0/0": {"prompt": "1"}}, "b": {"0/0": {"prompt": "1"}}}
    check_prompts(table)
    with pytest.raises(ValueError, match="0/0 reached b in other bytes than a"):
        check_prompts({**table, "b": {"0/0": {"prompt": "2"}}})


# ---------------------------------------------------------------- engines


class SmallBench(Bench):
    @property
    def selectors_names(self):
        return {spec.partition(":")[0] for spec in self.selectors}


@pytest.fixture(scope="module")
def bench():
    specs = [spec for spec in FIELD if spec not in ("random:seed=1", "random:seed=2")]
    return SmallBench(FieldOptions(selectors=tuple(specs), device="cpu", most_tokens=12))


@pytest.fixture(scope="module")
def looked(bench):
    return make_batch(bench.owner, scene_pictures(6, SMALL, 3))


def test_every_source_has_a_reader_and_a_score():
    assert READERS.keys() == METRIC_OF.keys() == FORMS.keys() - {"scenes"}
    assert set(METRIC_OF.values()) <= {*METRICS, "none"}


def test_both_engines_answer_alike(bench, looked):
    again = replace(looked, known={})
    answers = {}
    for method in plan(bench.selectors, [0.25], ["sparse", "dense"], True):
        plain = bench.plain.run(again, method)
        answers[method.key] = plain.answers
        if not bench.fast.suits(method):
            assert method.name == "fastv"
            continue
        fast = bench.fast.run(looked, method)
        assert fast.kept == plain.kept, method
        assert fast.tokens == plain.tokens == [9] * 6 or method.name in (PLAIN, "downsampling")
        assert fast.prompts == plain.prompts, method
        assert [a.strip() for a in fast.answers] == [a.strip() for a in plain.answers], method
        assert set(fast.time_ms) == set(plain.time_ms) == {"select", "vision", "prefill", "decode"}
    assert len({tuple(given) for given in answers.values()}) > 6, "methods do differ"


@pytest.mark.parametrize("name", ["arr_coc", "fastv", "visionzip", "downsampling", "oracle", "random:seed=0"])
def test_the_engines_answer_as_generate_does(bench, looked, name):
    batch, owner = looked, bench.owner
    method = Method(name, "sparse" if name == "arr_coc" else "dense", 0.25)
    made = bench.engine_of(method).run(looked, method)
    inputs = encode(owner.processor, [Conversation([Image.fromarray(p.read())], q.text) for _, p, q in asked(batch)])
    inputs.pop("mm_token_type_ids")
    before = owner.selector, owner.arr_coc_config
    owner.selector, owner.arr_coc_config = (
        bench.selectors[name],
        replace(owner.arr_coc_config, encoding=method.encoding),
    )
    ids = owner.generate(
        **inputs,
        keep=0.25,
        hints=Hints([query.boxes for query in batch.queries], [picture.number for picture in batch.pictures]),
        max_new_tokens=12,
        do_sample=False,
    )
    owner.selector, owner.arr_coc_config = before
    texts = owner.processor.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert [text.strip() for text in texts] == [text.strip() for text in made.answers]


def test_foveated_is_counted_with_its_small_copies_and_asked_in_the_same_bytes(bench, looked):
    early = {name: bench.selectors[name] for name in ("arr_coc", "look_twice", "oracle", "even_grid")}
    methods = plan(early, [16], ["foveated"], False)
    assert [method.name for method in methods] == list(early)
    assert all(bench.engine_of(method) is bench.plain for method in methods)
    for late in ("divprune", "fastv", "downsampling"):
        with pytest.raises(ValueError, match="add --encoding dense"):
            plan({late: bench.selectors[late]}, [16], ["foveated"], False)
    made = bench.plain.run(looked, Method("look_twice", "foveated", 16))
    assert made.tokens == [16] * 6
    assert [len(cells) for cells in made.kept] == [16 - 4] * 6
    assert made.prompts == list(looked.prompts)
    before = bench.owner.arr_coc_config
    for context in ("never", "auto", "always"):
        bench.owner.arr_coc_config, method = replace(before, context=context), Method("look_twice", "sparse", 3)
        fast, plain = bench.fast.run(looked, method), bench.plain.run(looked, method)
        assert (fast.kept, fast.answers) == (plain.kept, plain.answers), context
    bench.owner.arr_coc_config = before


def asked(batch):
    return list(zip(batch.ids, batch.pictures, batch.queries, strict=True))


def test_an_image_is_encoded_once_for_all_methods(bench, looked, monkeypatch):
    calls = []
    real = encoding.encode_dense
    monkeypatch.setattr(encoding, "encode_dense", lambda *args, **kwargs: (calls.append(1), real(*args, **kwargs))[1])
    fresh = replace(looked, known={})
    for name in ("training_free", "divprune", "visionzip", "pooling", "fastv"):
        method = Method(name, "dense", 0.25)
        bench.engine_of(method).run(fresh, method)
    assert len(calls) == 1


# ---------------------------------------------------------------- whole runs


OPTIONS = FieldOptions(
    selectors=("arr_coc", "even_grid", "cdpruner", PLAIN),
    keeps=(0.25, 4),
    sides=(SMALL,),
    questions=8,
    device="cpu",
    most_tokens=8,
    cells_at_once=160,
)


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key not in TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def lines_of(path):
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "field.json"
    said = []
    return evaluate_field(replace(OPTIONS, out=out), said.append), out, said


def test_the_table(whole):
    report, out, said = whole
    rows = report["rows"]
    assert len(rows) == len(said) == 2 * (2 + 3) + 1
    assert timeless(json.loads(out.read_text())) == timeless(json.loads(json.dumps(report)))
    for row in rows:
        assert {"selector", "trained", "encoding", "side", "keep", "accuracy", "ci95", "recall", "tokens"} <= set(row)
        assert row["trained"] == (row["selector"] == "arr_coc")
        assert row["n"] == 8
        assert row["tokens"] == {0.25: 9, 4: 4, 1.0: 36}[row["keep"]]
        assert row["ci95"][0] <= row["accuracy"] <= row["ci95"][1]
        tested = row["selector"] not in ("arr_coc", PLAIN)
        assert (row["p_vs_arr_coc"] is not None) == tested
        assert row["time_ms"]["first_token"] > 0
    full = next(row for row in rows if row["selector"] == PLAIN)
    assert (full["recall"], full["equivalent_tokens"]) == (1.0, 36)


def test_a_killed_run_goes_on_and_ends_as_an_unbroken_one(whole, tmp_path, monkeypatch):
    report, out, _ = whole
    samples = samples_path(out, "scenes", SMALL)
    text = samples.read_text().splitlines(keepends=True)
    half = len(text) // 2
    again = tmp_path / "field.json"
    samples_path(again, "scenes", SMALL).write_text("".join(text[:half]) + text[half][:40])
    units = []
    real = field_main.unit
    monkeypatch.setattr(field_main, "unit", lambda *args: (units.append(args), real(*args))[1])
    resumed = evaluate_field(replace(OPTIONS, out=again), lambda line: None)
    assert timeless(resumed) == timeless(report)
    assert lines_of(samples_path(again, "scenes", SMALL)) == lines_of(samples)
    assert 0 < len(units) < len(list(batches(scene_pictures(8, SMALL, 0), 160, 32))) * 11


def test_samples_of_another_run_are_refused(whole, tmp_path):
    out = whole[1]
    with pytest.raises(ValueError, match=r"made with another questions: give another --out"):
        evaluate_field(replace(OPTIONS, out=out, questions=7), lambda line: None)
    wrong = tmp_path / "x.jsonl"
    wrong.write_text("{]\n")
    with pytest.raises(ValueError, match="not a file of samples"):
        Samples(wrong, {})


def test_a_selector_that_keeps_too_much_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("arr_coc.selectors.controls.even_cells", lambda k, height, width: tuple(range(2 * k)))
    with pytest.raises(ValueError, match="method silently off: even_grid"):
        evaluate_field(
            replace(OPTIONS, selectors=("even_grid",), keeps=(4,), questions=2, out=tmp_path / "f.json"), str
        )


def test_equal_tokens_compares_one_scene_at_two_sizes(tmp_path):
    options = FieldOptions(questions=6, device="cpu", most_tokens=6, out=tmp_path / "equal.json")
    report = equal_tokens(options, lambda line: None, side=256, tokens=16)
    assert {row["selector"]: row["tokens"] for row in report["rows"]} == {
        "arr_coc": 16, "oracle": 16, "downsampling": 16, PLAIN: 64
    }  # fmt: skip
    gains = report["gains"]["arr_coc sparse"]
    assert set(gains) == {"overall", SMALL_TEXT, "many things"}
    sparse = [row for row in report["rows"] if row["encoding"] == "sparse" or row["selector"] == "downsampling"]
    accuracy = {row["selector"]: row["accuracy"] for row in sparse}
    assert gains["overall"]["mean"] == pytest.approx(accuracy["arr_coc"] - accuracy["downsampling"], abs=1e-4)
    assert 0 < gains["overall"]["p"] <= 1
    groups = [group for _, _, query in ids_of(scene_pictures(60, 1024, 0, "hard")) for group in query.groups]
    assert groups.count(SMALL_TEXT) > 10
    assert groups.count("hard") == 60


def test_eval_as_a_command(tmp_path, capsys):
    out = str(tmp_path / "field.json")
    few = ["eval", "--questions", "2", "--side", str(SMALL), "--keep", "4", "--selector", "even_grid", "--out", out]
    assert run([*few, "--encoding", "sparse", "--device", "cpu"]) == 0
    printed, said = capsys.readouterr()
    assert printed.split()[0] == json.loads(Path(out).read_text())["rows"][0]["selector"] == "even_grid"
    assert run([*few, "--encoding", "sparse", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path(out).read_text())
    assert "%|" not in said.replace("Loading weights", "").split("even_grid")[-1], "no bar in a pipe"
    assert run(["eval", "--data", "docvqa:none.json:none", "--out", out, "--device", "cpu"]) == 3
    assert "none.json: no such file" in capsys.readouterr().err
    assert run(["eval", "--equal-tokens", "--keep", "0.25", "--out", out]) == 2
    assert "python -m studies.equal_tokens" in capsys.readouterr().err


# ---------------------------------------------------------------- local files


@pytest.fixture
def pages(tmp_path):
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (96, 64), (40 * number, 90, 90)).save(folder / f"{number}.png")
    return folder


def documents(tmp_path, **changes):
    rows = [
        {"questionId": n, "question": f"What is {n}?", "image": f"documents/{n}.png", "answers": [f"N{n}", "x"]}
        for n in range(3)
    ]
    rows[0] |= {"answer_boxes": [[0, 0, 48, 32]], **changes}
    path = tmp_path / "val.json"
    path.write_text(json.dumps({"data": rows}))
    return path


def test_documents_with_answer_boxes(tmp_path, pages):
    spec = f"docvqa:{documents(tmp_path)}:{pages}"
    pictures = read_pictures(spec, 10, 0, 0, None, str)
    queries = {query.text: query for _, _, query in ids_of(pictures)}
    first = queries["What is 0?"]
    assert (first.metric, first.answers, first.boxes) == ("anls", ("N0", "x"), ((0, 0, 0.5, 0.5),))
    assert queries["What is 1?"].boxes is None
    assert [p.number for p in read_pictures(spec, 2, 0, 0, None, str)] == [p.number for p in pictures][:2]
    for change, says in (({"answers": []}, "no answers"), ({"answer_boxes": 3}, "not a list"), ({"image": 3}, "text")):
        with pytest.raises(ValueError, match=says):
            read_source(f"docvqa:{documents(tmp_path, **change)}:{pages}", max_broken=0.0)


def test_charts_and_half_copied_folders(tmp_path, pages):
    path = tmp_path / "human.json"
    rows = [{"imgname": f"{n}.png", "query": "How much?", "label": n / 2} for n in range(3)]
    path.write_text(json.dumps(rows))
    (query, *_) = [query for _, _, query in ids_of(read_pictures(f"chartqa:{path}:{pages}", 9, 0, 0, None, str))]
    assert (query.metric, query.family) == ("relaxed", "human")
    assert {row.answer for row in read_source(f"chartqa:{path}:{pages}").rows} == {"0", "0.5", "1"}
    (pages / "1.png").unlink()
    with pytest.raises(ValueError, match=r"2 of 3 images are there, the first missing one is 1.png; copy the folder"):
        read_source(f"chartqa:{path}:{pages}")
    with pytest.raises(ValueError, match="no such folder of images"):
        read_source(f"chartqa:{path}:{tmp_path}/none")
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a list of questions"):
        read_source(f"chartqa:{path}:{pages}")
    with pytest.raises(ValueError, match="unknown dataset 'photos'"):
        read_pictures("photos", 5, 512, 0, None, str)


def test_files_are_evaluated_too(tmp_path, pages):
    options = replace(OPTIONS, datasets=(f"docvqa:{documents(tmp_path)}:{pages}",), selectors=("arr_coc", PLAIN))
    rows = evaluate_field(replace(options, keeps=(2,), out=tmp_path / "f.json"), lambda line: None)["rows"]
    assert {(row["dataset"], row["side"], row["n"]) for row in rows} == {("docvqa-val", None, 3)}
    assert str(tmp_path) not in (tmp_path / "f.json").read_text(), "no paths of a machine in results"


# ---------------------------------------------------------------- the trained rival


def problem(rows: int, seed: int):
    """Cells of which three match the question's word, in a space that must be learned: 16 words, 12 cells."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    looks = torch.randn(16, 24, generator=torch.Generator().manual_seed(2))
    word_R = torch.randint(16, (rows,), generator=generator)
    thing_RN = torch.randint(16, (rows, 12), generator=generator)
    target_RN = torch.rand(rows, 12, generator=generator).argsort(-1) < 3
    other_RN = torch.where(thing_RN == word_R[:, None], (thing_RN + 1) % 16, thing_RN)
    thing_RN = torch.where(target_RN, word_R[:, None], other_RN)
    return looks[thing_RN], QuestionTokens.of(words[word_R].unsqueeze(1)), target_RN


def test_the_rival_learns():
    torch.manual_seed(0)
    scorer = RivalScorer(24, 32)
    optimizer = torch.optim.AdamW(scorer.parameters(), lr=3e-3)

    def recall():
        visual, question, target_RN = problem(64, seed=999)
        return float(target_RN.gather(1, scorer(visual, question).topk(3).indices).float().mean())

    before = recall()
    for step in range(60):
        visual, question, target_RN = problem(64, seed=step)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scorer(visual, question), target_RN.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert before < 0.5
    assert recall() > 0.95


def test_marginal_relevance_by_hand():
    # Cells 0 and 1 are alike, 2 is not. Relevance alone: 0, 1. Half diversity: 0 first (0.45); then 1 is worth
    # 0.4 - 0.5 = -0.1 and 2 is worth 0.15 - 0 = 0.15.
    tokens, scores = torch.tensor([[[1.0, 0], [1, 0], [0, 1]]]), torch.tensor([[0.9, 0.8, 0.3]])
    assert mmr_order(scores, tokens, 3, 0.5).tolist() == [[0, 2, 1]]
    assert mmr_order(scores, tokens, 2, 0.0).tolist() == [[0, 1]]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.integers(1, 12))
def test_no_diversity_is_relevance_alone(seed, k):
    visual, question, _ = problem(2, seed)
    scorer, config = RivalScorer(24, 8).eval(), ARRCOCConfig(hidden_dim=24)
    view = View((3, 4), question, None, visual)
    picked = {}
    for diversity in (0.0, 1e-9, 0.9):
        selector = RivalSelector(config, scorer, diversity)
        keep = selector.choose(selector.judge(view, Stopwatch()), torch.tensor([k, k])).keep_BHW
        assert keep.flatten(1).sum(-1).tolist() == [k, k]
        picked[diversity] = keep.tolist()
    assert picked[0.0] == picked[1e-9]


def test_the_rival_is_saved_and_loaded_by_name(tmp_path):
    config = ARRCOCConfig(hidden_dim=24)
    scorer = RivalScorer(24, 8)
    save_rival(tmp_path, scorer, {"steps": 1})
    loaded = make_selector("rival", config, None, path=str(tmp_path), diversity=0.3)
    visual, question, _ = problem(2, 0)
    assert torch.equal(loaded.scorer(visual, question), scorer.eval()(visual, question))
    assert Method(f"rival:path={tmp_path}", "dense", 0.25).trained
    with pytest.raises(ValueError, match="give its weights, as in rival:path="):
        make_selector("rival", config, None)
    with pytest.raises(ValueError, match="no trained rival there"):
        load_rival(tmp_path / "none")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "rival.safetensors").read_bytes()[:99])
    with pytest.raises(ValueError, match="not the weights of a rival"):
        load_rival(tmp_path / "cut.safetensors")
    with pytest.raises(ValueError, match="width of 24, this model has 32"):
        RivalSelector(ARRCOCConfig(hidden_dim=32), scorer)


def rival_config(**changes):
    few = {
        "sizes": ((128, 128, 1.0),),
        "cells_per_batch": 64,
        "workers": 0,
        "evaluate_questions": 6,
        "precision": "float32",
    }
    return SelectorTrainConfig(**{**few, "steps": 2, "warmup_steps": 1, **changes})


def test_training_writes_a_rival_that_can_be_compared(tmp_path):
    path = train_rival(rival_config(), tmp_path, lambda line: None, "cpu")
    selector = make_selector("rival", ARRCOCConfig(hidden_dim=load_rival(path).hidden_dim), None, path=str(path))
    assert selector.name == "rival"
    with pytest.raises(ValueError, match="the rival learns from the boxes of scenes"):
        train_rival(rival_config(stage=2), tmp_path, lambda line: None, "cpu")


def test_a_stopped_rival_goes_on_exactly(bench, tmp_path):
    config, device = rival_config(steps=4), torch.device("cpu")
    batches_ = SceneBatches(config, make_encoder(bench.owner.processor.tokenizer))
    model = bench.owner.model
    whole, parts = make_rival(config, model, device), make_rival(config, model, device)
    losses = [whole.learn(step, batches_[step], device) for step in range(4)]
    assert all(math.isfinite(loss) for loss in losses)
    for step in range(2):
        parts.learn(step, batches_[step], device)
    save_state(parts, tmp_path / "checkpoint.safetensors", 2)
    parts = make_rival(config, model, device)
    for step in range(load_state(parts, tmp_path / "checkpoint.safetensors"), 4):
        parts.learn(step, batches_[step], device)
    for name, tensor in whole.scorer.state_dict().items():
        assert torch.equal(tensor, parts.scorer.state_dict()[name]), name
