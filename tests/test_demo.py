"""What the demo does, without a browser: every tab's functions, the models behind them, and the messages."""

import contextlib
import io
import itertools
import math
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import av
import pytest
import tiny
import torch
from attacks import images as hostile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from arr_coc.cli.run import run
from arr_coc.demo import microscope
from arr_coc.demo import scenes as worlds
from arr_coc.demo.ask import ask, opening
from arr_coc.demo.compare import OURS, PLAIN, WAYS, compare
from arr_coc.demo.inputs import (
    OWN,
    Inquiry,
    budget_line,
    check_question,
    count_tokens,
    dialled,
    read_upload,
    shown,
)
from arr_coc.demo.models import Models, choosable_selectors, labels
from arr_coc.demo.telling import Known, about, figures, note, notices, short_message
from arr_coc.gateway import is_loopback
from arr_coc.qwen import ARRCOCQwen
from arr_coc.qwen.clips import ClipForm
from arr_coc.viewing import homunculus, texture_sheet

HAND = "What colour is the hand?"


@pytest.fixture(scope="module")
def models():
    return Models(["mini"])


@pytest.fixture(scope="module")
def scene():
    return worlds.picture_of(worlds.scene_of(529, worlds.ANY))


def fake_models(sources, **settings):
    stock = tiny.stock()
    loads = []

    def load(source):
        loads.append(source)
        return ARRCOCQwen(stock, processor=tiny.processor()).eval()

    return Models(sources, load=load, **settings), loads


# ---------------------------------------------------------------- Ask


STILL, MOVING = ([one for one in worlds.examples() if (one.clip is None) == still] for still in (True, False))


@pytest.mark.parametrize("number", range(9))
def test_every_example_is_answered_rightly(models, number):
    assert len(STILL) == 9
    example = STILL[number]
    *_, told = ask(models, "mini", Inquiry(example.picture, example.question, "auto"))
    assert told.answer == example.known.answer
    assert told.overlay.size == told.heat.size == example.picture.size
    assert "✓ right" in told.figures
    held, cells = re.search(r"<b>(\d+) of (\d+)</b> evidence cells kept", told.figures).groups()
    assert held == cells
    assert "relevance for the question" in told.legend
    assert told.notices == ""
    assert "visual tokens" in told.stats


@pytest.fixture(scope="module")
def played(models):
    """The example that moves, as it is uploaded."""
    (example,) = MOVING
    assert example.clip.stat().st_size < 60_000
    return Inquiry.of(str(example.clip), example.question, OWN, partial(models.fit, "mini"))


def test_a_clip_is_answered_with_a_player_and_its_moments(models, played):
    *_, told = ask(models, "mini", played)
    assert told.answer == MOVING[0].known.answer
    assert "✓ right" in told.figures
    assert "evidence" not in told.figures
    assert (told.overlay, told.heat) == (None, None)
    assert told.moments.width > 600
    with av.open(io.BytesIO(told.player)) as container:
        assert len(list(container.decode(video=0))) >= 2 * len(played.image.seconds)
    assert "of 256 visual tokens: of 4 moments (pairs of frames), 4 keep some" in told.stats
    assert "relevance for the question" not in told.legend
    assert "kept for relevance" in told.legend


def test_without_pyav_a_gif_is_answered_without_a_player(models, played, monkeypatch):
    monkeypatch.setattr("arr_coc.demo.ask.find_spec", lambda name: None)
    *_, told = ask(models, "mini", played)
    assert told.player is None
    assert told.moments.width > 600


def test_a_clip_is_looked_at_within_limits(models, tmp_path, monkeypatch):
    """Of a long one 32 frames, of a large one so many pixels as 32 of 512 x 512 have."""
    frames = [Image.new("RGB", (640, 640), (n, 99, 0)) for n in range(80)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=500)
    clip = read_upload(str(tmp_path / "a.gif"), partial(models.fit, "mini"))
    assert len(clip.seconds) == 32
    assert clip.frames_T3hw[:, 0].numel() <= 2**23
    with models.use("mini") as owner:
        answer = owner.choose(clip, "what?", keep=0.1)
        assert count_tokens(owner.processor, clip) == sum(one.tokens_total for one in answer)
        sees_more = replace(ClipForm.of(owner.processor), most=2**30)
    monkeypatch.setattr(ClipForm, "of", lambda _: sees_more)
    assert 32 * math.prod(models.fit("mini")(32, 4096, 4096)) <= 2**23  # on the page


