"""Using it as a person would: asking, streaming, several turns, and as a drop-in for generate."""

import logging
import threading

import pytest
import tiny
import torch
from pictures import varied
from PIL import Image
from transformers import GenerationConfig, StoppingCriteria, TextStreamer

from arr_coc import ARRCOCConfig, ARRCOCQwen
from arr_coc.attending import budget_bounds
from arr_coc.qwen.processor import Conversation, encode
from arr_coc.qwen.request import find_question
from arr_coc.qwen.sizes import fit_images
from arr_coc.qwen.vision import Geometry, unpatchify

ONE = Conversation([tiny.picture()], "what is this?")
TWO = Conversation([tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)], "and what are these two?")


@pytest.fixture(scope="module")
def ours() -> ARRCOCQwen:
    return tiny.wrapped(tiny.stock())


def test_an_answer_tells_what_was_kept_and_how_long_it_took(ours):
    answer = ours.ask(tiny.picture(160, 128), "what is this?", keep=0.25, max_new_tokens=4)
    assert isinstance(answer.text, str)
    assert (answer.tokens_total, answer.tokens_kept) == (20, 5)
    (image,) = answer.selection
    assert image.grid == (4, 5)
    assert image.mask.sum() == 5
    assert image.relevance.shape == (4, 5)
    assert {"vision", "attending", "generate", "prefill"} <= set(answer.timings_ms)


def test_asking_equals_generating(ours):
    inputs = tiny.inputs(ONE)
    new = ours.generate(**inputs, keep=0.5, max_new_tokens=6, original_image=ONE.images)[0, -6:]
    text = ours.ask(list(ONE.images), ONE.question, keep=0.5, max_new_tokens=6).text
    assert text == tiny.tokenizer().decode(new, skip_special_tokens=True)


def test_an_image_of_several_questions_is_prepared_once(monkeypatch):
    processor = tiny.processor()
    one, other = tiny.picture(96, 96, 1), tiny.picture(64, 128, 2)
    copies = [Conversation([one.copy(), other.copy()], "both?"), Conversation([one.copy()], "and this?")]
    shared = [Conversation([one, other], "both?"), Conversation([one], "and this?")]
    wanted, prepared = encode(processor, copies), []
    plain = type(processor.image_processor).__call__
    monkeypatch.setattr(
        type(processor.image_processor),
        "__call__",
        lambda self, images, **more: prepared.extend(images) or plain(self, images=images, **more),
    )
    made = encode(processor, shared)
    assert prepared == [one, other]
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)


def test_patches_and_the_original_image_give_the_same_choice():
    layered = tiny.wrapped(tiny.stock(), selector="arr_coc")
    inputs = {name: value for name, value in tiny.inputs(ONE).items() if name != "mm_token_type_ids"}
    rebuilt, given = (layered.prepare(**inputs, keep=6, original_image=image).images[0][0].relevance
                      for image in (None, ONE.images))  # fmt: skip
    assert torch.allclose(rebuilt, given, atol=1e-4)


