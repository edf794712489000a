"""The demo in a real browser, as a person uses it. Not collected where there is no Chromium."""

import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from browser import chromium
from demo_server import serving
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright
from test_clips_in import drawn, video

from arr_coc.demo import scenes as worlds
from arr_coc.demo.ask import Told
from arr_coc.demo.models import Models
from arr_coc.qwen import ARRCOCQwen

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 850}
HAND, WORD = "What colour is the hand?", "Which word is blue?"
PHOTOGRAPH = "this looks like a photograph; mini knows drawings"
WAIT = 30_000  # ms: a slow machine is no failure


@pytest.fixture(scope="module")
def url():
    with serving(Models(["mini"])) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, url):
    """Opens the page as another person would: a context of its own. At the end nothing must have gone wrong unseen."""
    contexts, wrong = [], []

    def open_page(viewport: dict[str, int] = WIDE, scheme: str = "light", before=lambda page: None) -> Page:
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda sent: wrong.append(sent.url) if is_outside(sent.url, url) else None)
        before(page)
        page.goto(url)
        expect(page.locator("#budget")).to_contain_text("of 256 visual tokens")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def is_outside(address: str, url: str) -> bool:
    return not address.startswith((url, "data:", "blob:"))


def answer(page: Page):
    return page.locator("#answer textarea")


def example(page: Page, question: str) -> None:
    page.locator("#examples button", has_text=question).click()


def turn(page: Page, percent: int) -> None:
    """The dial, to a percentage; 0 is auto."""
    page.locator("#dial input[type=range]").fill(str(percent))


def picture_shown(page: Page, name: str) -> tuple[int, int]:
    """Waits for a picture and gives its size in px, as it was sent."""
    image = page.locator(f"#{name} img").first
    image.wait_for()
    page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
    return tuple(image.evaluate("image => [image.naturalWidth, image.naturalHeight]"))


def toast(page: Page):
    return page.locator(".toast-body").first


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_first_screen_has_an_answer_beside_the_plain_models(visit):
    """Without a click, and without a question to the server: it was answered before anybody came."""
    joined = []
    page = visit(before=lambda page: page.on("request", lambda sent: joined.append(sent.url)))
    expect(answer(page)).to_have_value("November")
    for part in ("#about", "#examples", "#answer", "#figures", "#overlay img", "#heat img", "#dial"):
        expect(page.locator(part)).to_be_in_viewport()
    expect(page.locator("#about")).to_contain_text("mini answers here")
    expect(page.locator("#about")).to_contain_text("no photographs")
    figures = page.locator("#figures")
    expect(figures).to_contain_text("✓ right")
    expect(figures).to_contain_text(re.compile(r"(\d+) of \1 evidence cells kept"))
    for row, name in enumerate(("ARR-COC", "Plain model")):
        expect(figures.locator("tr").nth(row)).to_contain_text(re.compile(rf"{name}\d+ visual tokens[\d,]+ ms"))
    assert picture_shown(page, "overlay") == picture_shown(page, "heat") == (512, 512)
    sizes = [page.locator(f"#{name} img").bounding_box() for name in ("overlay", "heat")]
    assert [(round(box["width"]), round(box["height"])) for box in sizes] == [(round(sizes[0]["width"]),) * 2] * 2
    assert not [url for url in joined if "queue/join" in url]


def contrast(page: Page, selector: str) -> float:
    """Of the text of an element against what is painted behind it, as WCAG counts it."""
    colours = page.locator(selector).first.evaluate("""element => {
      let behind = element;
      while (behind && getComputedStyle(behind).backgroundColor.endsWith(", 0)")) behind = behind.parentElement;
      return [element, behind || document.body].map((one, n) => getComputedStyle(one)[n ? "backgroundColor" : "color"]);
    }""")
    lights = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
    return max(lights) / min(lights)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_is_said_can_be_read_by_day_and_by_night(visit, scheme):
    page = visit(NARROW, scheme)
    for part in ("#head h1", "#about", "#examples", "#image"):
        expect(page.locator(part)).to_be_in_viewport()
    said = ("#about .prose", "#figures .mark", "#figures td", "#legend span", "#stats p", "#answer textarea")
    for part in (*said, "#examples .caption-label", "#budget p"):
        assert contrast(page, part) >= 4.5, part


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_first_click_on_an_example_answers_rightly_and_shows_why(visit, viewport):
    page = visit(viewport)
    expect(page.locator("#examples button img")).to_have_count(10)
    example(page, WORD)
    expect(answer(page)).to_have_value("ZEVORE")
    assert picture_shown(page, "overlay") == picture_shown(page, "heat") == (512, 512)
    expect(page.locator("#figures")).to_contain_text("✓ right")
    expect(page.locator("#stats")).to_contain_text("visual tokens")
    expect(answer(page)).to_be_in_viewport()
    for tab in ("Compare", "Microscope", "Scenes", "Ask"):
        page.get_by_role("tab", name=tab).click()
        assert fits(page)