def test_a_clip_is_compared_and_the_microscope_says_that_it_looks_at_images(models, played):
    done = compare(models, ["mini"], [PLAIN, OURS], played)
    assert done.slider is None
    assert [picture.width > 600 for picture, _ in done.kept] == [True, True]
    kept = [int(one) for one in re.findall(r"(\d+) of 256 visual tokens", done.cards)]
    assert kept[0] == 256
    assert kept[1] < 100
    with pytest.raises(ValueError, match="click Ask"):
        microscope.look(models, "mini", played)


@pytest.fixture(scope="module")
def opened(models):
    return opening(models)


def test_the_page_opens_with_an_answer_beside_the_plain_models(models, opened):
    """Of the figures, the tokens are counted and the times measured here; the same question later has them again."""
    assert opened.told.answer == opened.plain.text == opened.example.known.answer
    assert opened.total == opened.plain.tokens_kept == 256
    kept = int(re.search(r"(\d+) visual tokens</td>", opened.told.figures)[1])
    assert kept < 256
    assert "✓ right" in opened.told.figures
    assert ">256 visual tokens" in opened.told.figures
    assert re.search(r"<b>[\d.]+ times</b> as (fast|slow)", opened.told.figures)
    asked = Inquiry(opened.example.picture, opened.example.question, "auto")
    assert opened.plain_of(asked) is opened.plain
    assert opened.plain_of(Inquiry(asked.image, HAND, "auto")) is None
    assert opened.plain_of(Inquiry(asked.image.transpose(0), asked.question, "auto")) is None
    *_, again = ask(models, "mini", asked)
    assert "see Compare" in again.figures
    *_, again = ask(models, "mini", asked, opened.plain)
    assert f"{sum(ms for part, ms in opened.plain.timings_ms.items() if part != 'prefill'):,.0f} ms" in again.figures


def test_the_dial_of_the_page_is_the_models_own(models, monkeypatch, opened):
    assert models.keep("mini") == "auto"
    assert ">64 visual tokens" not in opened.told.figures
    with models.use("mini") as owner:
        monkeypatch.setattr(owner, "keep", 0.25)
    assert models.keep("mini") == 0.25
    assert ">64 visual tokens" in opening(models).told.figures
    assert Inquiry.of(str(worlds.ASSETS / "sample.png"), HAND, OWN).keep is None


def test_a_wrong_answer_is_called_wrong(models, scene):
    with models.use("mini") as owner:
        answer = owner.ask(scene, HAND)
    assert "✗ wrong: it is &lt;b&gt;" in figures(answer, Known("<b>", ()))
    assert "nothing in it is evidence" in figures(answer, Known("Green", ()))
    assert "right" not in figures(answer)
    missed = figures(answer, Known("green", ((0.5, 0.5, 0.6, 0.6),)))
    assert re.search(r"<b>[01] of 4</b> evidence cells kept", missed)


def test_what_the_model_is_and_knows(models, monkeypatch):
    with models.use("mini") as owner:
        assert about("a<b", owner).startswith(
            "<b>a&lt;b</b> answers here, a Qwen3-VL of 16 million parameters on the CPU"
        )
        assert "no photographs" in about("mini", owner)
        monkeypatch.setattr("arr_coc.demo.telling.is_mini", lambda _: False)
        assert "photographs" not in about("a/one", owner)


def test_the_answer_comes_in_pieces_and_is_the_models_own(models, scene):
    asked = Inquiry(scene, "Name all the things and their colours.", "auto")
    steps = list(ask(models, "mini", asked))
    assert len(steps) > 3
    assert all(later.answer.startswith(earlier.answer) for earlier, later in itertools.pairwise(steps))
    with models.use("mini") as owner:
        assert steps[-1].answer == owner.ask(scene, asked.question, keep="auto").text


def test_without_arr_coc_everything_is_kept_and_the_map_is_the_answers_attention(models, scene):
    *_, told = ask(models, "mini", Inquiry(scene, HAND, 1.0))
    assert told.answer == "green"
    assert told.stats.startswith("**256** of 256")
    assert told.figures.count("256 visual tokens") == told.figures.count("Plain model") == 1
    assert told.overlay.tobytes() == scene.tobytes()
    assert told.heat.size == scene.size
    assert "what the answer looked at" in told.legend


