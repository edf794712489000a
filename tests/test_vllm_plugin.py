"""The parts of the vLLM plugin that run without vLLM; the others are tested by `make serve-test`."""

import asyncio
import itertools
import json
import os
import tomllib
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import arr_coc.vllm as plugin
from arr_coc.cli import serve
from arr_coc.cli.run import run
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.chooser import Chooser
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.vllm.choosing import FrontChooser, read_dial
from arr_coc.vllm.gate import KEY, LIMIT, LOCAL, FrontGate, with_dial
from arr_coc_scenes import draw_scene, make_scene

QUESTION = "What colour is the hand?"


@pytest.fixture(scope="module")
def mini():
    return Chooser.from_pretrained("mini")


@pytest.fixture(scope="module")
def pictures():
    return [
        Image.fromarray(draw_scene(make_scene(seed, "seen", size)))
        for seed, size in enumerate([(256, 320), (256, 256)])
    ]


def front_inputs(chooser, pictures, as_bytes):
    """As a front end has them: ids with one placeholder an image, and patches, before or after they were normalised."""
    inputs = encode(chooser.processor, [Conversation(pictures, QUESTION)])
    token, ids = chooser.model.config.image_token_id, inputs["input_ids"][0].tolist()
    short = [one for place, one in enumerate(ids) if one != token or ids[place - 1] != token]
    grids = inputs["image_grid_thw"]
    rows = list(inputs["pixel_values"].split(grids.prod(-1).tolist()))
    if as_bytes:
        rows = [((one * 0.5 + 0.5) * 255).round().to(torch.uint8) for one in rows]
    return short, rows, grids


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("keep", ["auto", 0.25, 20])
def test_windows_are_those_of_the_project(mini, pictures, keep, as_bytes):
    ids, rows, grids = front_inputs(mini, pictures, as_bytes)
    calls = []

    def patches(image):
        calls.append(image)
        return rows[image], grids[image : image + 1]

    mini.break_even = 0
    front, wanted = FrontChooser(mini), mini.choose(pictures, QUESTION, keep)
    found = front.windows(ids, ["one", "two"], patches, keep)
    assert found is not None
    for image, (one, selection) in enumerate(zip(found, wanted, strict=True)):
        assert one.kept.tolist() == selection.kept.tolist()
        assert torch.equal(one.rows, rows[image][one.places])
        assert one.places.view(-1, 4)[:, 0].tolist() == [4 * cell for cell in one.kept.tolist()]
        assert one.grid.tolist() == grids[image].tolist()
    again = front.windows(ids, ["one", "two"], patches, keep)
    assert again is not None
    assert [one.kept.tolist() for one in again] == [one.kept.tolist() for one in found]
    assert calls == [0, 1], "what an image is made of is remembered"


def test_few_windows_bring_a_small_copy_along():
    """As the project encodes them: rows and places are those that its own ViT is given."""
    owner = tiny.wrapped(tiny.stock(), keep=0.25)
    chooser = Chooser(owner.model, owner.arr_coc_config, owner.layer, owner.processor)
    picture = tiny.picture()
    ids, rows, grids = front_inputs(chooser, [picture], False)
    seen = {}

    def remember(module, args, kwargs):
        seen.update(kwargs, rows=args[0] if args else kwargs["hidden_states"])

    (one,) = FrontChooser(chooser).windows(ids, ["a"], lambda image: (rows[0], grids), 3)
    hook = owner.model.model.visual.register_forward_pre_hook(remember, with_kwargs=True)
    answer = owner.ask(picture, QUESTION, keep=3, max_new_tokens=1)
    hook.remove()
    assert answer.selection[0].kept.tolist() == one.kept.tolist()
    assert len(one.rows) > 4 * len(one.kept)
    torch.testing.assert_close(one.rows, seen["rows"], atol=1e-6, rtol=0)


def test_all_of_all_is_left_to_vllm(mini, pictures):
    ids, rows, grids = front_inputs(mini, pictures[:1], True)
    assert FrontChooser(mini).windows(ids, ["one"], lambda image: (rows[0], grids), 5000) is None


def test_stray_placeholders_are_refused(mini, pictures):
    ids, rows, grids = front_inputs(mini, pictures[:1], True)
    with pytest.raises(ValueError, match="2 image placeholders for 1 images"):
        FrontChooser(mini).windows(
            [*ids, mini.model.config.image_token_id], ["one"], lambda image: (rows[0], grids), 20
        )


