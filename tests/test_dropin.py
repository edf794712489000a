"""As the PreTrainedModel that people know: pipeline, trainers, PEFT, Auto classes, saving; whose dial holds where."""

import copy
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from huggingface_hub import HfApi
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    Qwen3VLForConditionalGeneration,
    Trainer,
    TrainingArguments,
    pipeline,
)

from arr_coc import ARRCOCQwen
from arr_coc.images.reader import read_image
from arr_coc.qwen.adapting import adapt
from arr_coc.qwen.processor import Conversation

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "arr_coc" / "assets" / "sample.png"
ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")
BASE = {"model.safetensors", "config.json"}


def fixed(**kwargs) -> ARRCOCQwen:
    """A model that is quick to choose, and always chooses the same."""
    return tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered), **kwargs)


@pytest.fixture(scope="module")
def ours() -> ARRCOCQwen:
    """Whoever changes it must make one of its own."""
    return fixed(keep=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A stock model on disk."""
    path = tmp_path_factory.mktemp("stock")
    tiny.stock().save_pretrained(path)
    tiny.processor().save_pretrained(path)
    return path


def logits(model, **more) -> torch.Tensor:
    with torch.no_grad():
        return model(**tiny.stock_inputs(tiny.inputs(ONE, TWO)), **more).logits


def messages(*parts, text: str = "what is this?") -> list[dict]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


# ---------------------------------------------------------------- pipeline, trainers, PEFT


def test_a_pipeline_answers_with_the_models_own_dial_or_another(ours, monkeypatch):
    dials = []
    dial = type(ours)._dials
    monkeypatch.setattr(
        type(ours), "_dials", lambda self, keep, *ids, **how: dials.append(keep) or dial(self, keep, *ids, **how)
    )
    asked = pipeline("image-text-to-text", model=ours, processor=ours.processor)
    talk = messages({"type": "image", "image": tiny.picture()})
    (said,) = asked(text=copy.deepcopy(talk), max_new_tokens=4, return_full_text=False, generate_kwargs={"keep": 1.0})
    (own,) = asked(text=talk, max_new_tokens=4, return_full_text=False)
    assert dials == [1.0, None]
    assert own["generated_text"] == ours.ask(tiny.picture(), "what is this?", max_new_tokens=4).text
    plain = pipeline("image-text-to-text", model=ours.model, processor=ours.processor)
    assert plain(text=copy.deepcopy(talk), max_new_tokens=4, return_full_text=False)[0] == said


def python_of(page: str) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block.replace("Qwen/Qwen3-VL-2B-Instruct", "mini") for block in found]


@pytest.fixture
def desk(tmp_path, monkeypatch) -> dict:
    """A folder to work in, and the collator of the page."""
    Image.open(SAMPLE).resize((256, 256)).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    exec(python_of("docs/transformers.md")[0], names)
    return names


def test_trainer_learns_on_the_tokens_that_are_kept(desk, tmp_path, capsys):
    """Twenty steps on mini, as the page has them."""
    exec(python_of("docs/transformers.md")[1], desk)
    losses = [line["loss"] for line in desk["trainer"].state.log_history if "loss" in line]
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    last = tmp_path / "runs" / "tuned" / "last"
    stock = AutoModelForImageTextToText.from_pretrained(last)
    assert type(stock) is Qwen3VLForConditionalGeneration
    learned = desk["model"].model.state_dict()
    assert all(torch.equal(weight, learned[name]) for name, weight in stock.state_dict().items())


def test_trl_learns_with_the_collator_of_the_page(desk, tmp_path, capsys):
    exec(python_of("docs/transformers.md")[2], desk)
    losses = [line["loss"] for line in desk["trainer"].state.log_history if "loss" in line]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    again = PeftModel.from_pretrained(ARRCOCQwen.from_pretrained("mini"), tmp_path / "runs" / "lora" / "last")
    answer = again.merge_and_unload().ask(SAMPLE, "What colour is the hand?", keep=0.25)
    assert answer.tokens_kept == 64


def test_a_run_of_trainer_goes_on_where_it_stopped(desk, tmp_path):
    rows = [{"image": "photo.jpg", "question": "what?", "answer": one} for one in "abcd"]
    how = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2, "remove_unused_columns": False}
    settings = TrainingArguments(str(tmp_path / "run"), learning_rate=1e-3, report_to=[], use_cpu=True, **how)

    def trained(checkpoint: Path | None) -> ARRCOCQwen:
        ours = fixed()
        trainer = Trainer(ours, settings, data_collator=desk["AnswerCollator"](ours.processor, 8), train_dataset=rows)
        trainer.train(resume_from_checkpoint=checkpoint)
        return ours

    whole = trained(None)
    again = trained(tmp_path / "run" / "checkpoint-2")
    assert torch.equal(logits(again), logits(whole))
    assert not torch.equal(logits(again), logits(fixed()))


def test_the_collator_labels_the_answer_alone(desk):
    ours = fixed()
    rows = [{"image": str(SAMPLE), "question": "what?", "answer": one} for one in ("a", "a long one")]
    batch = desk["AnswerCollator"](ours.processor, 8)(rows)
    for row, labels in zip(rows, batch["labels"], strict=True):
        assert tiny.tokenizer().decode(labels[labels != -100]) == f"{row['answer']}<|im_end|>\n"
    whole = {name: value for name, value in batch.items() if name != "keep"}
    with torch.no_grad():
        assert torch.equal(ours(**whole).loss, ours.model(**whole).loss)
        assert ours(**batch).loss != ours(**whole).loss


@pytest.mark.parametrize("encoding", ["sparse", "dense"])
def test_kept_tokens_carry_the_gradient_and_no_others(encoding):
    ours = tiny.wrapped(tiny.stock(), selector=tiny.FixedSelector(tiny.scattered, encoding == "dense")).train()
    inputs = tiny.inputs(ONE)
    inputs["pixel_values"].requires_grad_()
    output = ours(**inputs, labels=inputs["input_ids"], keep=5, output_arr_coc_info=True)
    output.loss.backward()
    touched = inputs["pixel_values"].grad.abs().sum(-1).view(-1, 4).sum(-1) > 0
    kept = output.arr_coc.images[0][0].mask.flatten()
    assert torch.equal(touched, kept if encoding == "sparse" else torch.ones_like(kept))
    assert ours.get_input_embeddings().weight.grad.abs().sum() > 0


def test_hidden_states_and_aligned_logits_line_up_with_the_callers_columns(ours):
    inputs = tiny.inputs(ONE, TWO)
    stock = ours.model
    with torch.no_grad():
        short = ours(**inputs, keep=5, output_arr_coc_info=True)
        aligned = ours(**inputs, keep=5, align_logits=True).logits
        hidden = ours.base_model(**inputs, keep=5, use_cache=False).last_hidden_state
        whole = ours.base_model(**inputs).last_hidden_state
        assert torch.equal(whole, stock.model(**tiny.stock_inputs(inputs)).last_hidden_state)
        assert torch.equal(ours(**inputs, align_logits=True).logits, stock(**tiny.stock_inputs(inputs)).logits)
    assert aligned.shape[:2] == hidden.shape[:2] == inputs["input_ids"].shape
    assert torch.allclose(stock.lm_head(hidden), aligned, atol=1e-5)
    columns = short.arr_coc.compact.columns
    for row, places in enumerate(columns):
        real = places >= 0
        assert torch.equal(aligned[row, places[real]], short.logits[row, real])
    dropped = [
        column for column in range(9) if column not in columns[0].tolist() and inputs["attention_mask"][0, column]
    ]
    assert all(torch.equal(aligned[0, column], aligned[0, column - 1]) for column in dropped)


def test_peft_trains_saves_and_merges_into_a_stock_model(folder, tmp_path):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    inputs = tiny.inputs(ONE)
    model = get_peft_model(ARRCOCQwen.from_pretrained(folder, keep=5), lora)
    model(**inputs, labels=inputs["input_ids"], keep=5).loss.backward()
    learns = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert learns
    assert all("lora_" in name for name in learns)
    assert model.generate(**inputs, max_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3
    model.save_pretrained(tmp_path / "lora")
    again = PeftModel.from_pretrained(ARRCOCQwen.from_pretrained(folder), tmp_path / "lora").eval()
    assert torch.equal(logits(again), logits(model.eval()))
    merged = again.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(logits(AutoModelForImageTextToText.from_pretrained(tmp_path / "merged")), logits(merged))


# ---------------------------------------------------------------- loading and saving


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_model_that_is_still_its_base_is_saved_as_an_adapter_and_loaded_by_the_auto_classes(folder, tmp_path):
    ours = ARRCOCQwen.from_pretrained(folder)
    ours.save_pretrained(tmp_path)
    assert not names(tmp_path) & (BASE - {"config.json"})
    for auto in (AutoModelForImageTextToText, AutoModel):
        loaded = auto.from_pretrained(tmp_path, keep=7, dtype=torch.bfloat16, trust_remote_code=False)
        assert (type(loaded), loaded.keep, loaded.dtype) == (ARRCOCQwen, 7, torch.bfloat16)
    assert AutoConfig.from_pretrained(tmp_path).model_type == "arr_coc"
    assert torch.equal(logits(ARRCOCQwen.from_pretrained(tmp_path)), logits(ours))
    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModel.from_pretrained(tmp_path, trust_remote_code=True)


@pytest.mark.parametrize("changed", ["trained", "resized", "unnamed", "lora"])
def test_a_model_that_is_no_longer_its_base_goes_along_and_stock_transformers_loads_it(changed, folder, tmp_path):
    ours = tiny.wrapped(tiny.stock()) if changed == "unnamed" else ARRCOCQwen.from_pretrained(folder)
    with torch.no_grad():
        if changed == "trained":
            ours.model.model.visual.blocks[1].attn.proj.bias[3] += 1e-3
        if changed == "resized":
            ours.resize_token_embeddings(len(tiny.tokenizer()) + 3)
        if changed == "lora":
            _, learns = adapt(ours.model, "lora", rank=2)
            for weight in learns.values():
                weight += 0.1
    ours.save_pretrained(tmp_path, max_shard_size="1GB")
    assert names(tmp_path) >= BASE
    stock = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(stock) is Qwen3VLForConditionalGeneration
    exact = 1e-4 if changed == "lora" else 0  # its additions are merged
    assert torch.allclose(logits(stock), logits(ours), atol=exact, rtol=0)
    assert torch.equal(logits(ARRCOCQwen.from_pretrained(tmp_path)), logits(stock))


def test_weights_by_either_ones_names_are_taken(ours):
    other = tiny.stock(seed=1)
    mine = fixed()
    mine.load_state_dict(other.state_dict())
    assert torch.equal(logits(mine), logits(other))
    mine.load_state_dict(ours.state_dict())
    assert torch.equal(logits(mine), logits(ours))
    with pytest.raises(RuntimeError, match="Missing key"):
        mine.load_state_dict({name: one for name, one in other.state_dict().items() if "embed_tokens" not in name})


@pytest.mark.parametrize(("given", "match"), [
    ({"trust_remote_code": True}, "no code"),
    ({"dtype": torch.float16, "torch_dtype": torch.bfloat16}, "two names"),
    ({"device": "cpu", "device_map": "auto"}, "give one"),
    ({"use_safetensors": False}, "safetensors"),
    ({"config": tiny.config()}, "leave it out"),
    ({"output_loading_info": True}, "leave it out"),
])  # fmt: skip
def test_keywords_that_cannot_be_honoured_are_refused(given, match, folder):
    with pytest.raises(ValueError, match=match) as caught:
        ARRCOCQwen.from_pretrained(folder, **given)
    assert "\n" not in str(caught.value)


def test_keywords_are_honoured(folder):
    half = ARRCOCQwen.from_pretrained(folder, torch_dtype=torch.bfloat16, trust_remote_code=False, device_map="cpu")
    assert half.dtype == half.model.dtype == torch.bfloat16
    assert half.ask(tiny.picture(), "what?", keep=5, max_new_tokens=2).tokens_kept == 5
    spread = ARRCOCQwen.from_pretrained(folder, device_map="auto", attn_implementation="eager")
    assert spread.config._attn_implementation == "eager"
    assert torch.allclose(logits(spread), logits(tiny.stock("eager")), atol=1e-5)


def test_push_to_hub_sends_what_saving_writes(folder, tmp_path, monkeypatch):
    sent = {}

    def upload(self, *, repo_id, folder_path, **said):
        sent[repo_id] = said
        shutil.copytree(folder_path, tmp_path / repo_id)
        return "https://hub.test/commit"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **_: type("Made", (), {"repo_id": repo_id}))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    ours = ARRCOCQwen.from_pretrained(folder)
    assert ours.push_to_hub("me/mine", commit_message="the first") == "https://hub.test/commit"
    assert sent["me/mine"]["commit_message"] == "the first"
    assert names(tmp_path / "me" / "mine") >= BASE, "nobody else has this folder"
    assert "library_name: arr-coc" in (tmp_path / "me" / "mine" / "README.md").read_text(), "the card goes along"
    assert torch.equal(logits(ARRCOCQwen.from_pretrained(tmp_path / "me" / "mine")), logits(ours))
    ARRCOCQwen.from_pretrained("mini").push_to_hub("me/adapter")
    assert names(tmp_path / "me" / "adapter") & BASE == {"config.json"}, "whoever has the package has mini"
    with pytest.raises(ValueError, match="push_to_hub"):
        ours.save_pretrained(tmp_path / "other", push_to_hub=True)


# ---------------------------------------------------------------- what a PreTrainedModel has


def test_it_has_the_manners_of_the_stock_model():
    ours = fixed()
    stock = ours.model
    assert isinstance(ours, PreTrainedModel)
    assert ours.can_generate()
    assert ours.config is stock.config
    assert ours.get_input_embeddings() is stock.get_input_embeddings()
    assert ours.get_output_embeddings() is stock.lm_head
    assert ours.num_parameters() == stock.num_parameters() + sum(one.numel() for one in ours.layer.parameters())
    ours.generation_config = GenerationConfig(max_new_tokens=3, pad_token_id=0)
    assert ours.generate(**tiny.inputs(ONE)).shape[1] == tiny.inputs(ONE)["input_ids"].shape[1] + 3
    ours.gradient_checkpointing_enable()
    assert stock.is_gradient_checkpointing
    ours.gradient_checkpointing_disable()
    ours.resize_token_embeddings(len(tiny.tokenizer()) + 5)
    assert stock.lm_head.weight.shape[0] == ours.config.text_config.vocab_size == len(tiny.tokenizer()) + 5
    assert ours.to(torch.bfloat16).dtype == stock.dtype == torch.bfloat16
    assert ours.get_image_features == stock.get_image_features
    with pytest.raises(AttributeError, match="'ARRCOCQwen' object has no attribute 'nonsense'"):
        ours.nonsense
    with pytest.raises(ValueError, match="arr_coc_config"):
        ours.config = ours.arr_coc_config


def test_a_compiled_model_is_the_model(ours):
    inputs = tiny.inputs(ONE)
    compiled = torch.compile(ours, backend="eager")
    try:
        with torch.no_grad():
            assert torch.equal(compiled(**inputs, keep=5).logits, ours(**inputs, keep=5).logits)
    finally:
        torch._dynamo.reset()
    assert compiled.ask(tiny.picture(), "what?", max_new_tokens=2).tokens_kept == 5


# ---------------------------------------------------------------- whose dial


def test_the_models_own_dial_holds_wherever_an_answer_is_made_and_forward_keeps_all(
    ours, tmp_path, monkeypatch, capsys
):
    from arr_coc.cli import loading, run, show
    from arr_coc.demo.ask import ask as page_ask
    from arr_coc.demo.inputs import OWN, Inquiry
    from arr_coc.demo.models import Models

    kept = []
    dials = type(ours)._dials
    monkeypatch.setattr(
        type(ours), "_dials", lambda *given, **more: kept.append(found := dials(*given, **more)) or found
    )
    path = tmp_path / "picture.png"
    tiny.picture(128, 128).save(path)
    inputs = tiny.inputs(Conversation([read_image(path)], "what?"))
    monkeypatch.setattr(loading, "load", lambda *_, **__: ours)
    monkeypatch.setattr(show, "chosen_selector", lambda *_: ours.selector)
    models = Models(["tiny"], load=lambda _: ours)
    doors = {
        "ask": lambda: ours.ask(path, "what?", max_new_tokens=2),
        "stream": lambda: list(ours.stream(path, "what?", max_new_tokens=2)),
        "generate": lambda: ours.generate(**inputs, max_new_tokens=2),
        "choose": lambda: ours.choose(path, "what?"),
        "arr-coc ask": lambda: run.run(["ask", str(path), "what?", "--max-new-tokens", "2"]),
        "arr-coc show": lambda: run.run(["show", str(path), "what?", "--out", str(tmp_path), "--only", "tokens"]),
        "page": lambda: list(page_ask(models, "tiny", Inquiry.of(path, "what?", OWN))),
    }  # fmt: skip
    for name, door in doors.items():
        kept.clear()
        door()
        assert [dial for found, _ in kept for dial in found] == [5], name
    kept.clear()
    assert ours(**inputs).logits.shape[1] == inputs["input_ids"].shape[1]
    assert kept[0][0] == [1.0]


# ---------------------------------------------------------------- nothing vanishes


SHOWN = {"type": "image", "image": tiny.picture()}


@pytest.mark.parametrize(("talk", "match"), [
    (messages({"type": "video", "path": "clip.mp4"}), "clip.mp4: no such file"),
    (messages(SHOWN, {"type": "video"}), "videos that the text shows: 1, that were given: 0"),
    (messages({"type": "image", "path": "nowhere.png"}), "nowhere.png: no such image file"),
    (messages({"type": "image", "url": "nowhere.png"}), "nowhere.png: no such image file"),
    (messages({"type": "image"}), "shows: 1, that were given: 0"),
    (messages({"type": "image", "image_path": "there.png"}), "shows: 1, that were given: 0"),
    (messages(SHOWN, {"type": "image", "image": None}), "shows: 2, that were given: 1"),
    (messages({**SHOWN, "path": str(SAMPLE)}), "shows: 1, that were given: 2"),
])  # fmt: skip
def test_what_a_message_shows_is_read_or_refused(talk, match):
    how = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    with pytest.raises(ValueError, match=match) as caught:
        tiny.processor().apply_chat_template(talk, **how)
    assert "\n" not in str(caught.value)


def test_inputs_of_which_something_is_missing_are_refused(ours):
    inputs = {name: value for name, value in tiny.inputs(ONE).items() if not name.startswith(("pixel", "image"))}
    video = inputs["input_ids"].masked_fill(inputs["input_ids"] == tiny.token_id("<|image_pad|>"), 0)
    video[0, 3] = tiny.token_id("<|video_pad|>")
    for run in (ours, ours.generate):
        with pytest.raises(ValueError, match="shows an image that is not in the inputs"):
            run(**{name: value for name, value in inputs.items() if name != "question_mask"})
        with pytest.raises(ValueError, match="shows a video that is not in the inputs"):
            run(input_ids=video)
    with pytest.raises(ValueError, match="shows: 1, that were given: 2"):
        tiny.processor()(images=[tiny.picture()] * 2, text=["<|image_pad|> what?"])
    with pytest.raises(ValueError, match=r"second\.png: no such image file"):
        ours.ask([tiny.picture(), "second.png"], "what?")


# ---------------------------------------------------------------- images and dials as people have them


def test_an_image_is_the_same_in_every_form(tmp_path):
    path = tmp_path / "one.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)).save(path)
    wanted = np.asarray(read_image(path))
    with path.open("rb") as file:
        forms = [path, str(path), file, path.read_bytes(), bytearray(path.read_bytes()), wanted, wanted / 255.0,
                 wanted.transpose(2, 0, 1), np.dstack([wanted, np.full((40, 60), 255, np.uint8)]),
                 torch.tensor(wanted), torch.tensor(wanted).permute(2, 0, 1),
                 torch.tensor(wanted).permute(2, 0, 1) / 255]  # fmt: skip
        for number, form in enumerate(forms):
            assert np.array_equal(np.asarray(read_image(form)), wanted), number
    grey = wanted[..., 0]
    for form in (grey, grey[..., None], grey[None], torch.tensor(grey), torch.tensor(grey)[None]):
        assert np.array_equal(np.asarray(read_image(form)), np.dstack([grey] * 3))


def test_numbers_of_numpy_are_dials(ours):
    for keep, tokens in ((np.float32(0.25), 5), (np.int64(6), 6), (np.float64(1.0), 20), (torch.tensor(0.5), 10)):
        assert ours.ask(tiny.picture(), "what?", keep=keep, max_new_tokens=1).tokens_kept == tokens
    both = ours(**tiny.inputs(ONE, TWO), keep=np.array([4, 6]), output_arr_coc_info=True).arr_coc.images
    assert [sum(image.tokens_kept for image in row) for row in both] == [4, 6]
    for keep in (np.int64(1), np.float32(1.5), np.bool_(True), np.float16("nan")):
        with pytest.raises(ValueError, match="keep"):
            ours.ask(tiny.picture(), "what?", keep=keep)


@torch.no_grad()
def test_compact_positions_leave_a_row_that_keeps_all_as_it_was():
    ours = fixed()
    inputs = tiny.inputs(ONE, TWO)
    wanted = ours.model(**tiny.stock_inputs(inputs)).logits
    ours.arr_coc_config = type(ours.arr_coc_config)(hidden_dim=32, position_policy="compact")
    assert torch.equal(ours(**inputs, keep=1.0).logits, wanted)
    mixed = ours(**inputs, keep=[1.0, 6], align_logits=True).logits
    real = inputs["attention_mask"][0].bool()
    assert torch.allclose(mixed[0, real], wanted[0, real], atol=1e-3)
    assert not torch.allclose(mixed[1], wanted[1], atol=1e-2)
    both = ours.generate(**inputs, keep=[1.0, 6], max_new_tokens=6)
    ours.fast = True
    assert torch.equal(both, ours.generate(**inputs, keep=[1.0, 6], max_new_tokens=6))