def test_leaving_early_ends_the_answer_and_frees_the_model(models, scene):
    steps = ask(models, "mini", Inquiry(scene, "Name all the things and their colours.", "auto"))
    next(steps)
    steps.close()
    free = threading.Event()

    def use() -> None:
        with models.use("mini"):
            free.set()

    threading.Thread(target=use, daemon=True).start()
    assert free.wait(20)


def test_words_outside_the_world_are_named(models, scene):
    *_, told = ask(models, "mini", Inquiry(scene, "Which automobile is parked here?", "auto"))
    assert "not the words: automobile, parked" in told.notices


def test_what_is_to_be_known_is_told_once_and_as_text(models, scene):
    """What the model told, what came with the answer, and the words; whoever wrote them, none of it is markup."""
    photograph = "this looks like a photograph; mini knows drawings"
    with models.use("mini") as owner:
        answer = replace(owner.ask(scene, HAND), notices=(photograph, "<i>", photograph))
        told = notices(owner, answer)
    assert told.count("<p ") == 2
    assert told.index(photograph) < told.index("&lt;i&gt;.")
    assert note("a < b", "trouble") == '<p class="trouble" role="alert">a &lt; b</p>'


def test_the_attention_of_a_long_question_is_not_drawn(models, scene, monkeypatch):
    """Its cost is the square of all tokens, those of the text too."""
    monkeypatch.setattr("arr_coc.demo.ask.MOST_ATTENDED", 265)
    *_, told = ask(models, "mini", Inquiry(scene, HAND, 1.0))
    assert told.heat is not None
    *_, told = ask(models, "mini", Inquiry(scene, f"{HAND} {HAND}", 1.0))
    assert told.heat is None


# ---------------------------------------------------------------- what comes in


def test_the_dial():
    assert dialled(OWN) is None
    assert dialled(25) == 0.25
    assert dialled(100) == 1.0
    for wrong in (-1, 0.5, 101, None, float("nan"), "auto"):
        with pytest.raises(ValueError, match="the dial is 0 for the model's own, or 1 to 100 percent"):
            dialled(wrong)


@pytest.mark.parametrize("question", [None, "", "  \n", "x" * 2001])
def test_questions_that_are_none(question):
    with pytest.raises(ValueError, match="question"):
        check_question(question)


def test_no_image_says_what_to_do():
    with pytest.raises(ValueError, match="upload one"):
        read_upload(None)


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 1500), st.integers(20, 1500))
def test_the_live_count_is_what_the_processor_makes(width, height):
    processor, image = tiny.processor(), Image.new("RGB", (width, height))
    grid = processor.image_processor(images=[image], return_tensors="pt")["image_grid_thw"]
    assert count_tokens(processor, image) == int(grid.prod()) // 4


def test_the_live_count_in_words():
    assert budget_line(256, 0.25) == "**25 %**: 64 of 256 visual tokens"
    assert budget_line(256, "auto") == "**auto**: the question decides, of 256 visual tokens"
    assert budget_line(256, 1.0) == "**100 %**: the plain model, all 256 visual tokens"
    assert budget_line(0, 0.5) == "no image yet"


@given(st.integers(1, 5000), st.integers(1, 60))
def test_pictures_fit_the_page(long, short):
    for size in ((long, short), (short, long)):
        assert 1 <= min(shown(Image.new("L", size)).size) <= max(shown(Image.new("L", size)).size) <= 1024


# ---------------------------------------------------------------- hostile images


def put_to_the_demo(models: Models, path: Path) -> str:
    """What the page shows of a question about this file: the answer, or the message. As the Ask tab does it."""
    try:
        *_, told = ask(models, models.names[0], Inquiry.of(str(path), "what is this?", 50))
    except Exception as error:
        return f"refused {short_message(error)}"
    assert max(told.overlay.size) <= 1024
    return f"taken {told.answer}"


