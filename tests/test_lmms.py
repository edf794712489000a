"""The lmms-eval plugin: chats, options and documents anywhere, and a real run where lmms-eval is installed."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.evaluation.field.data import scene_pictures
from arr_coc.evaluation.field.main import FieldOptions, evaluate_field, samples_path
from arr_coc.lmms import TASKS
from arr_coc.lmms.documents import METRICS, judge, mean_score, pictures, scene_documents
from arr_coc.lmms.requests import (
    MAX_NEW_TOKENS,
    Options,
    answer_chats,
    cut_at,
    encode_chats,
    read_chat,
    read_generation,
    read_options,
)
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.processor import Conversation, encode
from arr_coc_scenes import FAMILIES

ROOT = Path(__file__).parent.parent
QUESTIONS = 12
GREEDY = {"max_new_tokens": 5, "do_sample": False}


def user(*parts):
    """One user turn of texts and images, as tasks write it."""
    content = [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image", "url": p} for p in parts]
    return [{"role": "user", "content": content}]


# ---------------------------------------------------------------- chats


def test_a_chat_is_encoded_as_our_own_conversation():
    picture, wide = tiny.picture(), tiny.picture(192, 96, seed=1)
    chats = [read_chat(user(picture, wide, "which is wide?")), read_chat(user(picture, "and what is this one?"))]
    conversations = [Conversation([picture, wide], "which is wide?"), Conversation([picture], "and what is this one?")]
    theirs, ours = encode_chats(tiny.processor(), chats), encode(tiny.processor(), conversations)
    for name in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw"):
        assert torch.equal(theirs[name].to(ours[name].dtype), ours[name]), name


def test_texts_and_images_keep_their_places_and_roles():
    first, second = tiny.picture(64, 64), tiny.picture(96, 64)
    chat = read_chat([{"role": "system", "content": "be brief"}, *user("before", first, "between", second)])
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert chat.messages[0]["content"] == [{"type": "text", "text": "be brief"}]
    assert [part.get("text", "image") for part in chat.messages[1]["content"]] == [
        "before",
        "image",
        "between",
        "image",
    ]
    assert [image.size for image in chat.images] == [(64, 64), (96, 64)]


def test_other_media_are_refused():
    with pytest.raises(ValueError, match="not audio: choose another task"):
        read_chat([{"role": "user", "content": [{"type": "audio", "url": "film.mp3"}]}])


FILM = {"type": "video", "url": [tiny.picture(64, 64, seed) for seed in range(4)]}


def test_chats_with_two_one_and_no_images_are_answered_together_as_alone():
    owner = tiny.wrapped(tiny.stock(), keep=0.5)
    chats = [
        read_chat(user(tiny.picture(), tiny.picture(96, 96, seed=1), "which is larger?")),
        read_chat(user("and without a picture?")),
        read_chat(user(tiny.picture(seed=2), "what?")),
        read_chat([{"role": "user", "content": [FILM, {"type": "text", "text": "what moves?"}]}]),
    ]
    together = answer_chats(owner, chats, GREEDY)
    assert together == [answer_chats(owner, [chat], GREEDY)[0] for chat in chats]
    assert [reply.visual_total for reply in together] == [20 + 9, 0, 20, 8]
    assert [reply.visual_kept for reply in together] == [round(0.5 * 29), 0, 10, 4]
    assert [reply.new_tokens for reply in together] == [5, 5, 5, 5]
    assert len({reply.text for reply in together}) == 4


# ---------------------------------------------------------------- options


def test_options_come_as_lmms_eval_reads_them():
    assert read_options({"batch_size": 1, "max_batch_size": None, "device": None}) == Options()
    read = read_options({"pretrained": "mini", "keep": 64, "selector": "random:seed=2", "batch_size": "8"})
    assert read == Options(keep=64, selector="random:seed=2", batch_size=8)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keeps": 0.25}, "no option 'keeps': it has pretrained, keep"),
        ({"keep": 1}, "keep=1 could mean"),
        ({"keep": 1.5}, "fraction kept"),
        ({"batch_size": "auto"}, "give a number of requests"),
        ({"batch_size": 0}, "give a number of requests"),
    ],
)
def test_mistakes_in_options_are_told(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        read_options(given)


def test_generation_is_greedy_unless_a_temperature_is_given():
    plain = {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": False}
    assert read_generation({}) == (plain, [])
    cold = {"max_new_tokens": 16, "temperature": 0, "top_p": None, "num_beams": 1, "until": "\n\n", "other": 1}
    assert read_generation(cold) == ({"max_new_tokens": 16, "do_sample": False, "num_beams": 1}, ["\n\n"])
    warm = {"max_new_tokens": 16, "temperature": 0.7, "top_p": 0.9, "until": ["a", "b"]}
    sampled = {"max_new_tokens": 16, "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    assert read_generation(warm) == (sampled, ["a", "b"])


def test_an_answer_ends_at_the_first_end():
    assert cut_at("red. And blue\n\nmore", ["\n\n", "."]) == "red"
    assert cut_at("red", []) == cut_at("red", ["", "x"]) == "red"


@given(st.text("abc", max_size=12), st.lists(st.text("abc", max_size=3), max_size=3))
def test_a_cut_answer_holds_no_end_and_loses_nothing_else(text, until):
    cut = cut_at(text, until)
    rest = text[len(cut) :]
    assert text == cut + rest
    assert not any(end and end in cut for end in until)
    assert not rest or any(end and rest.startswith(end) for end in until)


# ---------------------------------------------------------------- the scenes


def test_documents_are_the_scenes_of_the_field():
    asked = scene_pictures(10, 192, seed=3)
    documents = scene_documents(10, 192, seed=3)
    expected = [(picture, query) for picture in asked for query in picture.queries]
    assert len(documents) == len(expected) == 10
    for document, (picture, query) in zip(documents, expected, strict=True):
        assert (document["question"], (document["answer"],)) == (query.text, query.answers)
        assert np.array_equal(np.array(pictures(document)[0]), picture.read())
    assert scene_documents(7, 192, seed=3) == documents[:7]


def test_every_question_counts_overall_and_in_its_family():
    document = {"image": 4, "answer": "red", "family": "colour", "metric": "exact"}
    right, wrong = judge(document, ["red"]), judge(document, ["blue"])
    assert tuple(right) == METRICS
    assert {name for name, item in right.items() if item} == {"accuracy", "exact_match", "exact_match_colour"}
    assert right["accuracy"] == {"score": 1.0, "image": 4}
    assert mean_score([right["accuracy"], wrong["accuracy"], None]) == 0.5
    assert mean_score([None]) == "N/A"
    described = judge(
        {"image": 0, "answer": "a red cup", "family": "describe", "metric": "f1"}, ["a red cup, a blue hat"]
    )
    assert described["accuracy"] == described["f1_describe"] == {"score": pytest.approx(2 / 3), "image": 0}
    assert described["exact_match"] == {"score": 0.0, "image": 0}
    assert len(METRICS) == 2 + len(FAMILIES)


@pytest.fixture(scope="module")
def field_answers(tmp_path_factory):
    """What `arr-coc eval` answers, in the order of the questions."""
    out = tmp_path_factory.mktemp("field") / "field.json"
    options = FieldOptions(selectors=("arr_coc",), keeps=(0.06,), encodings=("sparse",), questions=QUESTIONS, out=out)
    evaluate_field(options, lambda line: None)
    lines = [json.loads(line) for line in samples_path(out, "scenes", 512).read_text().splitlines()[1:]]
    lines.sort(key=lambda line: tuple(map(int, line["question"].split("/"))))
    return [line["answer"] for line in lines]


def test_answers_are_those_of_the_field(field_answers):
    owner = ARRCOCQwen.from_pretrained("mini", keep=0.06, device="cpu", fast=False, break_even=0)
    chats = [read_chat(user(*pictures(one), one["question"])) for one in scene_documents(QUESTIONS, 512, 0)]
    keywords = {"max_new_tokens": 96, "do_sample": False}
    replies = [reply for start in (0, 6) for reply in answer_chats(owner, chats[start : start + 6], keywords)]
    assert [reply.text.strip() for reply in replies] == field_answers
    assert {reply.visual_kept for reply in replies} == {15}


def test_lmms_eval_finds_the_model_and_the_task():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    module, _, function = project["project"]["entry-points"]["lmms_eval.models"]["arr_coc"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert "lmms/tasks/*.yaml" in project["tool"]["setuptools"]["package-data"]["arr_coc"]
    text = (TASKS / "scenes.yaml").read_text()
    for module, name in re.findall(r"!function (arr_coc\.lmms\.documents)\.(\w+)", text):
        assert callable(getattr(importlib.import_module(module), name))
    assert "task: arr_coc_scenes" in text


# ---------------------------------------------------------------- where lmms-eval is installed

if find_spec("lmms_eval"):

    def test_a_real_run_gives_the_answers_of_the_field(field_answers, tmp_path):
        command = [
            *(sys.executable, "-m", "lmms_eval", "--model", "arr_coc", "--model_args", "pretrained=mini,keep=0.06"),
            *("--tasks", "arr_coc_scenes", "--include_path", str(TASKS), "--limit", str(QUESTIONS)),
            *("--batch_size", "5", "--device", "cpu", "--log_samples", "--output_path", str(tmp_path)),
        ]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr[-2000:]
        samples = next(tmp_path.rglob("*_samples_arr_coc_scenes.jsonl")).read_text().splitlines()
        answers = {row["doc_id"]: row["filtered_resps"] for row in map(json.loads, samples)}
        assert [answers[number].strip() for number in range(QUESTIONS)] == field_answers
        report = json.loads(next(tmp_path.rglob("*_results.json")).read_text())
        targets = [one["answer"] for one in scene_documents(QUESTIONS, 512, 0)]
        right = sum(a == b for a, b in zip(field_answers, targets, strict=True))
        assert report["results"]["arr_coc_scenes"]["exact_match,none"] == pytest.approx(right / QUESTIONS)
        assert report["n-samples"]["arr_coc_scenes"]["effective"] == QUESTIONS
        assert report["throughput"]["avg_visual_tokens_kept"] == 15

    def request(messages, keywords):
        from lmms_eval.api.instance import Instance

        metadata = {"task": "t", "doc_id": 0, "repeats": 1}
        return Instance("generate_until", ("", lambda _: messages, keywords, 0, "t", "s"), 0, metadata)

    def test_requests_of_different_kinds_and_what_is_not_offered():
        from arr_coc.lmms.adapter import ARRCOC, batches

        model = ARRCOC(pretrained="mini", keep=0.25, device="cpu", batch_size=2, selector="even_grid")
        model.task_dict = {"t": {"s": [{}]}}
        one = scene_documents(1, 256, 0)[0]
        asked = user(*pictures(one), one["question"])
        long = {"max_new_tokens": 9, "until": []}
        requests = [request(asked, long), request(user("Describe it."), long), request(asked, long)]
        first, _, again = model.generate_until(requests)
        assert first == again
        cut = {"max_new_tokens": 9, "until": [first.text[1:]]}
        assert first.text[1:]
        assert model.generate_until([request(asked, cut)])[0].text == first.text[0]
        assert list(batches([*requests, request(asked, cut)], 2)) == [[0, 1], [2], [3]]
        with pytest.raises(NotImplementedError, match="output_type generate_until"):
            model.loglikelihood([])
        with pytest.raises(ValueError, match="told the answer's place"):
            ARRCOC(pretrained="mini", selector="oracle", device="cpu")