def test_one_dial_from_auto_to_the_plain_model(visit):
    page = visit()
    expect(page.locator("#budget")).to_contain_text("auto: the question decides")
    assert page.locator("#dial input:visible").count() == 1
    for percent, line, tokens, legend in (
        (50, "50 %: 128 of 256", "128 visual tokens", "relevance for the question"),
        (100, "100 %: the plain model, all 256", "256 visual tokens", "what the answer looked at"),
        (0, "auto: the question decides", re.compile(r"ARR-COC\d\d visual tokens"), "relevance for the question"),
    ):
        turn(page, percent)
        expect(page.locator("#budget")).to_contain_text(line)
        page.locator("#ask").click()
        expect(page.locator("#figures tr").first).to_contain_text(tokens)
        expect(page.locator("#legend")).to_contain_text(legend)
        expect(answer(page)).to_have_value("November")
    expect(page.locator("#figures tr").nth(1)).to_contain_text(re.compile(r"Plain model256 visual tokens[\d,]+ ms"))


@pytest.mark.parametrize("tab", ["Compare", "Microscope"])
def test_an_example_is_answered_where_it_can_be_seen(visit, tab):
    """Scenes hides the examples: nobody can click one there."""
    page = visit()
    page.get_by_role("tab", name="Scenes").click()
    expect(page.locator("#examples")).to_be_hidden()
    page.get_by_role("tab", name=tab).click()
    example(page, WORD)
    expect(page.get_by_role("tab", name="Ask")).to_have_attribute("aria-selected", "true")
    expect(answer(page)).to_be_visible()
    expect(answer(page)).to_have_value("ZEVORE")
    picture_shown(page, "overlay")


def test_enter_asks_and_clear_empties(visit):
    page = visit()
    example(page, HAND)
    expect(answer(page)).to_have_value("green")
    page.locator("#question textarea").fill("Which word is red?")
    page.locator("#question textarea").press("Enter")
    expect(answer(page)).to_have_value("KIZU")
    page.locator("#clear").click()
    expect(answer(page)).to_have_value("")
    expect(page.locator("#question textarea")).to_have_value("")
    expect(page.locator("#budget")).to_contain_text("no image yet")
    page.locator("#ask").click()
    for place in (toast(page), page.locator("#notices .trouble")):
        expect(place).to_contain_text("no image yet: upload one, or click an example")


def test_words_that_come_after_clear_do_not_stay(visit, monkeypatch):
    """Nobody ends the answer here: what would end it is held back, and it goes on after the page is empty."""
    cleared, said = threading.Event(), threading.Event()

    def talk(*_):
        yield Told("early")
        cleared.wait(WAIT / 1000)
        yield Told("late")
        said.set()

    monkeypatch.setattr("arr_coc.demo.ask.ask", talk)
    page = visit()
    page.route("**/cancel", lambda route: route.fulfill(json={"success": True}))
    page.get_by_role("tab", name="Compare").click()
    page.locator("#ask").click()
    expect(answer(page)).to_be_visible()  # its tab is there before it is over
    expect(answer(page)).to_have_value("early")
    page.locator("#clear").click()
    expect(page.locator("#budget")).to_contain_text("no image yet")
    expect(answer(page)).to_have_value("")
    cleared.set()
    assert said.wait(20)
    page.wait_for_timeout(1000)
    expect(answer(page)).to_have_value("", timeout=1)
    expect(page.locator("#figures")).to_be_hidden()
    page.locator("#ask").click()
    expect(page.locator("#notices .trouble")).to_contain_text("no image yet")


