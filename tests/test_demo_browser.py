"""The demo in a real browser, as a person uses it. Not collected where there is no Chromium."""

import re
import threading
import time
from pathlib import Path

import pytest
from browser import chromium
from demo_server import serving
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from arr_coc.demo import scenes as worlds
from arr_coc.demo.ask import Told
from arr_coc.demo.models import Models

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 850}
HAND = "What colour is the hand?"
WAIT = 30_000  # ms: a slow machine is no failure


@pytest.fixture(scope="module")
def url():
    with serving(Models(["mini"])) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, url):
    """Opens the page as another person would: a context of its own. At the end nothing must have gone wrong unseen."""
    contexts, wrong = [], []

    def open_page(viewport: dict[str, int] = WIDE) -> Page:
        contexts.append(browser.new_context(viewport=viewport))
        page = contexts[-1].new_page()
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda sent: wrong.append(sent.url) if is_outside(sent.url, url) else None)
        page.goto(url)
        expect(page.locator("#budget")).to_contain_text("of 256 visual tokens", timeout=WAIT)
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
    page.get_by_role("button", name=question, exact=True).click()


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


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_first_click_on_an_example_answers_rightly_and_shows_why(visit, viewport):
    page = visit(viewport)
    example(page, "Which word is blue?")
    expect(answer(page)).to_have_value("ZEVORE", timeout=WAIT)
    assert picture_shown(page, "overlay") == (512, 512)
    assert min(picture_shown(page, "heat")) > 200
    expect(page.locator("#stats")).to_contain_text("visual tokens")
    expect(answer(page)).to_be_in_viewport()
    for tab in ("Compare", "Microscope", "Scenes", "Ask"):
        page.get_by_role("tab", name=tab).click()
        assert fits(page)


def test_the_toggle_and_the_dial(visit):
    page = visit()
    page.locator("#percent input[type=number]").fill("50")
    page.locator("#percent input[type=number]").press("Tab")
    expect(page.locator("#budget")).to_contain_text("128 of 256", timeout=WAIT)
    page.locator("#ask").click()
    expect(page.locator("#stats")).to_contain_text("128 of 256 visual tokens", timeout=WAIT)
    expect(answer(page)).to_have_value("green")
    page.get_by_label("Use ARR-COC").uncheck()
    expect(page.locator("#budget")).to_contain_text("256 of 256", timeout=WAIT)
    page.locator("#ask").click()
    expect(page.locator("#stats")).to_contain_text("256 of 256 visual tokens", timeout=WAIT)
    expect(answer(page)).to_have_value("green")
    expect(page.locator("#heat")).to_contain_text("Where the answer looked")
    page.get_by_label("Use ARR-COC").check()
    page.get_by_label("auto").first.check()
    expect(page.locator("#budget")).to_contain_text("the question decides", timeout=WAIT)
    page.locator("#ask").click()
    expect(page.locator("#heat")).to_contain_text("How relevant each cell is", timeout=WAIT)
    picture_shown(page, "heat")


@pytest.mark.parametrize("tab", ["Compare", "Microscope"])
def test_an_example_is_answered_where_it_can_be_seen(visit, tab):
    """Scenes hides the examples: nobody can click one there."""
    page = visit()
    page.get_by_role("tab", name="Scenes").click()
    expect(page.get_by_role("button", name=HAND, exact=True)).to_be_hidden()
    page.get_by_role("tab", name=tab).click()
    example(page, "Which word is blue?")
    expect(page.get_by_role("tab", name="Ask")).to_have_attribute("aria-selected", "true")
    expect(answer(page)).to_be_visible()
    expect(answer(page)).to_have_value("ZEVORE", timeout=WAIT)
    picture_shown(page, "overlay")


def test_enter_asks_and_clear_empties(visit):
    page = visit()
    page.locator("#question textarea").fill("Which word is red?")
    page.locator("#question textarea").press("Enter")
    expect(answer(page)).to_have_value("KIZU", timeout=WAIT)
    page.locator("#clear").click()
    expect(answer(page)).to_have_value("")
    expect(page.locator("#question textarea")).to_have_value("")
    expect(page.locator("#budget")).to_contain_text("no image yet", timeout=WAIT)
    page.locator("#ask").click()
    expect(toast(page)).to_contain_text("no image yet: upload one, or click an example", timeout=WAIT)


def test_compare(visit):
    page = visit()
    page.get_by_role("tab", name="Compare").click()
    page.get_by_label("even grid").check()
    page.locator("#compare").click()
    cards = page.locator("#cards .card")
    expect(cards).to_have_count(3, timeout=WAIT)
    expect(cards.nth(0)).to_contain_text("256 of 256")
    kept = [re.search(r"(\d+) of 256", card)[1] for card in cards.all_text_contents()]
    assert kept[1] == kept[2] != kept[0]
    assert cards.nth(1).locator(".answer").text_content() == "green"
    assert picture_shown(page, "slider") == (512, 512)
    picture_shown(page, "bars")
    assert [picture_shown(page, f"kept-{number}") for number in range(3)] == [(512, 512)] * 3
    expect(page.locator("#memory")).to_contain_text("mini")
    for way in ("random", "pooling"):
        page.get_by_label(way).check()
    page.locator("#compare").click()
    expect(toast(page)).to_contain_text("choose 1 to 4", timeout=WAIT)


