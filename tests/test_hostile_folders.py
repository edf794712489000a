"""240 hostile model and adapter folders: no code runs, nothing incomplete loads, every refusal is one line.

More than half of them run here, all of them, and more bytes changed at random, in `make soak`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from attacks import folders
from transformers import AutoModelForImageTextToText

from arr_coc.cli.run import EXIT_BAD_INPUT, EXIT_NO_MODEL
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.loading import ModelNotFound
from arr_coc.qwen.storage import read_shapes

ROOT = Path(__file__).parent.parent
NAMES = list(folders.ATTACKS)
WITH_LIMITS = len(folders.CONFIG) + len(folders.ADAPTERS) + len(folders.LOADS)  # each of these has its own
SOME = [*range(WITH_LIMITS), *range(WITH_LIMITS, len(NAMES), 3)]
NO_SAFETENSORS = {"a pickle for weights", "weights: a link to nothing"}


def judged(numbers) -> list[dict]:
    command = [sys.executable, str(ROOT / "tests" / "attacks" / "loading.py"), *map(str, numbers)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=1_500)
    # Libraries may say something of their own there, of a tokenizer with unknown options, say.
    first, *found, last = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert first["code"] == last["code"] == 0
    assert first["answer"] == last["answer"]
    return found


def check(found: dict) -> None:
    assert not found["ran"], found
    assert found["finite"], found
    if found["name"] in folders.LOADS:
        assert found["code"] == 0, found
    elif found["name"] in folders.ATTACKS:
        assert found["code"] in (EXIT_BAD_INPUT, EXIT_NO_MODEL), found
    if found["code"]:
        assert found["code"] in (EXIT_BAD_INPUT, EXIT_NO_MODEL), found
        assert found["said"].startswith("arr-coc: ")
        assert found["said"].count("\n") == 1
        assert "/tmp/" not in found["said"]


@pytest.fixture(scope="module")
def some(request) -> dict[str, dict]:
    """Those that are asked for, in one process."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    return {found["name"]: found for found in judged([number for number in SOME if NAMES[number] in asked])}


def test_there_are_enough_of_them():
    assert len(NAMES) >= 190
    assert folders.COUNT == 240


@pytest.mark.parametrize("name", [NAMES[number] for number in SOME])
def test_each_is_refused_in_one_line_or_loads_whole(name, some):
    check(some[name])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_all_of_them_and_many_at_random():
    for found in judged(range(600)):
        check(found)


@pytest.fixture
def saved(tmp_path) -> Path:
    tiny.stock().save_pretrained(tmp_path)
    tiny.processor().save_pretrained(tmp_path)
    return tmp_path


def test_what_is_too_large_is_refused_before_anything_is_made(saved, monkeypatch):
    """From the header alone: no weight is read."""
    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    for change, says in (
        ({"text_config__num_hidden_layers": 300_000}, "300,000 layers, expected 1 to 128"),
        ({"text_config__hidden_size": 10**9}, "'hidden_size' holds 1,000,000,000"),
        ({"text_config__num_hidden_layers": 9}, r"the weight 'model.language_model.layers.4.\S+' is missing"),
        ({"text_config__vocab_size": 9_999}, r"embed_tokens.weight' is \(270, 32\), its config wants \(9999, 32\)"),
    ):
        before = (saved / "config.json").read_text()
        folders.said("config.json", **change)(saved, None)
        with pytest.raises(ValueError, match=says):
            ARRCOCQwen.from_pretrained(saved)
        (saved / "config.json").write_text(before)


def test_an_index_does_not_lead_out_of_its_folder(saved, tmp_path_factory):
    """Good weights that lie elsewhere are none of this model's."""
    weights, elsewhere = saved / "model.safetensors", tmp_path_factory.mktemp("elsewhere")
    names = list(read_shapes(weights))
    (saved / "within").mkdir()
    shutil.copy(weights, saved / "within")
    shutil.move(weights, elsewhere)
    for file in ("within/model.safetensors", os.path.relpath(elsewhere / weights.name, saved)):
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, file)}
        (saved / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="is not a file of the model's folder"):
            ARRCOCQwen.from_pretrained(saved)


def test_what_names_code_never_reaches_a_loader(saved, monkeypatch):
    plain = AutoModelForImageTextToText.from_pretrained
    seen = []

    def look(base, config, **how):
        seen.append((config, how["trust_remote_code"]))
        return plain(base, config=config, **how)

    monkeypatch.setattr(AutoModelForImageTextToText, "from_pretrained", look)
    folders.code("config.json")(saved, None)
    folders.said("config.json", _attn_implementation="a/kernel", text_config___attn_implementation="a/k")(saved, None)
    ours = ARRCOCQwen.from_pretrained(saved)
    ((config, trusted),) = seen
    assert trusted is False
    assert not hasattr(config, "auto_map")
    assert {ours.model.config._attn_implementation, ours.model.config.text_config._attn_implementation} == {"sdpa"}


def test_the_exception_is_a_value_error_and_that_of_no_model_its_own(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound):
        ARRCOCQwen.from_pretrained(saved)
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read \(OSError: .*config.json.*; copy it again$") as caught:
        ARRCOCQwen.from_pretrained(saved)
    assert not isinstance(caught.value, ModelNotFound)


def test_a_good_folder_answers_as_before_after_all_that(saved):
    first = ARRCOCQwen.from_pretrained(saved).ask(tiny.picture(), "what?", max_new_tokens=4)
    folders.holds("chat_template.jinja", folders.LOOP + folders.SHOWN)(saved, None)
    broken = ARRCOCQwen.from_pretrained(saved)
    with pytest.raises(ValueError, match="chat template takes over 1 s"):
        broken.ask(tiny.picture(), "what?", max_new_tokens=4)
    assert sys.gettrace() is None or "watch" not in repr(sys.gettrace())
    (saved / "chat_template.jinja").write_text(folders.SHOWN)
    again = ARRCOCQwen.from_pretrained(saved).ask(tiny.picture(), "what?", max_new_tokens=4)
    assert (again.text, again.confidence) == (first.text, first.confidence)
    assert all(torch.equal(a.kept, b.kept) for a, b in zip(again.selection, first.selection, strict=True))