def test_compare(visit):
    page = visit()
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("even grid").check()
    page.locator("#compare").click()
    cards = page.locator("#cards .card")
    expect(cards).to_have_count(3)
    expect(cards.nth(0)).to_contain_text("256 of 256")
    kept = [re.search(r"(\d+) of 256", card)[1] for card in cards.all_text_contents()]
    assert kept[1] == kept[2] != kept[0]
    assert cards.nth(1).locator(".answer").text_content() == "November"
    expect(cards.nth(1)).to_contain_text("✓ right")
    assert picture_shown(page, "slider") == (512, 512)
    picture_shown(page, "bars")
    assert [picture_shown(page, f"kept-{number}") for number in range(3)] == [(512, 512)] * 3
    expect(page.locator("#memory")).to_contain_text("mini")


def test_a_fifth_way_cannot_be_ticked(visit):
    page = visit()
    page.get_by_role("tab", name="Compare").click()
    for way in ("even grid", "random"):
        expect(page.get_by_label(way)).to_be_enabled()
        page.get_by_label(way).check()
    for way in ("pooling", "fastv"):
        expect(page.get_by_label(way)).to_be_disabled()
        page.get_by_label(way).click(force=True)
    assert page.locator("#ways input:checked").count() == 4
    page.get_by_label("random").uncheck()
    expect(page.get_by_label("pooling")).to_be_enabled()


def click_cell(page, x, y):
    """At these shares of the picture's size, wherever it is by now: the page moves when numbers appear under it."""
    page.evaluate("document.querySelector('#cells').scrollIntoView({block: 'center'})")
    box = page.locator("#cells img").bounding_box()
    page.mouse.click(box["x"] + box["width"] * x, box["y"] + box["height"] * y)


def test_the_microscope_tells_of_the_cell_that_is_clicked(visit):
    page = visit()
    example(page, HAND)
    expect(answer(page)).to_have_value("green")
    page.get_by_role("tab", name="Microscope").click()
    page.locator("#look").click()
    assert picture_shown(page, "cells") == (512, 512)
    expect(page.locator("#balance")).to_contain_text("weight of the participatory map")
    assert min(picture_shown(page, "map-3")) > 200
    click_cell(page, 0.28, 0.93)  # the hand
    expect(page.locator("#numbers")).to_contain_text("Row 14, column 4")
    expect(page.locator("#numbers")).to_contain_text("kept: rank")
    click_cell(page, 0.97, 0.03)
    expect(page.locator("#numbers")).to_contain_text("Row 0, column 15")
    expect(page.locator("#numbers")).to_contain_text(re.compile("kept|dropped"))
    page.locator("#differ").click()
    picture_shown(page, "difference")
    expect(page.locator("#difference-line")).to_contain_text("In common")


def test_scenes_hold_the_choice_against_the_evidence(visit):
    page = visit()
    page.get_by_role("tab", name="Scenes").click()
    page.locator("#seed input").fill("529")
    page.locator("#draw").click()
    page.get_by_label(HAND).check()
    page.locator("#scene-ask").click()
    expect(page.locator("#verdict")).to_contain_text("green✓ right6 of 6 evidence cells kept")
    assert picture_shown(page, "evidence") == (512, 512)


def test_stop_ends_the_answer(visit, monkeypatch):
    """A model that would talk for a minute: what it said so far stays, and it is really stopped."""
    ended = threading.Event()

    def talk(*_):
        try:
            for number in range(600):
                yield Told(f"word {number}")
                time.sleep(0.1)
        finally:
            ended.set()

    monkeypatch.setattr("arr_coc.demo.ask.ask", talk)
    page = visit()
    page.locator("#ask").click()
    expect(answer(page)).to_have_value(re.compile("word [2-9]"))
    page.locator("#stop").click()
    assert ended.wait(20)
    expect(answer(page)).to_have_value(re.compile("word"))
    expect(page.locator("#figures")).to_have_text("stopped")
    monkeypatch.undo()
    page.locator("#ask").click()
    expect(answer(page)).to_have_value("November")
    expect(page.locator("#figures")).to_contain_text("visual tokens")
    page.locator("#stop").click()  # too late: nothing to stop, nothing to say
    page.wait_for_timeout(500)
    expect(page.locator("#figures")).to_contain_text("visual tokens")


def test_an_answer_that_fails_does_not_seem_to_go_on(visit, monkeypatch):
    def fail(*_):
        yield Told("one word")
        raise ValueError("that was all")

    monkeypatch.setattr("arr_coc.demo.ask.ask", fail)
    page = visit()
    page.locator("#ask").click()
    expect(toast(page)).to_contain_text("that was all")
    expect(page.locator("#notices .trouble")).to_contain_text("no answer: that was all")
    expect(page.locator("#figures")).to_be_hidden()