@pytest.mark.parametrize("how", [{"selector": "visionzip"}, {"encoding": "foveated"}, {"selector": "downsampling"}])
def test_what_is_no_choice_before_the_vit_is_refused(how):
    with pytest.raises(ValueError, match="vLLM takes windows alone"):
        FrontChooser(Chooser.from_pretrained("mini", **how))


def test_what_it_takes_is_said(mini):
    assert "by arr_coc with 0.0" in FrontChooser(mini).about()
    twice = FrontChooser(Chooser.from_pretrained("mini", selector="look_twice")).about()
    assert "by look_twice" in twice
    assert "5 decoder layers" in twice


# ---------------------------------------------------------------- the dial


def test_a_dial_of_a_request():
    assert read_dial({}, "auto") == "auto"
    assert read_dial({"keep": 0.25}, "auto") == 0.25
    assert isinstance(read_dial({"keep": 1}, "auto"), float)
    for wrong in ({"keep": 0}, {"keep": True}, {"keep": None}, {"keep": 0.5, "size": 3}, {"max_pixels": 1}):
        with pytest.raises(ValueError, match="keep"):
            read_dial(wrong, "auto")


VALUES = st.sampled_from([None, 1, 0.5, "auto", True, [], ["keep"], {}, {"keep": 0.5}, {"keep": None, "size": 3}])
BODIES = st.dictionaries(st.sampled_from(["keep", "extra_body", "mm_processor_kwargs", "messages", "model"]), VALUES)


@given(BODIES)
def test_whatever_a_body_holds_is_left_in_it(body):
    """Nothing but the dial is moved, and nothing raises."""
    made = json.loads(with_dial(json.dumps(body).encode()))
    rest = ("messages", "model")
    assert {name: made.get(name) for name in rest} == {name: body.get(name) for name in rest}


def test_keep_goes_where_vllm_hands_it_on():
    def moved(body):
        return json.loads(with_dial(json.dumps(body).encode()))

    assert moved({"keep": 0.25, "model": "a"}) == {"model": "a", "mm_processor_kwargs": {"keep": 0.25}}
    assert moved({"extra_body": {"keep": "auto"}})["mm_processor_kwargs"] == {"keep": "auto"}
    assert moved({"keep": 0.5, "mm_processor_kwargs": {"keep": 0.5}})["mm_processor_kwargs"] == {"keep": 0.5}
    twice = moved({"keep": 0.5, "mm_processor_kwargs": {"keep": 0.25}})["mm_processor_kwargs"]
    with pytest.raises(ValueError, match="keep given twice"):
        read_dial(twice, "auto")
    for same in (b"{", b'{"a": 1}', b'["keep"]', b'{"mm_processor_kwargs": {"keep": 0.5}}', b'"keep"'):
        assert with_dial(same) == same


