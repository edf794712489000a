"""What comes from the browser, and from where on the page; checked once: an uploaded image, a question, a dial."""

from dataclasses import dataclass
from typing import Any

from PIL import Image

from arr_coc.config import Keep, tokens_to_keep
from arr_coc.images.reader import read_image

MOST_CHARACTERS = 2000
MOST_SHOWN = 1024  # px of the longer side of a picture in the page; the model sees the image itself
AUTO, BY_HAND = "auto", "by hand"


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One question about one image, ready for a model."""

    image: Image.Image  # RGB, upright
    question: str
    keep: Keep | None  # None: the model's own dial

    @classmethod
    def of(
        cls, path: str | None, question: str | None, mode: str | None, percent: float | None, use: bool = True
    ) -> "Inquiry":
        """From what the page has; without ARR-COC (`use`) everything is kept."""
        return cls(read_upload(path), check_question(question), dial(mode, percent) if use else 1.0)


@dataclass(frozen=True, slots=True)
class Left:
    """The components of the left side of the page, which all tabs but Scenes read."""

    image: Any
    question: Any
    ask: Any
    stop: Any
    clear: Any
    use: Any
    mode: Any
    percent: Any
    model: Any
    examples: Any

    @property
    def asked(self) -> list[Any]:
        """What `Inquiry.of` takes, without the checkbox."""
        return [self.image, self.question, self.mode, self.percent]


def read_upload(path: str | None) -> Image.Image:
    """The image that the browser sent; `path` is where the server put it."""
    if not path:
        raise ValueError("no image yet: upload one, or click an example")
    return read_image(path, boxed=True)


def check_question(question: str | None) -> str:
    """The question without space around it."""
    text = (question or "").strip()
    if not text:
        raise ValueError("no question yet: write one, or click an example")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the question has {len(text)} characters: ask in {MOST_CHARACTERS} at most")
    return text


def dial(mode: str | None, percent: float | None) -> Keep | None:
    """The dial as the page has it: None for the model's own, or so many percent of the visual tokens KEPT."""
    if mode == AUTO:
        return None
    if mode != BY_HAND:
        raise ValueError(f"the dial is either {AUTO} or {BY_HAND}")
    if not isinstance(percent, (int, float)) or not 1 <= percent <= 100:
        raise ValueError("the part kept is 1 to 100 percent")
    return float(percent) / 100


def shown(image: Image.Image) -> Image.Image:
    """A copy that is small enough for a page."""
    scale = MOST_SHOWN / max(image.size)
    if scale >= 1:
        return image.copy()
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS)


def count_tokens(image_processor: Any, size: tuple[int, int]) -> int:
    """Visual tokens of an image of (width, height) px in the untouched model."""
    patches = image_processor.get_number_of_image_patches(size[1], size[0])
    return int(patches // image_processor.merge_size**2)


def budget_line(total: int | None, keep: Keep | None) -> str:
    """The live count beside the dial."""
    if not total:
        return "no image yet"
    tokens = None if keep is None else tokens_to_keep(keep, total)
    if tokens is None:
        return f"the question decides how many of {total} visual tokens are kept"
    return f"**{tokens}** of {total} visual tokens are kept"
