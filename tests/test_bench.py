"""The bench: rows that say what they claim, reports that compute what they say, commands that print it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.cli.run import run
from arr_coc.evaluation.bench import main as bench
from arr_coc.evaluation.bench import report as bench_report
from arr_coc.evaluation.bench.cases import (
    Case,
    Subject,
    load_subject,
    make_inputs,
    random_owner,
)
from arr_coc.evaluation.bench.measure import measure, per_token, summarize, watch_peak, way_of
from arr_coc.qwen.request import cells_of, samples_of_images, token_types
from studies.speed import startup
from studies.speed.ask import ask_rows, soak
from studies.speed.bench import break_even_cases, looks_cases, promised_cases
from studies.speed.equality import compare, first_difference

ASKED_FOR = {
    *("side", "batch", "kept", "encoding", "mode"),
    *("select_ms", "vision_ms", "prefill_ms", "ttft_ms", "peak_mb"),
}


@pytest.fixture(scope="module")
def subject() -> Subject:
    stock = tiny.stock()
    return Subject("tiny", stock, {sight: random_owner(stock, sight) for sight in ("stem", "glance", "look_twice")})


@pytest.fixture(scope="module")
def rows(subject) -> list[bench_report.Row]:
    cases = bench.grid_of_cases([64, 128, 192], [1], [4], decode=2, repeats=1)
    cases += bench.grid_of_cases([128], [2], [4, 8], ["sparse"], ["graphs"], ["stem", "glance"], repeats=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arr_coc.evaluation.bench.measure.WARM_UPS", 1)
        patch.setattr("arr_coc.evaluation.bench.measure.DECODES", 1)
        return bench.run_cases(subject, cases, 12, lambda _: None)


def row(**changes) -> bench_report.Row:
    made = {"model": "m", "side": 1024, "batch": 1, "tokens": 1024, "text_tokens": 50, "kept": 200, "sight": "stem"}
    made |= {"encoding": "sparse", "mode": "graphs", "select_ms": 1.0, "vision_ms": 4.0, "prefill_ms": 5.0}
    made |= {"ttft_ms": 10.0, "spread_ms": 0.1, "decode_ms": 2.0, "peak_mb": 4300.0, "peak_above_mb": 43.0}
    made |= changes
    return made | {"wall_ttft_ms": made["ttft_ms"]}


DENSE = {"encoding": "dense", "kept": 1024, "sight": None, "select_ms": 0.0}
MEASURED = [
    row(**DENSE, ttft_ms=25.0, peak_mb=5000.0, peak_above_mb=430.0),
    row(),
    row(**DENSE, mode="eager", ttft_ms=46.0, decode_ms=26.0),
    row(encoding="after-vit", ttft_ms=20.0),
]


# ---------------------------------------------------------------- cases


def test_every_combination_is_measured_once():
    cases = bench.grid_of_cases([512, 1024], [1, 8], [64, 200], decode=5)
    assert len(cases) == len(set(cases)) == 2 * 2 * 2 * (1 + 2 + 2)
    assert {case.decode for case in cases if case.batch == 8} == {0}
    assert {case.decode for case in cases if case.batch == 1} == {5}


def test_the_promised_rows_can_be_compared():
    cases = promised_cases()
    dense = {(case.side, case.batch) for case in cases if case.encoding == "dense" and case.mode == "graphs"}
    assert {(case.side, case.batch) for case in cases} == dense
    for asked in ((1024, 1), (1024, 8), (2048, 1), (2048, 4)):
        sights = {case.sight for case in cases if (case.side, case.batch, case.kept) == (*asked, 200)}
        assert sights == {"stem", "glance"}
    assert Case(1024, 1, 200, "dense", "eager", decode=32, repeats=5) in cases
    sides = {case.side for case in cases if case.encoding == "sparse" and case.kept == 200 and case.batch == 1}
    assert min(sides) == 512
    assert max(sides) == 4096


def test_rows_about_looking_twice_can_be_compared():
    for cases, modes in ((looks_cases(), {"graphs"}), (break_even_cases(), {"graphs", "eager"})):
        for side, batch in {(case.side, case.batch) for case in cases}:
            ways = {
                (case.mode, case.encoding, case.sight) for case in cases if (case.side, case.batch) == (side, batch)
            }
            for mode in modes:
                assert {(mode, "dense", "stem"), (mode, "sparse", "stem"), (mode, "sparse", "look_twice")} <= ways


def test_looking_twice_is_measured_as_a_first_question(subject):
    for mode in ("eager", "graphs"):
        case = Case(128, 1, 4, "sparse", mode, "look_twice", repeats=1)
        made = measure(subject, case, make_inputs(subject.stock, case, 12))
        assert (made["sight"], made["kept"]) == ("look_twice", 4)
        assert made["select_ms"] > 0
    assert subject.owner(case).memory.size == 0, "nothing is remembered from one run to the next"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"side": 100}, "multiple of 32"), ({"encoding": "x"}, "expected one of"), ({"kept": 0}, "at least 1")],
)
def test_cases_are_checked(wrong, message):
    good = {"side": 64, "batch": 1, "kept": 2, "encoding": "sparse", "mode": "eager"}
    with pytest.raises(ValueError, match=message):
        Case(**(good | wrong))


def test_inputs_are_what_a_processor_would_make(subject):
    inputs = make_inputs(subject.stock, Case(128, 3, 4, "sparse", "graphs"), 12)
    types = token_types(inputs["input_ids"], subject.stock.config)
    assert samples_of_images(types, cells_of(inputs["image_grid_thw"], 2)) == [0, 1, 2]
    assert inputs["input_ids"].shape == (3, 16 + 12)
    assert inputs["pixel_values"].shape == (3 * 64, 1536)
    assert int((types == 0).sum()) == 3 * 12
    assert not (inputs["question_mask"] & (types == 1)).any()
    assert subject.stock(**tiny.stock_inputs(inputs)).logits.isfinite().all()


def test_a_shape_is_built_with_one_selector_per_sight(monkeypatch):
    stock = tiny.stock()
    monkeypatch.setattr("arr_coc.evaluation.bench.cases.build_shape", lambda *_, **__: stock)
    made = load_subject("shape:qwen3-vl-2b", "cpu", sights=("stem", "glance"))
    assert {name: owner.arr_coc_config.sight for name, owner in made.owners.items()} == {
        "stem": "stem",
        "glance": "glance",
    }
    assert all(owner.model is stock and owner.break_even == 0 for owner in made.owners.values())
    with pytest.raises(ValueError, match="known shapes"):
        load_subject("shape:huge", "cpu")
    with pytest.raises(ValueError, match="no selector"):
        made.owner(Case(64, 1, 2, "sparse", "graphs", "textures"))


# ---------------------------------------------------------------- measuring


def test_rows_have_what_was_asked_for(rows):
    assert len(rows) == 3 * 6 + 4
    for one in rows:
        assert set(one) >= ASKED_FOR
        assert one["ttft_ms"] == pytest.approx(one["select_ms"] + one["vision_ms"] + one["prefill_ms"])
        assert one["vision_ms"] > 0
        assert one["prefill_ms"] > 0
        assert (one["select_ms"] > 0) == (one["kept"] < one["tokens"])
        assert (one["decode_ms"] is not None) == (one["batch"] == 1)
        assert (one["recordings"] is None) == (one["mode"] == "eager")
        assert one["mode"] in ("eager", "own forward"), "there are no graphs on a CPU, and the row must not say so"
    kept = {(one["encoding"], one["side"], one["kept"]) for one in rows if one["batch"] == 1}
    assert ("dense", 128, 16) in kept
    assert ("sparse", 128, 4) in kept


def test_what_is_timed_is_what_is_meant(subject):
    """The sparse way sees fewer patches than the two others, by both modes."""
    seen: dict[tuple[str, str], int] = {}
    for case in bench.grid_of_cases([128], [1], [4]):
        rows_seen = []
        merger = subject.stock.model.visual.merger
        hook = merger.register_forward_hook(lambda _, args, __, seen=rows_seen: seen.append(args[0].numel()))
        way_of(subject, case, make_inputs(subject.stock, case, 12)).once()
        hook.remove()
        seen[case.encoding, case.mode] = rows_seen[-1] // 32
    assert seen["dense", "eager"] == seen["dense", "graphs"] == seen["after-vit", "eager"] == 64
    assert seen["after-vit", "graphs"] == 64
    assert seen["sparse", "eager"] == 4 * 4
    assert seen["sparse", "graphs"] == 16 * 4, "the smallest bucket"


def test_medians_and_spread():
    times = [{"select": 1.0, "vision": v, "prefill": 2.0, "wall": 9.0} for v in (5.0, 3.0, 100.0, 4.0, 6.0)]
    made = summarize(times)
    assert made["vision_ms"] == 5
    assert made["ttft_ms"] == 8
    assert made["spread_ms"] == 2
    assert made["repeats"] == 5


def test_time_per_token_leaves_the_first_out(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 16.0])
    monkeypatch.setattr("arr_coc.evaluation.bench.measure.time.perf_counter", lambda: next(clock))
    asked = []
    assert per_token(asked.append, 5, torch.device("cpu")) == 1000.0
    assert asked == [1, 6]


def test_the_peak_is_seen():
    with watch_peak(torch.device("cpu")) as peak:
        torch.ones(64 * 2**20 // 4).sum()
    assert peak["peak_mb"] >= peak["peak_above_mb"] > 32


def test_what_does_not_fit_is_left_out_and_said(subject, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(bench, "measure", full)
    said = []
    assert bench.run_cases(subject, [Case(64, 1, 2, "sparse", "graphs")], 12, said.append) == []
    assert "does not fit" in said[0]


def test_rows_are_saved_as_they_come(subject, tmp_path):
    path = tmp_path / "deep" / "speed.json"
    bench.run_cases(subject, [Case(64, 1, 2, "dense", "graphs", repeats=1)], 12, lambda _: None, path, [row()])
    saved = json.loads(path.read_text())
    assert [one["model"] for one in saved["rows"]] == ["m", "tiny"]
    assert bench.read_rows(path) == saved["rows"]
    assert bench.read_rows(tmp_path / "none.json") == []


def test_a_trace_is_written(subject, tmp_path):
    bench.write_trace(subject, Case(64, 1, 2, "sparse", "graphs"), 12, tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


# ---------------------------------------------------------------- reports


def test_speed_ups_compare_the_same_request_only():
    others = [row(**DENSE, side=2048, ttft_ms=1.0), row(**DENSE, batch=8, ttft_ms=1.0)]
    sparse, after = bench_report.speed_ups([*others, *MEASURED])
    assert sparse["over_dense"] == pytest.approx(2.5)
    assert sparse["over_transformers"] == pytest.approx(4.6)
    assert sparse["select_share_of_dense"] == pytest.approx(0.04)
    assert sparse["memory_above_saved"] == pytest.approx(0.9)
    assert sparse["memory_saved"] == pytest.approx(0.14)
    assert after["over_dense"] == pytest.approx(1.25)
    alone = bench_report.speed_ups([row()])[0]
    assert alone["over_dense"] is None
    assert alone["over_transformers"] is None


def test_decoding_is_compared_with_plain_generate():
    assert bench_report.decode_speed_up(MEASURED) == 13
    assert bench_report.decode_speed_up([row()]) is None


@given(
    st.floats(-3, 3), st.floats(0.01, 100), st.lists(st.sampled_from([256, 512, 1024, 2048]), min_size=2, unique=True)
)
def test_the_slope_of_a_power_is_its_exponent(exponent, factor, sides):
    assert bench_report.slope([(x, factor * x**exponent) for x in sides]) == pytest.approx(exponent, abs=1e-6)


def test_a_slope_needs_two_places_and_positive_times():
    assert bench_report.slope([(512, 1.0)]) is None
    assert bench_report.slope([(512, 1.0), (512, 2.0)]) is None
    assert bench_report.slope([(512, 0.0), (1024, 2.0)]) is None
    assert bench_report.slope([(1, 1.0), (2, 2.0), (4, 16.0)]) == pytest.approx(2.0)


def test_growth_of_each_series():
    sides = (512, 1024, 2048)
    sparse = [row(side=s, select_ms=s / 512, vision_ms=4.0, prefill_ms=5.0, ttft_ms=9 + s / 512) for s in sides]
    dense = [row(**DENSE | {"kept": (s // 32) ** 2}, side=s, vision_ms=s**2, ttft_ms=s**2 + 5) for s in sides]
    by_encoding = {one["encoding"]: one for one in bench_report.growth([*sparse, *dense, row(kept=64)])}
    assert by_encoding["sparse"]["vision_slope"] == pytest.approx(0)
    assert by_encoding["sparse"]["prefill_slope"] == pytest.approx(0)
    assert by_encoding["sparse"]["select_slope"] == pytest.approx(1)
    assert by_encoding["dense"]["vision_slope"] == pytest.approx(2)
    assert by_encoding["dense"]["select_slope"] is None
    assert by_encoding["dense"]["sides"] == list(sides)


def test_break_even_is_where_it_begins_to_pay():
    def pair(side, sparse):
        tokens = (side // 32) ** 2
        return [row(**DENSE, side=side, tokens=tokens, ttft_ms=10.0), row(side=side, tokens=tokens, ttft_ms=sparse)]

    assert bench_report.break_even([*pair(256, 11), *pair(512, 9), *pair(1024, 5)]) == 256
    assert bench_report.break_even([*pair(256, 9), *pair(512, 11), *pair(1024, 5)]) == 1024
    assert bench_report.break_even(pair(256, 11)) is None


def test_a_break_even_by_model_path_and_number_of_looks():
    def rows(model, mode, **times):
        made = [row(**DENSE, model=model, mode=mode, ttft_ms=10.0)]
        return made + [row(model=model, mode=mode, sight=sight, ttft_ms=took) for sight, took in times.items()]

    made = bench_report.break_evens(
        [*rows("a", "graphs", stem=9, look_twice=11), *rows("a", "eager", look_twice=9), *rows("b", "eager", stem=9)]
    )
    assert made["a"] == {
        "recorded": {"one look": 1024, "two looks": None},
        "eager": {"one look": None, "two looks": 1024},
    }
    assert made["b"]["eager"] == {"one look": 1024, "two looks": None}


def test_what_fits_which_card():
    small, large = bench_report.fit([row(peak_mb=0.9 * 16 * 1024), row(peak_mb=25 * 1024)])
    assert small["fits_16_gb"]
    assert not large["fits_16_gb"]
    assert not large["fits_24_gb"]
    assert large["fits_32_gb"]
    assert "yes" in bench_report.fit_table([row()])


def test_the_table_is_for_people():
    lines = bench_report.table(MEASURED).splitlines()
    assert len(lines) == 1 + len(MEASURED)
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:3] == ["side", "batch", "kept"]
    assert lines[2].endswith("2.50")
    assert "25.0" in lines[1]
    assert "MB in all  MB above weights" in lines[0]


def test_pictures(tmp_path, rows):
    from arr_coc.evaluation.bench.report import save_plots

    budgets = [*rows, *MEASURED, row(kept=64, ttft_ms=8.0)]  # a budget's worth is a line, from two of them on
    made = save_plots(budgets, tmp_path / "pictures")
    assert [path.name for path in made] == ["latency.png", "speed_up.png", "growth.png"]
    assert [path.name for path in save_plots(rows, tmp_path / "fewer")] == ["latency.png", "growth.png"]
    assert all(path.stat().st_size > 5000 for path in made)
    assert [path.name for path in save_plots([row()], tmp_path)] == ["latency.png"]
    assert save_plots([], tmp_path) == []


def test_a_compiled_selector_is_held_against_all_tokens_over_graphs():
    made = bench_report.speed_ups([*MEASURED, row(mode="compiled", ttft_ms=5.0)])
    (entry,) = [one for one in made if one["mode"] == "compiled"]
    assert entry["over_dense"] == 5.0
    assert bench_report.break_even([row(**DENSE, ttft_ms=8.0), row(), row(mode="compiled", ttft_ms=5.0)]) is None


# ---------------------------------------------------------------- commands


def test_arr_coc_bench_prints_a_table_or_json(tmp_path, capsys):
    out = tmp_path / "speed.json"
    arguments = [
        "bench",
        "--side",
        "96",
        "--kept",
        "4",
        "--repeats",
        "1",
        "--device",
        "cpu",
        "--out",
        str(out),
        "--fit",
    ]
    assert run([*arguments, "--mode", "graphs", "--encoding", "dense", "--encoding", "sparse", "--json"]) == 0
    printed, said = capsys.readouterr()
    document = json.loads(printed)
    assert [one["encoding"] for one in document["rows"]] == ["dense", "sparse"]
    assert all(set(one) >= ASKED_FOR for one in document["rows"])
    assert json.loads(out.read_text())["rows"] == document["rows"]
    assert "times faster" in said
    assert "16 GB" in said
    assert document["model"] == "mini"
    assert document["device_type"] == "cpu"


@pytest.mark.parametrize("quiet", [True, False])
def test_bench_writes_to_out_if_not_told_where(tmp_path, monkeypatch, capsys, quiet):
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "--side", "96", "--kept", "4", "--repeats", "1", "--device", "cpu", "--encoding", "sparse"]
    assert run([*arguments, "--mode", "eager", *["--quiet"] * quiet]) == 0
    printed, said = capsys.readouterr()
    assert (said == "") == quiet
    assert [str(path) for path in Path().rglob("*.json")] == ["out/speed-cpu.json"]
    assert printed.rstrip("\n") == bench_report.table(json.loads(Path("out/speed-cpu.json").read_text())["rows"])


def test_mistakes_are_one_line(capsys):
    assert run(["bench", "--side", "100", "--device", "cpu"]) == 3
    assert "multiple of 32" in capsys.readouterr().err
    assert run(["bench", "--shape", "qwen9", "--side", "64", "--device", "cpu"]) == 3
    assert "expected one of qwen3-vl-2b" in capsys.readouterr().err


def test_starting_is_measured_in_cpu_seconds(tmp_path, monkeypatch):
    """Two commands that need no torch stand for all of them; one that ends otherwise than it should is told."""
    quick = {startup.TORCH: (("-c", "pass"), 0, None), "a mistake": ((*startup.OURS, "ask", "--kep"), 2, 0.7)}
    monkeypatch.setattr(startup, "COMMANDS", quick)
    out = tmp_path / "startup.json"
    found = startup.measure_startup(out, 1, print)
    first, second = json.loads(out.read_text())["rows"]
    assert (first["times_torch"], first["most_cpu_s"]) == (1.0, None)
    assert second["cpu_s"] > first["cpu_s"] > 0
    assert "a mistake" in startup.startup_table(found)
    monkeypatch.setattr(startup, "COMMANDS", {startup.TORCH: (("-c", "raise SystemExit('no torch')"), 0, None)})
    with pytest.raises(ValueError, match="ended with 1: no torch"):
        startup.measure_startup(out, 1, print)


def test_the_bare_entry_needs_no_terminal_library():
    code = (
        "import sys; import studies.speed.bench, studies.speed.equality, studies.speed.ask;"
        "from studies.speed.bench import parse; parse(['--promised']);"
        "sys.exit(any(name.startswith(('arr_coc.cli', 'matplotlib')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parent.parent).returncode == 0


# ---------------------------------------------------------------- asking


def owner_that_asks():
    torch.manual_seed(0)
    ours = tiny.wrapped(tiny.stock(), selector="arr_coc", break_even=0)
    ours.fast = True
    return ours


def test_whole_asks_are_compared_in_turns():
    ours = owner_that_asks()
    whole, part = ask_rows(ours, "tiny", 256, [1.0, 0.25], repeats=2, most_tokens=3)
    assert (whole["encoding"], whole["kept"], whole["tokens"]) == ("dense", 64, 64)
    assert (part["encoding"], part["kept"]) == (ours.encoding, 16)
    assert part["ask_ms"] >= part["ttft_ms"] > 0
    assert bench_report.speed_ups([whole, part])[0]["over_dense_ask"] == pytest.approx(whole["ask_ms"] / part["ask_ms"])


def test_memory_of_many_asks_is_watched():
    made = soak(owner_that_asks(), 3, 0.25, side=256, settle=2)
    assert made["asks"] == 3
    assert made["growth"] == pytest.approx(made["after_mb"] / made["before_mb"] - 1)
    assert math.isfinite(made["growth"])


def test_both_paths_are_compared_question_by_question():
    same = compare(owner_that_asks(), tiny.picture(), "what is this?", 0.4)
    assert same.same
    assert same.same_cells
    assert same.margin is None
    moe = tiny.wrapped(tiny.stock(moe=True), selector="arr_coc")
    with pytest.raises(ValueError, match="does not serve"):
        compare(moe, tiny.picture(), "what is this?", 0.4)


def test_where_rows_part():
    one = torch.tensor([1, 2, 3])
    assert first_difference(one, one) is None
    assert first_difference(one, torch.tensor([1, 5, 3])) == 1
    assert first_difference(one, one[:2]) == 2


def test_measure_is_repeated_as_often_as_asked(subject):
    case = Case(64, 1, 2, "sparse", "graphs", repeats=4)
    assert measure(subject, case, make_inputs(subject.stock, case, 12))["repeats"] == 4
