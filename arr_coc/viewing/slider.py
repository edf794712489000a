"""Before and after: the whole image against what was kept of it, as two pictures and as a page with a slider."""

import base64
import io

from PIL import Image

from arr_coc.qwen.answers import ImageSelection
from arr_coc.viewing.overlays import kept_overlay

MOST = 1600  # px of the longer side inside a page, so that a page stays small
GENERATOR = "arr-coc"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="{generator}">
<title>{title}</title>
<style>
.arr-coc-slider {{ --at: 50%; max-width: {width}px; margin: 16px auto; padding: 16px; box-sizing: border-box;
  background: #fafaf8; color: #28282c; font: 16px/1.4 system-ui, sans-serif; border-radius: 6px; }}
.arr-coc-slider .views {{ position: relative; line-height: 0; }}
.arr-coc-slider img {{ width: 100%; height: auto; }}
.arr-coc-slider .over {{ position: absolute; inset: 0; clip-path: inset(0 0 0 var(--at)); }}
.arr-coc-slider .line {{ position: absolute; top: 0; bottom: 0; left: var(--at); width: 4px; margin-left: -2px;
  background: #fff; box-shadow: 0 0 0 1px #101014; pointer-events: none; }}
.arr-coc-slider input {{ width: 100%; margin: 12px 0 0; accent-color: #28282c; }}
.arr-coc-slider .names {{ display: flex; justify-content: space-between; }}
</style>
</head>
<body>
<div class="arr-coc-slider">
<div class="views">
<img alt="the whole image" src="{before}">
<img class="over" alt="what was kept of it: the rest is dimmed" src="{after}">
<div class="line"></div>
</div>
<input type="range" min="0" max="100" value="50" aria-label="how much of the whole image is shown, in percent"
  oninput="this.parentNode.style.setProperty('--at', this.value + '%')">
<div class="names"><span>whole image</span><span>what was kept</span></div>
</div>
</body>
</html>
"""


def before_after(image: Image.Image, selection: ImageSelection) -> tuple[Image.Image, Image.Image]:
    """The image, and the image with dropped cells dimmed: both RGB and of the image's size."""
    return image.convert("RGB"), kept_overlay(image, selection.mask)


def slider_html(before: Image.Image, after: Image.Image) -> str:
    """One page with both pictures inside and a slider between them; it loads nothing from anywhere."""
    if before.size != after.size:
        raise ValueError(f"a slider needs two pictures of one size, not {before.size} and {after.size}")
    return PAGE.format(
        generator=GENERATOR,
        title="What was kept",
        width=min(MOST, max(320, before.width + 32)),
        before=_data(before),
        after=_data(after),
    )


def _data(picture: Image.Image) -> str:
    """The picture as a data address."""
    picture = picture.convert("RGB")
    picture.thumbnail((MOST, MOST))
    written = io.BytesIO()
    picture.save(written, "WEBP", quality=88)
    return "data:image/webp;base64," + base64.b64encode(written.getvalue()).decode()
