"""The compiled selector of the fast path: traced in one piece, equal to the plain one, left where nothing compiles."""

import logging

import pytest
import tiny
import torch

from arr_coc import records
from arr_coc.attending import even_rank
from arr_coc.qwen.graphs import FastRunner
from arr_coc.qwen.graphs.rules import Picking
from arr_coc.qwen.processor import Conversation
from arr_coc.records import constant_table

ONE = Conversation([tiny.picture(96, 96, 1)], "what is this?")
PLAIN_COMPILE = torch.compile
CPU = torch.device("cpu")


def served(ours, keep, compiled: bool):
    """The cells, the new tokens, and what was recorded."""
    inputs = tiny.inputs(ONE)
    runner = FastRunner(ours.model, compiled=compiled)
    made = runner.run(ours.looker(), ours.encoding, inputs, [keep], Picking(4, (), 0))
    return made.images[0][0], made.new_BT


@pytest.mark.parametrize("keep", [0.4, "auto"])
@pytest.mark.parametrize("selector", ["arr_coc", "look_twice"])
def test_what_is_compiled_is_one_graph_and_gives_the_same(monkeypatch, caplog, keep, selector):
    ours = tiny.wrapped(tiny.stock(), selector=selector)
    seen = []

    def compile_here(function, **how):
        seen.append(how)
        return PLAIN_COMPILE(function, backend="aot_eager", **how)  # traced as ever, and run without a C compiler

    monkeypatch.setattr(torch, "compile", compile_here)
    with caplog.at_level(logging.WARNING, "arr_coc.qwen.graphs.stages"):
        (one, tokens), (other, same) = served(ours, keep, compiled=True), served(ours, keep, compiled=False)
    assert seen == [{"fullgraph": True, "dynamic": False}] * 2, "what is seen in textures, and what is thought of it"
    assert not [record for record in caplog.records if "compiled" in record.message], "nothing broke the graph"
    assert torch.equal(one.kept, other.kept)
    assert torch.equal(tokens, same)
    assert torch.allclose(one.relevance, other.relevance, atol=1e-5)


def test_where_nothing_compiles_the_selector_runs_as_it_is(monkeypatch, caplog):
    ours = tiny.wrapped(tiny.stock(), selector="arr_coc")

    def no_compiler(function, **how):
        def fail(tensors):
            raise RuntimeError("no C compiler here\nand many more lines")

        return fail

    monkeypatch.setattr(torch, "compile", no_compiler)
    with caplog.at_level(logging.WARNING, "arr_coc.qwen.graphs.stages"):
        one, tokens = served(ours, 0.4, compiled=True)
    assert [record.message for record in caplog.records] == [
        "the selector runs without being compiled: no C compiler here"
    ]
    other, same = served(ours, 0.4, compiled=False)
    assert torch.equal(one.kept, other.kept)
    assert torch.equal(tokens, same)


def test_the_switch(monkeypatch):
    ours = tiny.wrapped(tiny.stock(), selector="arr_coc")
    assert not ours.compiled
    ours.fast = "compiled"
    assert ours.fast is True
    assert ours.compiled
    with pytest.raises(ValueError, match="compiled"):
        ours.fast = "fastest"
    made = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: made.append(function) or function)
    inputs = tiny.inputs(ONE)
    inputs.pop("mm_token_type_ids")
    for fast in ("compiled", True, "compiled"):  # another way of running needs another runner
        ours.fast = fast
        ours.generate(**inputs, keep=0.4, max_new_tokens=1, do_sample=False)
        assert ours.fast_runner is not None
        assert ours.fast_runner.compiled == (fast == "compiled")
    assert len(made) == 2


def test_tables_are_made_once_and_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(records, "MOST_TABLE_BYTES", 400)
    made = []

    @constant_table
    def table(height, width, device):
        made.append((height, width))
        return torch.zeros(height, width, device=device)

    assert table(2, 3, CPU) is table(2, 3, CPU)
    assert made == [(2, 3)]
    assert table(9, 10, CPU).nbytes + table(2, 3, CPU).nbytes == 384
    assert table(1, 5, CPU).nbytes == 20
    assert table(9, 10, CPU) is table(9, 10, CPU)
    assert table(2, 3, CPU).shape == (2, 3)
    assert made.count((2, 3)) == 2, "the oldest went first"
    assert table(30, 30, CPU) is table(30, 30, CPU), "one table is kept, however large"
    assert even_rank(4, 5, CPU) is even_rank(4, 5, CPU)
