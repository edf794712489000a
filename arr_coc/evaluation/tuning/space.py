"""The settings that tuning tries, what each costs, and which of them are worth answers."""

from collections.abc import Sequence
from math import log2

import numpy as np

from arr_coc.config import FirstLook
from arr_coc.qwen.tuned import TUNED, Settings, default_settings

Values = list[tuple[int, float]]  # (image, value) of each question
Found = dict[str, tuple[Settings, Values]]  # settings by their text, and the evidence that they find

GLANCES = ((36, 144), (64, 256), (100, 400))  # cells of the small copy, at least and at most
DEPTHS = (2 / 7, 3 / 7, 4 / 7, 5 / 7, 1.0)
INFORMATION = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
PERSPECTIVAL = (0.0, 0.25, 0.5)
PRICE = 0.01  # what a first look of twice the work must find more, to be worth it
USUAL_GRID = (16, 16)  # cells of an image of 512 px


def spec_of(settings: Settings) -> str:
    """Looking twice with these settings, as `read_selector` takes it: what is as ever is left out."""
    changed = [f"{name}={value}" for name, value in settings.items() if value != default_settings()[name]]
    return f"{TUNED}:{','.join(changed)}" if changed else TUNED


def first_looks() -> list[Settings]:
    """The usual first look, then others: another size of the small copy, or another depth, not both."""
    usual = default_settings()
    sizes = [{**usual, "least": least, "most": most} for least, most in GLANCES]
    depths = [{**usual, "depth": depth} for depth in DEPTHS]
    return list({spec_of(one): one for one in (usual, *sizes, *depths)}.values())


def with_exponents(look: Settings) -> list[Settings]:
    """A first look with every pair of exponents, its own first."""
    pairs = [(information, perspectival) for information in INFORMATION for perspectival in PERSPECTIVAL]
    several = [look, *({**look, "information": g, "perspectival": p} for g, p in pairs)]
    return list({spec_of(one): one for one in several}.values())


def few_settings() -> list[Settings]:
    """What is tried where only answers tell: the usual settings, and one thing at a time changed."""
    usual = default_settings()
    weights = [{**usual, "information": g} for g in (0.0, 0.5, 2.0)] + [{**usual, "perspectival": PERSPECTIVAL[-1]}]
    return list({spec_of(one): one for one in (*first_looks(), *weights)}.values())


def price_of(settings: Settings, layers: int) -> float:
    """What must be gained for what its first look costs: PRICE for twice the usual work, nothing for less."""

    def work(of: Settings) -> int:
        look = FirstLook(of["least"], of["most"], of["depth"])
        height, width = look.grid(USUAL_GRID)
        return height * width * look.layers(layers)

    return max(0.0, PRICE * log2(work(settings) / work(default_settings())))


def sure_gain(values: Sequence[tuple[int, float]], usual: Sequence[tuple[int, float]]) -> float:
    """Mean gain over the usual settings on the same questions, less twice its standard error over images."""
    gains = np.array([value for _, value in values]) - np.array([value for _, value in usual])
    places = np.unique([image for image, _ in values], return_inverse=True)[1]
    if not gains.any():
        return 0.0
    error = np.sqrt(np.square(np.bincount(places, gains - gains.mean())).sum()) / len(gains)
    return float(gains.mean() - 2 * error) if places.max() else -1.0  # one image tells nothing


def finalists(found: Found, layers: int) -> list[Settings]:
    """The usual settings, the best ones, the best of each thing put together, and the best with another first look."""
    usual = default_settings()
    look = ("least", "most", "depth")
    as_ever = found[TUNED][1]
    worth = [(sure_gain(values, as_ever) - price_of(one, layers), one) for one, values in found.values()]
    ranked = [settings for _, settings in sorted(worth, key=lambda one: -one[0])]
    best = ranked[0]
    size = next(one for one in ranked if one["depth"] == usual["depth"])
    depth = next(one for one in ranked if one["least"] == usual["least"])
    together = {**best, "least": size["least"], "most": size["most"], "depth": depth["depth"]}
    other = [one for one in ranked if [one[key] for key in look] != [best[key] for key in look]]
    return list({spec_of(one): one for one in (usual, best, together, *other[:1])}.values())
