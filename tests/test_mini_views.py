"""Several images and clips in the batched forward: positions, logits and losses are those of the stock model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from arr_coc.qwen.processor import load_processor
from studies.answering import Answerer, turn_mask
from studies.batched.forward import logits, run_text
from studies.mini.model import mini_config, new_model
from studies.mini.seeing import clip_patches, encode_views, image_patches, run_views, view_tables
from studies.mini.train import ASSETS
from studies.mini.views import Form, ShownViews, ViewQuestion, prefix_of, timestamps
from studies.turns import Turns
from studies.wide.evaluate_views import ViewAnswerer, ViewRow

FORMS = {
    "images": Form(((96, 64), (64, 64), (32, 96))),
    "clip": Form(((96, 64),), frames=6),
    "bare clip": Form(((64, 96),), frames=4, fps=0.3, bare=True),
}
QUESTIONS = ("What colour is the star?", "How many?")


@pytest.fixture(scope="module")
def turns():
    return Turns(AutoTokenizer.from_pretrained(ASSETS))


@pytest.fixture(scope="module")
def model():
    vocabulary = AutoTokenizer.from_pretrained(ASSETS).get_vocab()
    model = new_model(mini_config(vocabulary, hidden=128, layers=(4, 3)), seed=1).eval()
    with torch.no_grad():  # fresh norms and biases are ones and zeros, which would hide mistakes
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pictures(form, rows=2):
    """Per image or frame, uint8 [B, H, W, 3] of noise."""
    rng = np.random.default_rng(0)
    sizes = form.sizes * form.frames if form.frames else form.sizes
    return [torch.from_numpy(rng.integers(0, 256, (rows, h, w, 3), dtype=np.uint8)) for w, h in sizes]


def batched_logits(model, turns, form, shown, cells=None):
    """Logits of each question's prompt, [B, prompt, V], from one packed pass."""
    patches = clip_patches(torch.stack(shown, 1), torch.float32) if form.frames else image_patches(shown, torch.float32)
    seen = encode_views(model, patches, view_tables(model, form.grids, "cpu"), cells)
    prefix = prefix_of(turns, form)
    rows = [prefix.kept(None if cells is None else row.numpy()) for row in (cells if cells is not None else [None])]
    prompt, slots = (np.stack([row[part] for row in rows], 1 - part) for part in (0, 1))
    cache = run_views(model, seen, torch.from_numpy(prompt).long(), torch.from_numpy(slots).long())
    prompts = [turns.prompt(question) for question in QUESTIONS]
    ids = torch.tensor([i for p in prompts for i in p]).expand(len(patches), -1)
    numbers = torch.tensor([n for n, p in enumerate(prompts) for _ in p]).expand(len(patches), -1)
    places = torch.tensor([prefix.start + o for p in prompts for o in range(len(p))]).expand(len(patches), -1)
    hidden = run_text(model, ids, places, turn_mask(numbers, cache[0][0].shape[2]), cache)
    return logits(model, hidden, torch.float32).split([len(p) for p in prompts], dim=1)


