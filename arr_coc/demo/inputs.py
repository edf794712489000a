"""What comes from the browser, and from where on the page; checked once: an image or a clip, a question, a dial."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from arr_coc.config import Keep, tokens_to_keep
from arr_coc.images.clips import Clip, Fit, is_played, read_clip
from arr_coc.images.reader import read_image
from arr_coc.qwen.clips import ClipForm

MOST_CHARACTERS = 2000
MOST_FRAMES = 32  # of a clip that are looked at, 2 of a second
STRIP = 720  # px of a picture of a clip's moments
MOST_SHOWN = 1024  # px of the longer side of a picture in the page; the model sees the image itself
OWN, PLAIN = 0, 100  # ends of the dial: the model's own, which is mostly "auto", and all; between: percent KEPT


@dataclass(frozen=True, slots=True)
class Inquiry:
    """One question about one image or clip, ready for a model."""

    image: Image.Image | Clip  # RGB, upright
    question: str
    keep: Keep | None  # None: the model's own dial

    @classmethod
    def of(
        cls, path: str | None, question: str | None, dial: float | None, fit: Callable[[], Fit] | None = None
    ) -> "Inquiry":
        """From what the page has; `fit` says how large the model sees clips."""
        return cls(read_upload(path, fit), check_question(question), dialled(dial))

    @property
    def picture(self) -> Image.Image:
        """The image, where only one will do."""
        if isinstance(self.image, Clip):
            raise ValueError("this looks at images: click Ask, which shows every moment of a clip")
        return self.image


@dataclass(frozen=True, slots=True)
class Left:
    """The components of the left side of the page, which all tabs but Scenes read."""

    image: Any
    clip: Any  # in the image's place
    video: Any  # the button that uploads it
    played: Any  # its file, as a state of the session: calls by name have none
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
    def shown(self) -> list[Any]:
        return [self.image, self.clip, self.played]

    @property
    def asked(self) -> list[Any]:
        """What `Inquiry.of` takes."""
        return [self.image, self.question, self.dial]


def read_upload(path: str | None, fit: Callable[[], Fit] | None = None) -> Image.Image | Clip:
    """The image or clip that the browser sent; `path` is where the server put it."""
    if not path:
        raise ValueError("no image yet: upload one, or click an example")
    if fit is not None and is_played(path):
        return read_clip(path, fit(), most=MOST_FRAMES)
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
    small = image.copy()
    small.thumbnail((MOST_SHOWN, MOST_SHOWN), Image.Resampling.LANCZOS)
    return small


def count_tokens(processor: Any, shown: Image.Image | Clip) -> int:
    """Visual tokens of an image or a clip in the untouched model."""
    if isinstance(shown, Clip):
        form, (frames, _, height, width) = ClipForm.of(processor), shown.frames_T3hw.shape
        return -(-frames // form.frames) * height * width // (form.patch * form.merge) ** 2
    images = processor.image_processor
    return int(images.get_number_of_image_patches(shown.height, shown.width) // images.merge_size**2)


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