def upload(page: Page, path: Path) -> None:
    page.locator("#image").get_by_label("Remove Image").click()
    expect(page.locator("#budget")).to_contain_text("no image yet")
    page.locator("#image input[type=file]").set_input_files(path)


def test_the_notice_about_a_photograph_stands_above_the_answer(visit, monkeypatch):
    """Wherever it comes from, what is to be known of an answer is read before it; the next answer is without it."""
    first = re.compile("photograph")
    asked = ARRCOCQwen.ask
    monkeypatch.setattr(ARRCOCQwen, "ask", lambda *a, **k: replace(asked(*a, **k), notices=(PHOTOGRAPH,)))
    page = visit(NARROW)
    expect(page.locator("#notices")).to_be_hidden()
    page.locator("#ask").click()
    notice = page.locator("#notices .notice")
    expect(notice).to_have_text(first)
    expect(notice).to_be_in_viewport()
    gap = page.evaluate("""() => {  // both at once: the page may still be moving
      const [above, below] = ["#notices .notice", "#answer"].map(name => document.querySelector(name));
      return below.getBoundingClientRect().top - above.getBoundingClientRect().bottom;
    }""")
    assert 0 <= gap <= 40
    assert contrast(page, "#notices .notice") >= 4.5
    monkeypatch.undo()
    page.locator("#ask").click()
    expect(page.locator("#figures tr")).to_have_count(2)
    expect(page.locator("#notices")).to_be_hidden()


def test_an_upload_is_asked_about(visit, tmp_path):
    scene = worlds.scene_of(1, "odd_one_out")
    worlds.picture_of(scene).convert("RGBA").save(tmp_path / "mine.webp", lossless=True)
    page = visit()
    upload(page, tmp_path / "mine.webp")
    expect(page.locator("#budget")).to_contain_text("256 visual tokens")
    expect(answer(page)).to_have_value("")  # what belonged to the last image is gone
    expect(page.locator("#figures")).to_be_hidden()
    expect(page.locator("#overlay img, #heat img, #examples .selected")).to_have_count(0)
    page.locator("#question textarea").fill(scene.questions[0].text)
    page.locator("#ask").click()
    expect(answer(page)).to_have_value(scene.questions[0].answer)


def test_a_broken_upload_gets_one_short_line_and_leaves_nothing_of_the_last_image(visit, tmp_path):
    broken = tmp_path / "broken.png"
    Image.effect_noise((400, 400), 90).save(broken)
    broken.write_bytes(broken.read_bytes()[:4000])
    page = visit()
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare").click()
    expect(page.locator("#cards .card")).to_have_count(2)
    upload(page, broken)
    trouble = page.locator("#trouble .trouble")
    expect(trouble).to_contain_text("broken.png: the image is damaged")
    assert not re.search(r"Traceback|0x[0-9a-f]{4}|/tmp|/home", trouble.text_content())
    image, said, question = (page.locator(name).bounding_box() for name in ("#image", "#trouble", "#question"))
    assert image["y"] + image["height"] <= said["y"] <= said["y"] + said["height"] <= question["y"]
    expect(page.locator("#budget")).to_contain_text("no image yet")
    expect(page.locator("#cards .card, #slider img, #image img")).to_have_count(0)
    page.get_by_role("tab", name="Ask").click()
    expect(answer(page)).to_have_value("")
    expect(page.locator("#figures")).to_be_hidden()
    expect(page.locator("#overlay img, #heat img")).to_have_count(0)
    example(page, HAND)
    expect(answer(page)).to_have_value("green")
    expect(page.locator("#trouble")).to_be_hidden()