def stock_inputs(turns, form, shown, row, question):
    """What the stock processor hands to the stock model: ids, patches of both frames, grids, kinds of tokens."""
    ids = torch.tensor([[*prefix_of(turns, form).ids_S.tolist(), *turns.prompt(question)]])
    pairs = list(zip(shown[::2], shown[1::2], strict=True)) if form.frames else [(one, one) for one in shown]
    rows = []
    for first, second in pairs:
        both = torch.stack([first[row], second[row]]).permute(0, 3, 1, 2).float() / 127.5 - 1
        _, _, high, wide = both.shape
        blocks = both.view(2, 3, high // 32, 2, 16, wide // 32, 2, 16).permute(2, 5, 3, 6, 1, 0, 4, 7)
        rows.append(blocks.reshape(-1, 1536))
    grids = [[1, 2 * h, 2 * w] for h, w in form.grids]
    if not form.frames:
        kinds = (ids == turns.image_id).int()
        return {"input_ids": ids, "mm_token_type_ids": kinds, "pixel_values": torch.cat(rows)} | {
            "image_grid_thw": torch.tensor(grids)
        }
    kinds = 2 * (ids == turns.video_id).int()
    thw = torch.tensor([[len(grids), *grids[0][1:]]])
    return {"input_ids": ids, "mm_token_type_ids": kinds, "pixel_values_videos": torch.cat(rows), "video_grid_thw": thw}


@pytest.mark.parametrize("name", FORMS)
def test_places_are_those_of_the_stock_model(model, turns, name):
    form = FORMS[name]
    inputs = stock_inputs(turns, form, pictures(form), 0, QUESTIONS[0])
    grids = {key: inputs.get(key) for key in ("image_grid_thw", "video_grid_thw")}
    places, _ = model.model.get_rope_index(inputs["input_ids"], inputs["mm_token_type_ids"], **grids)
    prefix = prefix_of(turns, form)
    length = len(prefix.ids_S)
    assert torch.equal(places[:, 0, :length], torch.from_numpy(prefix.places_3S).long())
    assert places[:, 0, length].tolist() == [prefix.start] * 3


@pytest.mark.parametrize("name", FORMS)
def test_logits_and_loss_are_those_of_the_stock_model(model, turns, name):
    form = FORMS[name]
    shown = pictures(form)
    with torch.no_grad():
        found = batched_logits(model, turns, form, shown)
        for number, question in enumerate(QUESTIONS):
            for row in range(2):
                inputs = stock_inputs(turns, form, shown, row, question)
                length = len(prefix_of(turns, form).ids_S)
                labels = inputs["input_ids"].clone()
                labels[:, : length + 1] = -100
                wanted = model(**inputs, labels=labels)
                expected, given = wanted.logits[0, length:], found[number][row]
                assert (given - expected).abs().max() < 1e-5 * expected.abs().max()
                loss = torch.nn.functional.cross_entropy(given[:-1], labels[0, length + 1 :])
                assert abs(float(loss - wanted.loss)) < 1e-5


@pytest.mark.parametrize("name", FORMS)
def test_kept_cells_see_their_own_view_and_stand_where_they_stood(model, turns, name):
    form = FORMS[name]
    shown = pictures(form)
    whole = torch.arange(form.cells).expand(2, -1)
    with torch.no_grad():
        dense, kept = (batched_logits(model, turns, form, shown, cells) for cells in (None, whole))
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(dense, kept, strict=True))
        few = torch.tensor([[0, 2, 3, 7], [1, 6, 8, 9]])
        before = batched_logits(model, turns, form, shown, few)
        changed = [shown[0].clone(), *(picture.clone() for picture in shown[1:])]
        changed[0][:, :32, 32:64] = 0  # cell 1, which the second row alone keeps
        after = batched_logits(model, turns, form, changed, few)
    assert torch.equal(before[0][0], after[0][0])
    assert not torch.allclose(before[0][1], after[0][1], atol=1e-4)
    prefix = prefix_of(turns, form)
    (_, *places), slots = prefix.kept(few[0].numpy())
    assert np.array_equal(np.array(places)[:, slots], prefix.places_3S[:, prefix.columns_N[few[0].numpy()]])


@pytest.mark.parametrize("name", FORMS)
def test_answers_are_those_of_the_stock_models_generate(model, turns, name):
    form, shown = FORMS[name], pictures(FORMS[name], rows=1)
    questions = tuple(ViewQuestion(text, "", "", ()) for text in QUESTIONS)
    row = ViewRow(ShownViews(form, tuple(picture[0].numpy() for picture in shown), (), ()), questions)
    answerer = Answerer(model, AutoTokenizer.from_pretrained(ASSETS), most_tokens=6)
    (answers,) = ViewAnswerer(answerer).answer([row])
    for question, given in zip(QUESTIONS, answers, strict=True):
        inputs = stock_inputs(turns, form, shown, 0, question)
        told = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=turns.stop_id)
        assert turns.decode(told[0, inputs["input_ids"].shape[1] :].tolist()) == given


def test_a_clip_is_laid_out_as_the_stock_processor_does(turns):
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    form = FORMS["clip"]
    content = [{"type": "video"}, {"type": "text", "text": QUESTIONS[0]}]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
    processor = load_processor(str(ASSETS))
    processor.video_processor = SimpleNamespace(merge_size=2, temporal_patch_size=2)
    metadata = SimpleNamespace(fps=2, frames_indices=list(range(form.frames)))
    grid = torch.tensor([[form.frames // 2, 4, 6]])
    replacement = processor.replace_video_token({"video_grid_thw": grid, "video_metadata": [metadata]}, 0)
    (laid,), _ = processor.get_text_with_replacements([text], videos_replacements=[replacement])
    prefix = prefix_of(turns, form)
    assert tokenizer(laid)["input_ids"][: len(prefix.ids_S)] == prefix.ids_S.tolist()
    assert timestamps(24, 2)[-1] == "<11.2 seconds>"
    assert timestamps(4, 0.3) == ["<1.7 seconds>", "<8.3 seconds>"]
    bare = prefix_of(turns, replace(form, bare=True)).ids_S
    assert bare.tolist() == [*turns.lead_ids[:-1], *prefix.ids_S[len(turns.lead_ids) : -1]]