def check_hostile(folder: Path, seeds: Sequence[int]) -> None:
    """Each is answered or refused in our own words, and the next good answer is the one of before."""
    models, _ = fake_models(["a/one"])
    tiny.picture().save(folder / "good.png")
    good = put_to_the_demo(models, folder / "good.png")
    assert good.startswith("taken ")
    for file in (hostile.make(kind, seed) for kind in hostile.KINDS for seed in seeds):
        (folder / file.name).write_bytes(file.data)
        became = put_to_the_demo(models, folder / file.name)
        assert file.verdict in (hostile.EITHER, became.split()[0]), became
        if became.startswith("refused"):
            assert became.startswith(f"refused {file.name}: ")
            assert not re.search(r"\b0x[0-9a-f]{4}|Traceback|/|\n", became)
        assert put_to_the_demo(models, folder / "good.png") == good, file.name


@pytest.fixture
def short_answers(monkeypatch):
    """A random model never ends by itself."""
    monkeypatch.setattr("arr_coc.demo.ask.MOST_NEW_TOKENS", 3)


@pytest.mark.usefixtures("short_answers")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_images(tmp_path):
    check_hostile(tmp_path, (0, 7, 14, 19))


@pytest.mark.soak
@pytest.mark.usefixtures("short_answers")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_hostile_images(tmp_path):
    check_hostile(tmp_path, range(hostile.SEEDS))


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "error",
    [
        ValueError("cannot open <_io.BytesIO object at 0x7f00aa12cd30>"),
        ValueError("no file /home/somebody/secret.png"),
        ValueError('File "x.py", line 3'),
        ValueError("one line\nand another"),
        ValueError("x" * 1000),
        ValueError(""),
        RuntimeError("anything"),
        KeyError("token"),
    ],
    ids=str,
)
def test_what_is_not_ours_to_say_becomes_a_number(error):
    message = short_message(error)
    assert message.startswith("something went wrong here")
    assert "home" not in message
    assert "0x" not in message


def test_our_own_messages_stay():
    assert short_message(ValueError("photo.png: 9x9 is too small")) == "photo.png: 9x9 is too small"
    assert "smaller image" in short_message(torch.OutOfMemoryError("CUDA out of memory at 0x7f"))


# ---------------------------------------------------------------- models


def test_at_most_two_models_are_loaded_and_the_least_recently_used_goes():
    models, loads = fake_models(["a/one", "b/two", "c/three"])
    for name in ("a/one", "b/two", "a/one", "c/three", "a/one", "b/two"):
        with models.use(name):
            assert len(models.loaded()) <= 2
    assert loads == ["a/one", "b/two", "c/three", "b/two"]
    assert list(models.loaded()) == ["a/one", "b/two"]
    assert "at most 2" in models.memory()


def test_only_named_models_and_listed_ways_can_be_used():
    models, loads = fake_models(["a/one"])
    for name, selector in (
        ("b/two", "auto"),
        ("/etc", "auto"),
        ("a/one", "oracle"),
        ("a/one", "rival"),
        ("a/one", "x"),
    ):
        with pytest.raises(ValueError, match="list"), models.use(name, selector):
            pass
    assert loads == []


def test_ways_to_choose_share_the_weights():
    models, _ = fake_models(["a/one"])
    with models.use("a/one") as owner:
        pass
    with models.use("a/one", "random") as other:
        assert other.model is owner.model
        assert other.selector.name == "random"
    with models.use("a/one", "random") as again:
        assert again is other


def test_one_question_at_a_time():
    """Each stays until the next has come, or until it is clear that it cannot come in."""
    models, _ = fake_models(["a/one"])
    inside, most = [], []

    def use() -> None:
        with models.use("a/one"):
            inside.append(1)
            time.sleep(0.01)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_names_show_no_folders(tmp_path):
    (tmp_path / "a" / "run").mkdir(parents=True)
    (tmp_path / "b" / "run").mkdir(parents=True)
    assert labels(["mini", str(tmp_path / "a" / "run"), "Qwen/Qwen3-VL-2B-Instruct"]) == [
        *("mini", "run", "Qwen/Qwen3-VL-2B-Instruct")
    ]
    assert labels([str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]) == ["run 1", "run 2"]
    with pytest.raises(ValueError, match="twice"):
        labels(["mini", "mini"])


# ---------------------------------------------------------------- Compare