def pass_gate(
    body: bytes, host: str = "localhost", path: str = "/v1/chat/completions", key: str = "", **variables: str
) -> tuple[int, bytes, bytes]:
    """Status and answer, and the body that the application read."""
    read, sent = [], []

    async def app(scope, receive, send):
        read.append((await receive())["body"])
        assert dict(scope["headers"])[b"content-length"] == str(len(read[0])).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answered"})

    async def receive():
        return {"type": "http.request", "body": body}

    async def send(message):
        sent.append(message)

    head = [(b"host", host.encode()), (b"content-length", str(len(body)).encode()), (b"authorization", key.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "headers": head}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        asyncio.run(FrontGate(app)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], b"".join(read)


def test_the_gate():
    status, answer, read = pass_gate(b'{"keep": 0.25}')
    assert (status, answer, json.loads(read)) == (200, b"answered", {"mm_processor_kwargs": {"keep": 0.25}})
    status, answer, read = pass_gate(b"x" * 100, **{LIMIT: "99"})
    assert (status, read, json.loads(answer)["error"]["type"]) == (413, b"", "invalid_request_error")
    assert pass_gate(b"{}", "example.org", **{LOCAL: "1"})[0] == 403
    assert pass_gate(b"{}", "example.org", **{LOCAL: "0"})[0] == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations", "/tokenize", "/metrics", "/health"])
def test_the_key_is_asked_for_everywhere(path):
    """vLLM itself asks for it under /v1 alone."""
    wanted = 200 if path == "/health" else 401
    for key in ("", "Bearer a key of twelvE", "a key of twelve"):
        assert pass_gate(b"{}", path=path, key=key, **{KEY: "a key of twelve"})[0] == wanted
    assert pass_gate(b"{}", path=path, key="Bearer a key of twelve", **{KEY: "a key of twelve"})[0] == 200
    assert pass_gate(b"{}", path=path, **{KEY: ""})[0] == 200


# ---------------------------------------------------------------- starting it


def test_a_version_that_it_was_not_written_for(monkeypatch, caplog):
    monkeypatch.setattr(plugin, "version", lambda name: "0.33.1")
    plugin.register()
    assert "written for vLLM 0.32.0, this is 0.33.1" in caplog.text
    with pytest.raises(ValueError, match=r"written for vLLM 0\.32\.0, this is 0\.33\.1"):
        serve.pick_engine("vllm")
    assert serve.pick_engine("auto") == "plain"
    monkeypatch.setattr(plugin, "version", lambda name: "0.32.0+cu130")
    assert plugin.trouble() == ""
    assert serve.pick_engine("vllm") == "vllm"
    for cuda, engine in ((True, "vllm"), (False, "plain")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        assert serve.pick_engine("auto") == engine


def test_the_pin_is_the_version_it_was_written_for():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm=={plugin.WRITTEN_FOR}"]
    assert project["entry-points"]["vllm.general_plugins"] == {"arr_coc": "arr_coc.vllm:register"}


def test_vllm_is_started_with_the_right_flags(monkeypatch, capsys):
    started = {}
    monkeypatch.setattr(plugin, "version", lambda name: plugin.WRITTEN_FOR)
    monkeypatch.setattr(os, "execve", lambda path, words, variables: started.update(words=words, variables=variables))
    monkeypatch.setattr("arr_coc.serving.app.serve", lambda *_: None)
    words = ["--keep", "0.25", "--api-key", "a key of twelve", "--max-images", "3", "--max-body", "5", "--port", "8399"]
    assert run(["serve", "--engine", "vllm", *words]) == 0
    told, flags = capsys.readouterr().err, started["words"]
    assert "vllm.entrypoints.openai.api_server" in told
    assert "a key of twelve" not in told
    values = dict(itertools.pairwise(flags))
    overrides = json.loads(values["--hf-overrides"])
    assert overrides["architectures"] == ["ARRCOCQwen3VLForConditionalGeneration"]
    assert overrides["arr_coc"]["keep"] == 0.25
    assert json.loads(values["--limit-mm-per-prompt"]) == {"image": 3, "video": 0}
    assert json.loads(values["--override-generation-config"]) == {"temperature": 0.0, "max_new_tokens": 1024}
    assert (values["--served-model-name"], values["--port"], values["--host"]) == ("mini", "8399", "127.0.0.1")
    assert values["--allowed-media-domains"] == "none.invalid"
    given = started["variables"]
    assert (given["VLLM_API_KEY"], given[LIMIT], given[LOCAL]) == ("a key of twelve", str(5 << 20), "1")
    monkeypatch.chdir(Path(plugin.__file__).parents[1] / "models" / "mini")
    assert run(["serve", "--engine", "vllm", "--model", "."]) == 0
    assert dict(itertools.pairwise(started["words"]))["--served-model-name"] == "mini", "a folder by its name"


def test_experts_have_an_architecture_of_their_own(tmp_path):
    owner = ARRCOCQwen(tiny.stock(moe=True), processor=tiny.processor())
    owner.save_pretrained(tmp_path / "moe", save_base=True)
    how = plugin.engine_arguments(tmp_path / "moe", 0.5, max_model_len=99)
    assert how["hf_overrides"]["architectures"] == ["ARRCOCQwen3VLMoeForConditionalGeneration"]
    assert how["max_model_len"] == 99
    (tmp_path / "moe" / "base").mkdir()
    (tmp_path / "moe" / "base" / "delta.safetensors").touch()
    with pytest.raises(ValueError, match="save it whole"):
        plugin.engine_arguments(tmp_path / "moe")
    with pytest.raises(ValueError, match="no model"):
        plugin.engine_arguments("nowhere")
    light = plugin.engine_arguments("mini", selector="arr_coc:light=1")
    assert light["hf_overrides"]["arr_coc"]["selector"] == "arr_coc:light=1"
    for wrong in ({"selector": "nobody"}, {"selector": "nobody:depth=0.5"}, {"encoding": "dense"}):
        with pytest.raises(ValueError, match="before the ViT"):
            plugin.engine_arguments("mini", **wrong)