def test_patches_are_read_back_with_any_normalisation():
    mean, std = torch.tensor([0.48, 0.3, 0.6]), torch.tensor([0.2, 0.5, 0.3])
    image = torch.rand(3, 64, 96, generator=torch.Generator().manual_seed(0))
    normal = (image - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    patches = (
        normal.view(3, 2, 2, 16, 3, 2, 16)
        .permute(1, 4, 2, 5, 0, 3, 6)
        .unsqueeze(5)
        .expand(-1, -1, -1, -1, -1, 2, -1, -1)
    )
    geometry = Geometry(mean=(0.48, 0.3, 0.6), std=(0.2, 0.5, 0.3))
    back = unpatchify(patches.reshape(24, 1536), (2, 3), geometry)
    assert torch.allclose(back, image, atol=1e-6)


def test_each_image_is_judged_by_its_own_pixels_and_question():
    """Two pictures of one size and two questions in a batch: each row chooses as it does alone."""
    layered = tiny.wrapped(tiny.stock(), selector="arr_coc")
    rows = [
        Conversation([Image.fromarray(varied(seed, (320, 320)).permute(1, 2, 0).numpy())], question)
        for seed, question in ((3, "what colour?"), (8, "zebra crossing"))
    ]
    inputs = lambda *rows: {k: v for k, v in tiny.inputs(*rows).items() if k != "mm_token_type_ids"}  # noqa: E731
    together = [images[0] for images in layered.prepare(**inputs(*rows), keep=20).images]
    for row, image in zip(rows, together, strict=True):
        (alone,) = layered.prepare(**inputs(row), keep=20).images[0]
        assert torch.equal(image.kept, alone.kept)
        for name, values in alone.maps.items():
            assert torch.allclose(image.maps[name], values, atol=1e-5), name
    assert not torch.equal(together[0].kept, together[1].kept)


def test_several_images_share_one_budget(ours):
    answer = ours.ask(list(TWO.images), TWO.question, keep=8, max_new_tokens=2)
    assert answer.tokens_kept == 8
    assert all(image.tokens_kept >= 1 for image in answer.selection)
    least = ours.ask([tiny.picture(64, 64, n) for n in range(4)], "which?", keep=2, max_new_tokens=2)
    assert [image.tokens_kept for image in least.selection] == [1, 1, 1, 1]
    automatic = ours.ask([tiny.picture(512, 512, n) for n in range(5)], "which?", keep="auto", max_new_tokens=2)
    least, most = budget_bounds(5 * 256, 64, 400)
    assert least <= automatic.tokens_kept <= most < 5 * 100, "one budget, not one for each"


def test_the_second_question_chooses_anew():
    ours = tiny.wrapped(tiny.stock(), selector="training_free")
    picture = Image.fromarray(varied(5, (320, 320)).permute(1, 2, 0).numpy())
    kept = lambda question, history=(): ours.ask(  # noqa: E731
        picture, question, keep=20, history=history, max_new_tokens=2
    ).selection[0].kept  # fmt: skip
    first = kept("what colour?")
    second = kept("zzz!", [("what colour?", "red")])
    assert not torch.equal(first, second)
    assert torch.equal(second, kept("zzz!")), "the last question alone decides"


def test_the_question_is_found_in_plain_inputs(ours):
    conversation = Conversation([tiny.picture()], "and now?", history=[("first of all", "an answer")])
    inputs = tiny.inputs(conversation, ONE)
    found = find_question(inputs["input_ids"], inputs["attention_mask"], ours.model.config, ours._chat)
    assert torch.equal(found, inputs["question_mask"])
    no_chat = find_question(inputs["input_ids"], inputs["attention_mask"], ours.model.config, None)
    text = tiny.tokenizer().decode(inputs["input_ids"][1][no_chat[1]])
    assert text.startswith(ONE.question)


@pytest.mark.parametrize("options", [
    {"num_beams": 3},
    {"num_beams": 3, "num_return_sequences": 2},
    {"do_sample": True, "num_return_sequences": 3, "temperature": 0.8},
    {"repetition_penalty": 1.3},
])  # fmt: skip
def test_the_prompt_comes_back_in_front(ours, options):
    inputs = tiny.inputs(ONE, TWO)
    torch.manual_seed(0)
    out = ours.generate(**inputs, keep=0.4, max_new_tokens=5, **options)
    several = options.get("num_return_sequences", 1)
    length = inputs["input_ids"].shape[1]
    assert out.shape == (2 * several, length + 5)
    assert torch.equal(out[:, :length], inputs["input_ids"].repeat_interleave(several, 0))


def test_beams_and_lengths_equal_the_untouched_model_when_all_is_kept(ours):
    inputs = tiny.inputs(ONE, TWO)
    for options in ({"num_beams": 3, "max_new_tokens": 5}, {"max_length": inputs["input_ids"].shape[1] + 4}):
        theirs = ours.model.generate(**tiny.stock_inputs(inputs), **options)
        assert torch.equal(ours.generate(**inputs, keep=1.0, **options), theirs)
        assert ours.generate(**inputs, keep=0.4, **options).shape == theirs.shape


def test_lengths_in_a_generation_config_are_counted_on_the_callers_prompt(ours):
    inputs = tiny.inputs(ONE)
    length = inputs["input_ids"].shape[1]
    config = GenerationConfig(max_length=length + 4, pad_token_id=tiny.tokenizer().pad_token_id)
    assert ours.generate(**inputs, keep=0.4, generation_config=config).shape == (1, length + 4)
    assert config.max_length == length + 4, "the caller's own config is left alone"


def test_forward_as_a_tuple(ours):
    inputs = tiny.inputs(ONE)
    with torch.no_grad():
        logits = ours(**inputs, keep=0.4).logits
        plain = ours(**inputs, keep=0.4, return_dict=False)
    assert torch.equal(plain[0], logits)


def test_beams_are_not_streamed(ours):
    with pytest.raises(ValueError, match="num_beams"):
        list(ours.stream(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=4, num_beams=2))
    config = GenerationConfig(num_beams=2, pad_token_id=tiny.tokenizer().pad_token_id)
    assert ours.ask(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=4, generation_config=config).text


def test_own_stopping_criteria_reach_a_stream(ours):
    class AfterTwo(StoppingCriteria):
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, input_ids, scores, **kwargs):
            self.calls += 1
            return torch.full((input_ids.shape[0],), self.calls >= 2)

    after_two = AfterTwo()
    list(ours.stream(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=50, stopping_criteria=[after_two]))
    assert after_two.calls == 2