def test_a_comparison_gives_all_ways_the_same_budget(models, scene):
    done = compare(models, ["mini"], [PLAIN, OURS, "even grid", "random"], Inquiry(scene, HAND, "auto"))
    with models.use("mini") as owner:
        budget = owner.ask(scene, HAND, keep="auto").tokens_kept
    assert done.cards.count('class="card"') == done.cards.count('class="mark ') == 4
    assert done.cards.count(f">{budget} of 256 visual tokens") == 3
    assert done.cards.count(">256 of 256 visual tokens") == 1
    assert [label.split(":")[0] for _, label in done.kept] == [PLAIN, OURS, "even grid", "random"]
    before, after = done.slider
    assert before.size == after.size == scene.size
    assert done.bars.width > 200


def test_a_plain_answer_alone_has_no_slider(models, scene):
    assert compare(models, ["mini"], [PLAIN], Inquiry(scene, HAND, 0.5)).slider is None


@pytest.mark.parametrize("chosen", [[], list(WAYS[:5]), ["oracle"], ["<b>"]])
def test_comparisons_that_are_none(models, scene, chosen):
    with pytest.raises(ValueError, match=r"choose 1 to 4|unknown"):
        compare(models, ["mini"], chosen, Inquiry(scene, HAND, 0.5))


def test_every_way_on_the_list_answers(scene):
    """On a tiny random model: what it says does not matter, that it says it does."""
    models, _ = fake_models(["a/one"])
    small = scene.resize((160, 128))
    for start in range(0, len(WAYS), 4):
        done = compare(models, ["a/one"], WAYS[start : start + 4], Inquiry(small, "what?", 0.4))
        assert done.cards.count(" of 20 visual tokens") == len(WAYS[start : start + 4])
    assert {"oracle", "rival", "arr_coc"}.isdisjoint(choosable_selectors())


