"""Clips over recordings: equal to the plain path, grouped without a trace, left with a reason where they cannot go."""

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_clips import MIXED, ONE, THREE, clip
from test_fast import NEW, WORDS, assert_equal_choices, assert_equal_paths, wrapped

from arr_coc.qwen.graphs import FastRunner
from arr_coc.qwen.graphs.clips import APART, GROUPS, SLOTS, TOGETHER, in_groups
from arr_coc.qwen.graphs.layout import round_up
from arr_coc.qwen.graphs.rules import Picking
from arr_coc.qwen.processor import Conversation

LONG = Conversation([clip(20, 64, 64, 5)], "what comes last?")
BATCHES = {
    "a clip": ([ONE], [0.3]),
    "moments that keep nothing": ([LONG], [3]),
    "auto": ([ONE], ["auto"]),
    "three clips of three sizes": ([THREE], [9]),
    "rows of clips": ([ONE, LONG, THREE], [0.3, 7, "auto"]),
    "a row without a clip": ([WORDS, ONE], [0.5, 0.5]),
    "one kept whole": ([ONE, LONG], [1.0, 0.2]),
    "all kept": ([ONE, LONG], [1.0, 1.0]),
}


@pytest.mark.parametrize("selector", ["look_twice", "arr_coc"])
@pytest.mark.parametrize("batch", BATCHES)
def test_recorded_answers_are_those_of_the_plain_path(batch, selector):
    assert_equal_paths(wrapped(selector=selector), *BATCHES[batch])


@pytest.mark.parametrize("how", ["sparse", "foveated"])
@pytest.mark.parametrize("batch", [name for name in BATCHES if name != "all kept"])
def test_recorded_choices_are_those_of_the_plain_path(batch, how):
    conversations, keeps = BATCHES[batch]
    ours, inputs = wrapped(how, "look_twice"), tiny.inputs(*conversations)
    made = assert_equal_choices(ours, conversations, keeps)
    inputs.pop("mm_token_type_ids")
    for fast, slow in zip(made.images, ours.prepare(**inputs, keep=keeps).images, strict=True):
        assert [(one.clip, one.seconds, one.cut) for one in fast] == [(one.clip, one.seconds, one.cut) for one in slow]


def test_what_is_shown_next_does_not_change_what_was_chosen_before():
    """Recordings are run again over the same memory."""
    ours = wrapped(selector="look_twice")
    runner = FastRunner(ours.model)

    def run(conversation):
        inputs = tiny.inputs(conversation)
        return runner.run(ours.looker(), ours.encoding, inputs, [0.3], Picking(NEW, (), 0))

    first = run(ONE)
    kept = [one.kept.clone() for one in first.images[0]]
    maps = [one.relevance.clone() for one in first.images[0]]
    run(Conversation([clip(6, seed=9)], "and what is here?"))
    assert all(torch.equal(one.kept, before) for one, before in zip(first.images[0], kept, strict=True))
    assert all(torch.equal(one.relevance, before) for one, before in zip(first.images[0], maps, strict=True))


@pytest.mark.parametrize(
    ("how", "shown", "why"),
    [
        ("sparse", MIXED, "it does not know clips among images"),
        ("dense", ONE, "it knows clips before the vision encoder"),
    ],
)
def test_what_recordings_cannot_do_is_said_once_and_answered(how, shown, why):
    quick, plain = wrapped(how, "look_twice"), wrapped(how, "look_twice")
    plain.fast = False
    asked = {"keep": 0.3, "max_new_tokens": NEW}
    answers = [ours.ask(shown.images, shown.question, **asked) for ours in (quick, plain, quick)]
    assert len({one.text for one in answers}) == 1
    assert len([line for line in quick.notices if why in line]) == 1


@given(st.lists(st.integers(0, 600), min_size=1, max_size=40).filter(any))
def test_every_moment_that_keeps_something_is_in_one_group_that_has_room(counts):
    groups = in_groups(counts)
    assert sorted(moment for members, _ in groups for moment in members) == [
        n for n, count in enumerate(counts) if count
    ]
    assert 1 <= len(groups) <= GROUPS
    assert all(counts[moment] <= slots for members, slots in groups for moment in members)
    kept = [count for count in counts if count]
    spent = sum(round_up(len(members), TOGETHER) * slots + APART for members, slots in groups)
    assert spent <= round_up(len(kept), TOGETHER) * round_up(max(kept), SLOTS) + APART


def test_a_moment_that_keeps_all_does_not_widen_the_others():
    assert in_groups([500, *[40] * 31]) == [([0], 512), (list(range(1, 32)), 48)]


def test_an_answer_that_stands_does_so_over_recordings():
    quick, plain = wrapped(selector="look_twice"), wrapped(selector="look_twice")
    plain.fast = False
    frames = [tiny.picture(64, 64, 40 + n // 4) for n in range(12)]
    told = []
    for ours in (quick, plain):
        watcher = ours.watch("what moves?", keep=0.5, window=4, firm=1e30)
        told.append([watcher.answer(max_new_tokens=NEW).text for frame in frames if watcher.see(frame) is not None])
    assert told[0] == told[1]
    assert not [line for line in quick.notices if "fast path is left" in line]


def test_a_failure_of_the_recorded_choice_is_left_to_the_plain_path(monkeypatch):
    from arr_coc.qwen import looking
    from arr_coc.qwen.graphs import clips

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(clips, "look_first", fail)
    before, ours = looking.fallbacks.total(), wrapped(selector="look_twice")
    ours.strict = True
    answer = ours.ask(ONE.images, ONE.question, keep=0.3, max_new_tokens=NEW)
    assert answer.tokens_kept < answer.tokens_total
    assert "the fast path is left: choosing failed (RuntimeError)" in ours.notices
    assert looking.fallbacks.total() == before