def test_a_dict_output_carries_the_full_sequences(ours):
    inputs = tiny.inputs(ONE)
    out = ours.generate(**inputs, keep=0.4, max_new_tokens=3, return_dict_in_generate=True, output_scores=True)
    assert torch.equal(out.sequences[:, :-3], inputs["input_ids"])
    assert len(out.scores) == 3


def test_streaming_gives_the_answer_in_pieces(ours):
    whole = ours.ask(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=12).text
    assert "".join(ours.stream(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=12)) == whole


def test_a_streamer_sees_the_callers_prompt(ours, capsys):
    inputs = tiny.inputs(ONE)
    ours.generate(**inputs, keep=0.3, max_new_tokens=2, streamer=TextStreamer(tiny.tokenizer()))
    assert capsys.readouterr().out.count("<|image_pad|>") == 20


def test_leaving_a_stream_early_ends_the_generation(ours):
    before = threading.active_count()
    stream = ours.stream(tiny.picture(), "what is this?", keep=0.5, max_new_tokens=400)
    next(stream)
    stream.close()
    assert threading.active_count() == before


def test_an_error_inside_the_stream_reaches_the_reader(ours):
    with pytest.raises(ValueError, match="keep"):
        list(ours.stream(tiny.picture(), "what is this?", keep=7.5))
    with pytest.raises(ValueError, match="temperature"):
        list(ours.stream(tiny.picture(), "what is this?", keep=0.5, do_sample=True, temperature=-1.0))