def test_a_way_that_runs_out_of_memory_is_told_in_our_words(scene, monkeypatch):
    def short(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory at 0x7f00")

    models, _ = fake_models(["a/one"])
    monkeypatch.setattr(ARRCOCQwen, "ask", short)
    with pytest.raises(MemoryError) as told:
        compare(models, ["a/one"], [PLAIN, OURS], Inquiry(scene.resize((96, 96)), "what?", 0.5))
    assert short_message(told.value) == "out of memory: give a smaller image or a shorter clip, or keep fewer tokens"


def test_two_checkpoints_side_by_side(scene):
    models, _ = fake_models(["a/one", "b/two"])
    done = compare(models, ["a/one", "b/two"], [PLAIN, OURS], Inquiry(scene.resize((96, 96)), "what?", 0.5))
    assert [label.split(":")[0] for _, label in done.kept] == [
        *("plain, a/one", "ARR-COC, a/one", "plain, b/two", "ARR-COC, b/two")
    ]


# ---------------------------------------------------------------- Microscope


@pytest.fixture(scope="module")
def looked(models, scene):
    return microscope.look(models, "mini", Inquiry(scene, HAND, "auto"))


def test_a_look_shows_the_maps_and_the_numbers(looked, scene):
    assert [label.split(",")[0] for _, label in microscope.maps_pictures(looked)] == [
        *("information", "perspectival", "participatory", "relevance")
    ]
    assert microscope.kept_picture(looked).size == scene.size
    assert homunculus(looked.picture, looked.choice.relevance).size == scene.size
    assert min(texture_sheet(looked.picture, cell=looked.cell).size) > 200
    told = microscope.balance(looked)
    assert f"**{looked.choice.tokens_kept}** of 256 cells kept" in told
    assert told.count("exponent of the") == 3
    assert "explore" in told


def test_a_session_remembers_no_large_image(models, scene):
    looked = microscope.look(models, "mini", Inquiry(scene.resize((2048, 1536)), HAND, 0.1))
    light = microscope.to_remember(looked)
    assert max(*light.asked.image.size, *light.picture.size) <= 1024
    assert microscope.cell_numbers(light, 0) == microscope.cell_numbers(looked, 0)


def test_every_point_of_the_picture_is_in_its_cell(looked):
    for point, cell in (
        ((0, 0), 0),
        ((511, 0), 15),
        ((0, 511), 240),
        ((511, 511), 255),
        ((33, 31), 1),
        ((600, -5), 15),
    ):
        assert microscope.cell_at(looked, *point) == cell


def test_a_cell_tells_why(looked):
    relevance_N, kept_N = looked.choice.relevance.flatten(), looked.choice.mask.flatten()
    best, dropped = int(relevance_N.argmax()), int((~kept_N).nonzero()[0])
    assert "**kept: rank " in microscope.cell_numbers(looked, best)
    assert f"| relevance | {float(relevance_N[best]):.3f} |" in microscope.cell_numbers(looked, best)
    assert "**dropped: " in microscope.cell_numbers(looked, dropped)
    assert microscope.cell_picture(looked, 0).getpixel((0, 0)) != microscope.kept_picture(looked).getpixel((0, 0))


def test_a_second_question_looks_elsewhere(models, looked):
    picture, line = microscope.second_question(models, "mini", looked, "Which word is blue?")
    assert "In common:" in line
    assert min(picture.size) > 200
    _, same = microscope.second_question(models, "mini", looked, HAND)
    assert "100 %" in same


def test_nothing_to_see_where_everything_is_kept(models, scene):
    with pytest.raises(ValueError, match="below 100 percent"):
        microscope.look(models, "mini", Inquiry(scene, HAND, 1.0))


# ---------------------------------------------------------------- Scenes


def test_a_scene_is_held_against_its_evidence(models):
    scene = worlds.scene_of(529, worlds.ANY)
    done = worlds.check(models, "mini", scene, HAND, "auto")
    assert '<p class="said">green</p>' in done.figures
    assert "✓ right" in done.figures
    assert "<b>6 of 6</b> evidence cells kept" in done.figures
    assert done.picture.size == (512, 512)


def test_a_family_asks_only_its_own():
    for family in worlds.FAMILY_CHOICES[1:]:
        assert {question.family for question in worlds.scene_of(3, family).questions} == {family}


@pytest.mark.parametrize(("seed", "family"), [(-1, "any"), (1.5, "any"), (None, "any"), (10**9, "any"), (1, "other")])
def test_scenes_that_are_none(seed, family):
    with pytest.raises(ValueError, match=r"seed|family"):
        worlds.scene_of(seed, family)


def test_a_question_of_another_scene_is_refused(models):
    with pytest.raises(ValueError, match="scene's questions"):
        worlds.check(models, "mini", worlds.scene_of(1, worlds.ANY), "Which password?", "auto")


# ---------------------------------------------------------------- the command


def test_a_port_in_use_is_one_line(capsys):
    import socket

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        assert run(["demo", "--port", str(taken.getsockname()[1])]) == 3
    err = capsys.readouterr().err
    assert "give another with --port" in err
    assert err.count("\n") == 1


def test_without_gradio_one_line_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr("arr_coc.cli.serve.find_spec", lambda name: None)
    assert run(["demo"]) == 3
    assert capsys.readouterr().err == "arr-coc: the demo needs Gradio: pip install 'arr-coc[demo]'\n"


def test_another_host_needs_a_password(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("arr_coc.demo.serving.serve", lambda *_, **settings: asked.append(settings["password"]))
    away = ["demo", "--host", "0.0.0.0", "--port", "47861"]
    monkeypatch.delenv("ARR_COC_DEMO_PASSWORD", raising=False)
    assert run(away) == 3
    assert "set a password in ARR_COC_DEMO_PASSWORD" in capsys.readouterr().err
    monkeypatch.setenv("ARR_COC_DEMO_PASSWORD", "short")
    assert run(away) == 3
    assert "12 or more" in capsys.readouterr().err
    monkeypatch.setenv("ARR_COC_DEMO_PASSWORD", "long enough, this")
    assert run(away) == 0
    assert asked == ["long enough, this"]
    monkeypatch.delenv("ARR_COC_DEMO_PASSWORD")
    capsys.readouterr()
    assert run(["demo", "--port", "47861"]) == 0
    err = capsys.readouterr().err
    assert "warning" not in err
    assert "http://127.0.0.1:47861" in err
    assert run(["demo", "--port", "47861", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["demo", "--model", "nothing"], 4, "give mini"),
        (["demo", "--host", "no.such.host.invalid"], 3, "no such address"),
        (["demo", "--port", "0"], 2, "port"),
        (["demo", "--model", "mini", "--model", "mini"], 3, "twice"),
    ],
)
def test_misuse_of_the_command(arguments, code, says, capfd):
    assert run(arguments if "--port" in arguments else [*arguments, "--port", "47860"]) == code
    written = "".join(capfd.readouterr())
    assert says in written
    assert "Traceback" not in written


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.1", "example.org")] == [
        *(True, True, True, False, False, False)
    ]
