"""What comes from the browser, and from where on the page; checked once: an uploaded image, a question, a dial."""

from dataclasses import dataclass
from typing import Any

from PIL import Image

from arr_coc.config import Keep, tokens_to_keep
from arr_coc.images.reader import read_image

MOST_CHARACTERS = 2000
MOST_SHOWN = 1024  # px of the longer side of a picture in the page; the model sees the image itself
OWN, PLAIN = 0, 100  # ends of the dial: the model's own, which is mostly "auto", and all; between: percent KEPT


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One question about one image, ready for a model."""

    image: Image.Image  # RGB, upright
    question: str
    keep: Keep | None  # None: the model's own dial

    @classmethod
    def of(cls, path: str | None, question: str | None, dial: float | None) -> "Inquiry":
        """From what the page has."""
        return cls(read_upload(path), check_question(question), dialled(dial))


@dataclass(frozen=True, slots=True)
class Left:
    """The components of the left side of the page, which all tabs but Scenes read."""

    image: Any
    question: Any
    ask: Any
    stop: Any
    clear: Any
    dial: Any
    model: Any
    trouble: Any  # what is wrong with the image
    budget: Any  # what the dial stands for
    total: Any  # visual tokens of the image

    @property
    def asked(self) -> list[Any]:
        """What `Inquiry.of` takes."""
        return [self.image, self.question, self.dial]


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


def dialled(dial: float | None) -> Keep | None:
    """What the dial of the page stands for; None is the model's own."""
    if not isinstance(dial, (int, float)) or not (dial == OWN or 1 <= dial <= PLAIN):
        raise ValueError(f"the dial is {OWN} for the model's own, or 1 to {PLAIN} percent of the visual tokens")
    return None if dial == OWN else float(dial) / PLAIN


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


def budget_line(total: float | None, keep: Keep) -> str:
    """Markdown beside the dial: what it stands for, on the image that is there."""
    if not total:
        return "no image yet"
    tokens = tokens_to_keep(keep, int(total))
    if tokens is None:
        return f"**auto**: the question decides, of {total:.0f} visual tokens"
    if keep == 1.0:
        return f"**100 %**: the plain model, all {total:.0f} visual tokens"
    return f"**{100 * tokens / total:.0f} %**: {tokens} of {total:.0f} visual tokens"
