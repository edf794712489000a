"""The plugin against the project: the same answers, counts and log probabilities, whatever vLLM does on the way."""

import copy
import json
import shutil

import pytest
import torch
from engines import DIALS, MINI, QUESTIONS, Case, cases_of
from PIL import Image
from safetensors.torch import load_file, save_file
from vllm import envs

from arr_coc.qwen import ARRCOCQwen
from arr_coc.vllm.model import refuse
from arr_coc.vllm.processor import ARRCOCProcessor

EXACT = 1e-5  # between log probabilities in 32 bits


def answers(owner, asked):
    """What the project says to each, and how many tokens it keeps."""
    found = [owner.ask(list(case.images), case.question, keep=keep, history=case.history) for case, keep in asked]
    return [(one.text, one.tokens_kept) for one in found]


def said(engine, asked):
    return [(one.text, one.kept) for one in engine.ask(asked)]


def logprobs(owner, case, keep):
    """Of the tokens of the answer, by the project."""
    inputs = owner.encode_question(list(case.images), case.question, keep=keep)
    length = inputs["input_ids"].shape[1]
    how = {"max_new_tokens": 128, "return_dict_in_generate": True, "output_logits": True}
    made = owner.generate(**inputs, keep=keep, **how)
    new = made.sequences[0, length:]
    return [row[0].float().log_softmax(-1)[token].item() for row, token in zip(made.logits, new, strict=True)]


@pytest.fixture(scope="module")
def expected(own, cases):
    return {keep: answers(own, [(case, keep) for case in cases]) for keep in DIALS}


# ---------------------------------------------------------------- the same as the project


def test_24_questions_with_3_dials_in_one_batch(engines, cases, expected):
    asked = [(case, keep) for keep in DIALS for case in cases]
    found = said(engines.get(), asked)
    assert len(found) == 72
    assert found == [one for keep in DIALS for one in expected[keep]]
    assert len({text for text, _ in found}) > 10


def test_log_probabilities(engines, own, cases):
    asked = [(case, DIALS[place % 3]) for place, case in enumerate(cases[:18])]
    for one, (case, keep) in zip(engines.get().ask(asked), asked, strict=True):
        torch.testing.assert_close(list(one.logprobs), logprobs(own, case, keep), atol=EXACT, rtol=0)


def test_all_is_stock_vllm_which_loads_the_weights_unchanged(engines, cases, expected):
    """mini's folder as it lies in the package, and no plugin: to the token, and to the last digit."""
    stock = engines.stock().ask([(case, None) for case in cases])
    ours = engines.get().ask([(case, 1.0) for case in cases])
    assert [one.ids for one in ours] == [one.ids for one in stock]
    for one, other in zip(ours, stock, strict=True):
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=EXACT, rtol=0)
    assert [(one.text, one.kept) for one in stock] == expected[1.0]


def test_javascripts_one_is_all_and_no_dial_is_the_engines(engines, cases, expected):
    assert said(engines.get(), [(cases[0], 1)]) == expected[1.0][:1]
    assert said(engines.get(), [(cases[0], None)]) == expected["auto"][:1]


def test_several_images_share_a_budget_and_the_last_question_chooses(engines, own, pictures):
    two = pictures[:2]
    asked = [
        (Case(tuple(order), question), keep) for order in (two, two[::-1]) for question in QUESTIONS for keep in (0.25,)
    ]
    asked += [(Case((two[0],), QUESTIONS[1], ((QUESTIONS[0], "green"),)), keep) for keep in ("auto", 0.1)]
    assert said(engines.get(), asked) == answers(own, asked)


def test_an_image_that_must_be_resized(engines, own):
    """To whole cells, and not square."""
    picture = Image.radial_gradient("L").convert("RGB").resize((517, 391))
    asked = [(Case((picture,), QUESTIONS[0]), keep) for keep in (0.25, "auto", 1.0)]
    assert [kept for _, kept in said(engines.get(), asked)] == [kept for _, kept in answers(own, asked)]


# ---------------------------------------------------------------- what vLLM does on the way


def test_chunks_that_end_inside_images_and_the_prefix_cache(engines, cases, expected):
    small = engines.get(max_num_batched_tokens=96, max_num_seqs=8, block_size=32)
    asked = [(case, DIALS[place % 3]) for place, case in enumerate(cases)]
    wanted = [expected[keep][place] for place, (_, keep) in enumerate(asked)]
    assert said(small, asked) == wanted
    again = small.ask(asked)
    assert [(one.text, one.kept) for one in again] == wanted
    assert sum(one.cached for one in again) > 1000
    assert said(small, asked[::-1]) == wanted[::-1]


def test_dials_interleaved_over_questions_on_one_image(engines, own, pictures):
    dials = (0.25, "auto", 0.1, 1.0)
    asked = [(case, keep) for case in cases_of(pictures[:4], QUESTIONS[:2]) for keep in dials]
    engines.get().forget()
    found = said(engines.get(), asked)
    assert len(found) == 32
    assert found == answers(own, asked)


