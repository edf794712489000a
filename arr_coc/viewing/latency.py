"""Where the time goes: one bar per way of answering, of its parts."""

from collections.abc import Mapping

from PIL import Image, ImageDraw

from arr_coc.viewing.paper import FAINT, INK, PAPER, RGB, SMALL, TEXT, above, font, page, text_block

STAGES = ("select", "vision", "prefill", "decode")
# As in the plots of `arr-coc bench`; neighbours differ in lightness.
COLOURS: dict[str, RGB] = dict(
    zip(STAGES, ((230, 159, 0), (0, 114, 178), (119, 128, 140), (203, 208, 214)), strict=True)
)
BARS, BAR_HEIGHT = 520, 26  # px: length of the longest bar, height of each


def stage_times(timings_ms: Mapping[str, float]) -> dict[str, float]:
    """The times of an answer as select, vision, prefill and decode in ms; together they are the whole answer.

    All that comes before the language model and is not the vision encoder is "select". A method that chooses inside the
    language model has run its first layers by then: these are "prefill".
    """
    rest = dict(timings_ms)
    vision, generate, prefill = (rest.pop(name, 0.0) for name in ("vision", "generate", "prefill"))
    first_layers = rest.pop("first layers", 0.0)
    return {
        "select": sum(rest.values()),
        "vision": vision,
        "prefill": prefill + first_layers,
        "decode": max(0.0, generate - prefill),
    }


def latency_bars(rows: Mapping[str, Mapping[str, float]]) -> Image.Image:
    """Stacked bars of select, vision, prefill and decode in ms per way, with the total and its ratio to the first.

    Stages that a row lacks count as 0.
    """
    if not rows:
        raise ValueError("latency bars need at least one row of times")
    totals = {name: sum(times.get(stage, 0.0) for stage in STAGES) for name, times in rows.items()}
    names = {name: text_block(name, 220, TEXT, most=2) for name in rows}
    longest = max(max(totals.values()), 1e-9)
    first = next(iter(totals.values()))
    blocks = [_legend()]
    for index, (name, times) in enumerate(rows.items()):
        said = f"{milliseconds(totals[name])} ms"
        if index:
            said += f", {ratio_words(totals[name], first)}"
        blocks.append(_bar(names[name], times, BARS / longest, said))
    return page(above(blocks, gap=12))


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def ratio_words(total: float, first: float) -> str:
    """How a time compares to the first one, with its direction."""
    if min(total, first) <= 0 or f"{max(total, first) / min(total, first):.2f}" == "1.00":
        return "as fast as the first"
    quick = total < first
    factor = first / total if quick else total / first
    return f"{factor:.2f} times as {'fast' if quick else 'slow'} as the first"


def _legend() -> Image.Image:
    block = Image.new("RGB", (BARS + 220, 22), PAPER)
    draw, x = ImageDraw.Draw(block), 232
    for stage in STAGES:
        draw.rectangle((x, 3, x + 14, 17), fill=COLOURS[stage], outline=INK)
        draw.text((x + 22, 1), stage, fill=INK, font=font(SMALL))
        x += 38 + round(font(SMALL).getlength(stage))
    return block


def _bar(name: Image.Image, times: Mapping[str, float], px_per_ms: float, said: str) -> Image.Image:
    """The name, the bar with the ms of each part that has room for them, and a line below it."""
    block = Image.new("RGB", (232 + BARS, max(name.height, BAR_HEIGHT + 22)), PAPER)
    block.paste(name, (0, 2))
    draw, face, left = ImageDraw.Draw(block), font(SMALL), 232.0
    for stage in STAGES:
        width = times.get(stage, 0.0) * px_per_ms
        colour, words = COLOURS[stage], milliseconds(times.get(stage, 0.0))
        if width >= 1:
            draw.rectangle((left, 0, left + width - 1, BAR_HEIGHT), fill=colour, outline=PAPER)
        if face.getlength(words) + 6 <= width:
            middle = (left + width / 2, BAR_HEIGHT / 2)
            draw.text(middle, words, fill=_readable(colour), font=face, anchor="mm")
        left += width
    draw.text((232, BAR_HEIGHT + 3), said, fill=FAINT, font=face)
    return block


def _readable(colour: RGB) -> RGB:
    """Ink for text on a colour: dark on light, light on dark."""
    return INK if sum(weight * part for weight, part in zip((0.3, 0.59, 0.11), colour, strict=True)) > 120 else PAPER