def upload_video(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#video").click()
    chooser.value.set_files(path)


def plays(page: Page, name: str) -> tuple[int, int]:
    """Waits until a player plays, and gives the size of its pictures."""
    video = page.locator(f"#{name} video")
    video.wait_for()
    page.wait_for_function("video => video.currentTime > 0.2 && !video.paused", arg=video.element_handle())
    return tuple(video.evaluate("video => [video.videoWidth, video.videoHeight]"))


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_example_that_moves_is_answered_and_played(visit, viewport):
    page = visit(viewport)
    example(page, "What goes up?")
    expect(answer(page)).to_have_value("square")
    assert plays(page, "player")[0] == 512
    assert picture_shown(page, "moments")[0] > 700
    for part in ("#overlay", "#heat"):
        expect(page.locator(part)).to_be_hidden()
    expect(page.locator("#figures")).to_contain_text("✓ right")
    assert fits(page)
    box = page.locator("#player video").bounding_box()
    assert box["height"] <= 481
    example(page, WORD)  # an image again: its pictures are back, and the player is gone
    expect(answer(page)).to_have_value("ZEVORE")
    assert picture_shown(page, "overlay") == picture_shown(page, "heat") == (512, 512)
    expect(page.locator("#player video, #moments img")).to_have_count(0)
    for part in ("#player", "#moments"):
        expect(page.locator(part)).to_be_hidden()


def test_a_video_is_uploaded_and_asked_about(visit, tmp_path):
    page = visit()
    upload_video(page, video(tmp_path / "mine.mp4", [frame for frame in drawn(8, 128, 96) for _ in range(5)]))
    expect(page.locator("#budget")).to_contain_text("of 48 visual tokens")
    assert plays(page, "clip") == (512, 384)
    expect(page.locator("#image")).to_have_count(0)
    expect(answer(page)).to_have_value("")  # what belonged to the last image is gone
    expect(page.locator("#overlay img, #heat img, #examples .selected")).to_have_count(0)
    turn(page, 50)
    page.locator("#ask").click()
    expect(page.locator("#figures tr").first).to_contain_text("24 visual tokens")
    plays(page, "player")
    page.get_by_role("tab", name="Microscope").click()
    page.locator("#look").click()
    expect(toast(page)).to_contain_text("click Ask, which shows every moment of a clip")
    page.get_by_role("tab", name="Compare").click()
    page.locator("#compare").click()
    expect(page.locator("#cards .card")).to_have_count(2)
    assert picture_shown(page, "kept-1")[0] > 400
    page.locator("#clear").click()
    expect(page.locator("#budget")).to_contain_text("no image yet")
    expect(page.locator("#image")).to_be_visible()
    expect(page.locator("#clip video, #player video, #cards .card")).to_have_count(0)


def test_a_broken_video_is_one_line_in_place_and_leaves_nothing_of_the_last(visit, tmp_path):
    page = visit()
    example(page, "What goes up?")
    plays(page, "player")
    (tmp_path / "broken.mp4").write_bytes(b"this is no video")
    upload_video(page, tmp_path / "broken.mp4")
    expect(page.locator("#trouble .trouble")).to_contain_text("broken.mp4: not a video that can be read")
    expect(page.locator("#budget")).to_contain_text("no image yet")
    expect(answer(page)).to_have_value("")
    expect(page.locator("#image img, #clip video, #player video, #moments img")).to_have_count(0)
    page.locator("#ask").click()
    expect(page.locator("#notices .trouble")).to_contain_text("no image yet")
    example(page, HAND)
    expect(answer(page)).to_have_value("green")
    expect(page.locator("#trouble")).to_be_hidden()


def test_a_video_is_never_a_path_of_the_server(visit, tmp_path):
    """Whatever a browser says that its upload is called."""
    theirs = video(tmp_path / "theirs.mp4")
    page = visit()
    uploads = re.compile("/upload$")
    page.route(uploads, lambda route: route.fulfill(json=[str(theirs)]))
    upload_video(page, theirs)
    expect(answer(page)).to_have_value("")
    page.wait_for_timeout(2000)
    expect(page.locator("#clip video")).to_have_count(0)
    page.unroute(uploads)
    page.locator("#ask").click()
    expect(answer(page)).to_have_value("November")  # of the image that is still there


def test_two_people_at_once_see_their_own(visit):
    first, second = visit(), visit()
    for page in (first, second):
        page.get_by_role("tab", name="Microscope").click()
    example(first, WORD)
    example(second, "What does not belong here?")
    right = {one.question: one.known.answer for one in worlds.examples()}
    for page, question in ((first, WORD), (second, "What does not belong here?")):
        expect(page.get_by_role("tab", name="Ask")).to_have_attribute("aria-selected", "true")
        expect(answer(page)).to_have_value(right[question])
        expect(page.locator("#question textarea")).to_have_value(question)
    shown = {page.locator("#overlay img").get_attribute("src") for page in (first, second)}
    assert len(shown) == 2
    second.get_by_role("tab", name="Microscope").click()
    expect(second.locator("#cells img")).to_have_count(0)