class TakeTurns(StoppingCriteria):
    """Lets two generations go on one token at a time, in turns."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier

    def __call__(self, input_ids, scores, **kwargs):
        self.barrier.wait(timeout=60)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


@pytest.mark.parametrize("keeps", [(0.3, 0.9), (1.0, 0.5), (1.0, 1.0)])
def test_two_interleaved_generations_equal_one_after_the_other(ours, keeps):
    batches = [tiny.inputs(ONE), tiny.inputs(TWO)]
    run = lambda n, **more: ours.generate(**batches[n], keep=keeps[n], max_new_tokens=12, **more)  # noqa: E731
    wanted = [run(0), run(1)]
    assert all(tiny.varies(out[:, -12:]) for out in wanted)
    barrier, got = threading.Barrier(2), [None, None]

    def work(n: int) -> None:
        got[n] = run(n, stopping_criteria=[TakeTurns(barrier)])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(got[0], wanted[0])
    assert torch.equal(got[1], wanted[1])


def test_no_state_is_left_on_the_shared_model():
    stock = tiny.stock()
    ours = tiny.wrapped(stock)
    ours.generate(**tiny.inputs(ONE), keep=0.4, max_new_tokens=2)
    ours(**tiny.inputs(TWO), keep=0.4)
    assert stock.model.rope_deltas is None


def test_text_alone_passes_through(ours):
    ids = torch.tensor([tiny.tokenizer()("hello there")["input_ids"]])
    assert torch.equal(
        ours.generate(input_ids=ids, max_new_tokens=4), ours.model.generate(input_ids=ids, max_new_tokens=4)
    )
    with torch.no_grad():
        assert torch.equal(ours(input_ids=ids).logits, ours.model(input_ids=ids).logits)


def test_a_selector_that_fails_keeps_all_and_answers(caplog):
    class Broken(tiny.FixedSelector):
        def judge(self, view, stopwatch):
            raise ValueError("no such luck")

    ours = tiny.wrapped(tiny.stock(), selector=Broken(tiny.scattered))
    with caplog.at_level(logging.WARNING):
        answer = ours.ask(tiny.picture(), "what is this?", keep=0.25, max_new_tokens=2)
    assert answer.tokens_kept == answer.tokens_total
    assert answer.selection[0].strategy == "keep_all"
    assert "ValueError" in answer.selection[0].reason
    assert "no such luck" in caplog.text
    with pytest.raises(ValueError, match="no such luck"):
        ours.train()(**tiny.inputs(ONE), keep=0.25)


def test_scores_that_are_not_finite_keep_all(caplog):
    ours = tiny.wrapped(tiny.stock(), selector="arr_coc")
    with torch.no_grad():
        ours.layer.balancing.decide[-1].bias.fill_(float("nan"))
    answer = ours.ask(tiny.picture(), "what is this?", keep=0.25, max_new_tokens=2)
    assert answer.tokens_kept == answer.tokens_total
    assert "not finite" in answer.selection[0].reason


@pytest.mark.parametrize("pooling", ["mean", "last", "learned", "lm"])
def test_every_pooling_runs(pooling):
    config = ARRCOCConfig(hidden_dim=32, pooling=pooling)
    ours = tiny.wrapped(tiny.stock(), config=config, selector="arr_coc")
    assert ours.ask(tiny.picture(), "what is this?", keep=5, max_new_tokens=2).tokens_kept == 5


def test_our_prompt_is_the_stock_processors_prompt():
    """On ordinary text, tokenising apart gives the very ids that the stock chat template gives."""
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "first of all"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "an answer"}]},
        {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    ]
    picture = tiny.picture()
    text = tiny.processor().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    theirs = tiny.processor()(images=[picture], text=[text], return_tensors="pt")
    ours = encode(tiny.processor(), [Conversation([picture], "and now?", [("first of all", "an answer")])])
    for name in ("input_ids", "attention_mask", "mm_token_type_ids", "pixel_values", "image_grid_thw"):
        assert torch.equal(ours[name], theirs[name].to(ours[name].dtype)), name


@pytest.mark.parametrize("fast", [False, True], ids=["eager", "recorded"])
def test_ask_reads_the_image_and_chooses_as_generate_does_from_its_patches(fast):
    """`ask` holds the image: textures and glance read it, and not what the patches say of it."""
    config = ARRCOCConfig(32, sight="glance", glance_dim=32, trained=True, encoding="sparse")
    ours = ARRCOCQwen(tiny.stock(), config, processor=tiny.processor(), fast=fast).eval()
    for images in ([tiny.picture(200, 150, 4)], [tiny.picture(96, 96, 1), tiny.picture(331, 127, 2)]):
        held = ours.encode_question(images, "what is this?")
        cut = {name: value for name, value in held.items() if name != "original_image"}
        stock = tiny.stock_inputs(tiny.inputs(Conversation(images, "what is this?")))
        for name in ("input_ids", "pixel_values", "image_grid_thw"):
            assert torch.equal(held[name], stock[name]), "resized as the processor does it"
        for keep in (0.3, 5, "auto"):
            answer = ours.ask(images, "what is this?", keep=keep, max_new_tokens=5, do_sample=False)
            new = ours.generate(**cut, keep=keep, max_new_tokens=5, do_sample=False)[0, held["input_ids"].shape[1] :]
            assert answer.text == ours.processor.tokenizer.decode(new, skip_special_tokens=True)
            for one, other in zip(answer.selection, ours.prepare(**cut, keep=keep).images[0], strict=True):
                assert torch.equal(one.kept, other.kept)
                assert torch.allclose(one.relevance, other.relevance, atol=1e-5)
    assert ours.fast_runner is not None or not fast


def test_a_processor_that_resizes_by_other_means_is_left_to_it():
    class Own:
        image_processor = object()

    assert fit_images(Own(), [tiny.picture()]) is None