def test_a_key_without_the_cells_would_answer_wrongly(engines, own, pictures, monkeypatch):
    """Two questions about each of 8 images: under image and count alone, the second gets the first's cells."""
    asked = [(case, 0.25) for case in cases_of(pictures[8:], QUESTIONS[::2])]
    wanted, engine = answers(own, asked), engines.get()
    engine.forget()
    assert said(engine, asked) == wanted
    engine.forget()
    monkeypatch.setattr(ARRCOCProcessor, "_key", lambda self, name, windows: f"{name}-{len(windows.kept)}")
    naive = said(engine, asked)
    assert naive != wanted
    assert [kept for _, kept in naive] == [kept for _, kept in wanted], "and nothing tells"
    engine.forget()


# ---------------------------------------------------------------- other models


def without_adapter(folder):
    shutil.copytree(MINI, folder, ignore=shutil.ignore_patterns("arr_coc*", "README.md"))
    return folder


def with_experts(folder):
    """mini with its MLPs cut into four experts each, and a random router."""
    from transformers import AutoModelForImageTextToText, Qwen3VLMoeConfig

    without_adapter(folder)
    settings = json.loads((folder / "config.json").read_text())
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 192, "decoder_sparse_step": 1}
    text = {**settings["text_config"], **experts, "norm_topk_prob": True, "model_type": "qwen3_vl_moe_text"}
    vision = {**settings["vision_config"], "model_type": "qwen3_vl_moe_vision"}
    named = {name: value for name, value in settings.items() if name.endswith("token_id") or "tie" in name}
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(Qwen3VLMoeConfig(text_config=text, vision_config=vision, **named))
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).state_dict()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(base[name] if name in base else 0.05 * torch.randn_like(parameter))
        for number, layer in enumerate(model.model.language_model.layers):
            gate, up, down = (
                base[f"model.language_model.layers.{number}.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
            )
            for one in range(4):
                own = slice(192 * one, 192 * (one + 1))
                layer.mlp.experts.gate_up_proj[one] = torch.cat([gate[own], up[own]])
                layer.mlp.experts.down_proj[one] = 2 * down[:, own]
    for path in folder.glob("model*"):
        path.unlink()
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():  # as published checkpoints have them: inputs before outputs
        if name.endswith("experts.gate_up_proj") and tensor.shape[1] != 256:
            tensors[name] = tensor.transpose(1, 2).contiguous()
        if name.endswith("experts.down_proj") and tensor.shape[1] == 256:
            tensors[name] = tensor.transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("make", [without_adapter, with_experts])
def test_a_model_without_an_adapter_looks_twice(make, engines, cases, tmp_path, monkeypatch):
    """Dense and MoE: also where few windows attend to a small copy in the ViT."""
    folder = str(make(tmp_path / "model"))
    if make is with_experts:  # in a process of its own: this one was set up for a dense model
        monkeypatch.setattr(envs, "VLLM_ENABLE_V1_MULTIPROCESSING", True, raising=False)
    owner, engine = ARRCOCQwen.from_pretrained(folder), engines.get(folder)
    assert owner.selector.name == "look_twice"
    asked = [(case, keep) for case in cases[:8] for keep in ("auto", 0.25, 0.5, 20, 1.0)]
    wanted = answers(owner, asked)
    assert said(engine, asked) == wanted
    assert len({text for text, _ in wanted}) > 5
    few = [(case, 20) for case in cases[:3]]
    for one, (case, keep) in zip(engine.ask(few), few, strict=True):
        torch.testing.assert_close(list(one.logprobs), logprobs(owner, case, keep), atol=EXACT, rtol=0)


# ---------------------------------------------------------------- what is refused


def test_requests_that_are_refused(engines, cases):
    engine = engines.get()
    prompt = engine.prompt(cases[0], 0.25)
    stray = {**prompt, "prompt": prompt["prompt"].replace("What", "<|image_pad|> What")}
    for given, why in (
        ({**prompt, "mm_processor_kwargs": {"keep": 0.25, "max_pixels": 4}}, "max_pixels: give keep alone"),
        ({**prompt, "mm_processor_kwargs": {"keep": 1.5}}, "keep=1.5"),
        ({**prompt, "mm_processor_kwargs": {"keep": "half"}}, "half"),
        (stray, "2 image placeholders for 1 images"),
    ):
        with pytest.raises(ValueError, match=why):
            engine.llm.generate([given], engine.greedy, use_tqdm=False)
    assert engine.ask([(cases[0], 0.25)])[0].kept == 64, "and it goes on"


def test_settings_that_are_refused(engines, monkeypatch):
    whole = engines.get().llm.llm_engine.vllm_config
    refuse(whole)
    images = whole.model_config.multimodal_config
    for holder, name, value, told in (
        (images, "mm_encoder_tp_mode", "data", "tp-mode"),
        (images, "video_pruning_rate", 0.5, "pruning"),
        (whole.compilation_config, "cudagraph_mm_encoder", True, "cudagraph"),
    ):
        before = copy.copy(getattr(holder, name))
        object.__setattr__(holder, name, value)
        with pytest.raises(ValueError, match=told):
            refuse(whole)
        object.__setattr__(holder, name, before)
    monkeypatch.setattr(envs, "VLLM_USE_RUST_FRONTEND", True, raising=False)
    with pytest.raises(ValueError, match="RUST"):
        refuse(whole)