def click_cell(page, x, y):
    """At these shares of the picture's size, wherever it is by now: the page moves when numbers appear under it."""
    page.evaluate("document.querySelector('#cells').scrollIntoView({block: 'center'})")
    box = page.locator("#cells img").bounding_box()
    page.mouse.click(box["x"] + box["width"] * x, box["y"] + box["height"] * y)


def test_the_microscope_tells_of_the_cell_that_is_clicked(visit):
    page = visit()
    page.get_by_role("tab", name="Microscope").click()
    page.locator("#look").click()
    assert picture_shown(page, "cells") == (512, 512)
    expect(page.locator("#balance")).to_contain_text("weight of the participatory map", timeout=WAIT)
    assert min(picture_shown(page, "map-3")) > 200
    click_cell(page, 0.28, 0.93)  # the hand
    expect(page.locator("#numbers")).to_contain_text("Row 14, column 4", timeout=WAIT)
    expect(page.locator("#numbers")).to_contain_text("kept: rank")
    click_cell(page, 0.97, 0.03)
    expect(page.locator("#numbers")).to_contain_text("Row 0, column 15", timeout=WAIT)
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
    expect(page.locator("#verdict")).to_contain_text("Right: green", timeout=WAIT)
    expect(page.locator("#verdict")).to_contain_text("evidence cells were kept")
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
    expect(answer(page)).to_have_value(re.compile("word [2-9]"), timeout=WAIT)
    page.locator("#stop").click()
    assert ended.wait(20)
    expect(answer(page)).to_have_value(re.compile("word"))
    expect(page.locator("#stats")).to_have_text("stopped")
    monkeypatch.undo()
    page.locator("#ask").click()
    expect(answer(page)).to_have_value("green", timeout=WAIT)
    expect(page.locator("#stats")).to_contain_text("visual tokens")
    page.locator("#stop").click()  # too late: nothing to stop, nothing to say
    page.wait_for_timeout(500)
    expect(page.locator("#stats")).to_contain_text("visual tokens")


def test_an_answer_that_fails_does_not_seem_to_go_on(visit, monkeypatch):
    def fail(*_):
        yield Told("one word")
        raise ValueError("that was all")

    monkeypatch.setattr("arr_coc.demo.ask.ask", fail)
    page = visit()
    page.locator("#ask").click()
    expect(toast(page)).to_contain_text("that was all", timeout=WAIT)
    expect(page.locator("#stats")).to_contain_text("no answer")


def upload(page: Page, path: Path) -> None:
    page.locator("#image").get_by_label("Remove Image").click()
    page.locator("#image input[type=file]").set_input_files(path)


def test_an_upload_is_asked_about(visit, tmp_path):
    scene = worlds.scene_of(1, "odd_one_out")
    worlds.picture_of(scene).convert("RGBA").save(tmp_path / "mine.webp", lossless=True)
    page = visit()
    upload(page, tmp_path / "mine.webp")
    page.locator("#question textarea").fill(scene.questions[0].text)
    page.locator("#ask").click()
    expect(answer(page)).to_have_value(scene.questions[0].answer, timeout=WAIT)


def test_a_broken_upload_gets_one_short_line(visit, tmp_path):
    broken = tmp_path / "broken.png"
    Image.effect_noise((400, 400), 90).save(broken)
    broken.write_bytes(broken.read_bytes()[:4000])
    page = visit()
    upload(page, broken)
    expect(toast(page)).to_contain_text("broken.png: the image is damaged", timeout=WAIT)
    assert not re.search(r"Traceback|0x[0-9a-f]{4}|/tmp|/home", page.content().split("</head>")[-1].split("toast")[-1])
    example(page, HAND)
    expect(answer(page)).to_have_value("green", timeout=WAIT)


def test_two_people_at_once_see_their_own(visit):
    first, second = visit(), visit()
    for page in (first, second):
        page.get_by_role("tab", name="Microscope").click()
    example(first, "Which word is blue?")
    example(second, "What does not belong here?")
    right = {question: told for _, question, told in worlds.example_rows()}
    for page, question in ((first, "Which word is blue?"), (second, "What does not belong here?")):
        expect(page.get_by_role("tab", name="Ask")).to_have_attribute("aria-selected", "true")
        expect(answer(page)).to_have_value(right[question], timeout=WAIT)
        expect(page.locator("#question textarea")).to_have_value(question)
    shown = {page.locator("#overlay img").get_attribute("src") for page in (first, second)}
    assert len(shown) == 2
    second.get_by_role("tab", name="Microscope").click()
    expect(second.locator("#cells img")).to_have_count(0)
