"""Pictures of the page as people meet it, light and dark, on a desk and on a phone: docs/pictures/page/.

    python -m studies.page_pictures             # needs Chromium; ARR_COC_CHROMIUM names another one

The moments below are acted one after the other, and each is taken from the top of the page, as far as a few screens.
"""

import argparse
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from arr_coc.demo.models import Models
from arr_coc.demo.serving import serve

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "page"
WIDTHS = {1280: 900, 400: 850}  # px: width of the window, and its height
WIDEST, HIGHEST, QUALITY = 900, 2200, 18  # px, and of WebP
PORT = 7869
WAIT = 120_000  # ms
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
Act = Callable[[Page, Path], None]


def answered(page: Page) -> None:
    expect(page.locator("#figures .figures")).to_be_visible(timeout=WAIT)


def upload(page: Page, path: Path) -> None:
    page.locator("#image").get_by_label("Remove Image").click()
    expect(page.locator("#budget")).to_contain_text("no image yet", timeout=WAIT)
    page.locator("#image input[type=file]").set_input_files(path)


def first(page: Page, folder: Path) -> None:
    """As it opens; parts of the page come one after the other."""
    for part in ("#image img", "#overlay img", "#heat img", "#dial input[type=range]"):
        expect(page.locator(part)).to_be_visible(timeout=WAIT)
    expect(page.locator("#examples img")).to_have_count(10, timeout=WAIT)


def answer(page: Page, folder: Path) -> None:
    page.locator("#examples button", has_text="next to the radiation").click()
    expect(page.locator("#answer textarea")).to_have_value("NAVAF", timeout=WAIT)
    answered(page)


def clip(page: Page, folder: Path) -> None:
    page.locator("#examples button", has_text="What goes up?").click()
    expect(page.locator("#player video")).to_be_visible(timeout=WAIT)
    page.wait_for_function("document.querySelector('#player video').currentTime > 0.5")
    page.evaluate("document.querySelector('#player video').pause()")


def failed(page: Page, folder: Path) -> None:
    broken = folder / "holiday.png"
    Image.effect_noise((400, 400), 90).save(broken)
    broken.write_bytes(broken.read_bytes()[:4000])
    upload(page, broken)
    expect(page.locator("#trouble .trouble")).to_be_visible(timeout=WAIT)


def photograph(page: Page, folder: Path) -> None:
    photo(folder / "photograph.png")
    upload(page, folder / "photograph.png")
    expect(page.locator("#budget")).to_contain_text("visual tokens", timeout=WAIT)
    page.locator("#question textarea").fill("Which automobile is parked beside the house?")
    page.locator("#ask").click()
    answered(page)


def compare(page: Page, folder: Path) -> None:
    page.get_by_role("tab", name="Compare").click()
    for way in ("even grid", "random"):
        page.get_by_label(way).check()
    page.locator("#compare").click()
    expect(page.locator("#cards .card")).to_have_count(4, timeout=WAIT)
    expect(page.locator("#kept-3 img")).to_have_count(1, timeout=WAIT)


def microscope(page: Page, folder: Path) -> None:
    page.get_by_role("tab", name="Microscope").click()
    page.locator("#look").click()
    expect(page.locator("#map-3 img")).to_have_count(1, timeout=WAIT)


MOMENTS: tuple[Act, ...] = (first, compare, microscope, answer, clip, photograph, failed)


def photo(path: Path) -> None:
    """A landscape as a camera would take it: soft light, noise, nothing drawn."""
    rng, (high, wide) = np.random.default_rng(7), (512, 768)
    y, x = np.mgrid[0:high, 0:wide] / np.array([high, wide]).reshape(2, 1, 1)
    hills = sum(rng.normal() * np.sin(2 * np.pi * (k * x + rng.random())) / k for k in range(1, 12))
    ground = 1 / (1 + np.exp(-60 * (y - 0.55 - 0.05 * hills)))
    sky = np.stack([0.55 + 0.3 * y, 0.68 + 0.2 * y, 0.92 - 0.1 * y], axis=-1)
    grass = np.stack([0.32 * (1.3 - y), 0.45 * (1.3 - y), 0.2 * (1.3 - y)], axis=-1)
    blurred = np.asarray(Image.effect_noise((wide // 6, high // 6), 60).resize((wide, high), Image.Resampling.BICUBIC))
    scene = (1 - ground[..., None]) * sky + ground[..., None] * grass * (0.6 + blurred[..., None] / 255)
    scene += rng.normal(0, 0.015, scene.shape)
    Image.fromarray((255 * scene.clip(0, 1)).astype(np.uint8)).save(path)


def taken(page: Page, width: int, scheme: Any) -> Image.Image:
    """The whole page, as one with such a window and such a taste sees it."""
    page.set_viewport_size({"width": width, "height": WIDTHS[width]})
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function(f"document.body.classList.contains('dark') === {json.dumps(scheme == 'dark')}")
    page.evaluate("window.scrollTo(0, 0); for (const image of document.images) image.loading = 'eager'")
    page.wait_for_function("[...document.images].every(image => !image.offsetParent || image.complete)")
    page.wait_for_timeout(1000)  # bars and toasts have come to rest
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it scrolls sideways"
    shot = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    shot = shot.crop((0, 0, width, min(shot.height, HIGHEST)))
    shot.thumbnail((WIDEST, HIGHEST))
    return shot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    server = serve(Models(["mini"]), "127.0.0.1", PORT, wait=False)
    chromium = os.environ.get("ARR_COC_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(WAIT)
        page.goto(server.local_url)
        answered(page)
        for act in MOMENTS:
            page.set_viewport_size({"width": 1280, "height": 900})
            act(page, Path(folder))
            for width, scheme in product(WIDTHS, ("dark", "light")):
                path = out / f"{act.__name__}-{scheme}-{width}.webp"
                taken(page, width, scheme).save(path, quality=QUALITY, method=6)
                print(f"{path.name}: {path.stat().st_size // 1024} kB", flush=True)
        browser.close()
    server.close(verbose=False)


if __name__ == "__main__":
    main()
