"""What the tabs share of Gradio: files that can only be uploaded, a player, short errors, and the looks."""

import functools
import html
import inspect
import json
import secrets
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import gradio as gr
from gradio.data_classes import FileData
from gradio.processing_utils import save_bytes_to_cache
from PIL import Image

from arr_coc.config import Keep
from arr_coc.demo.inputs import OWN, PLAIN
from arr_coc.demo.telling import short_message

MODELS: dict[str, Any] = {"concurrency_id": "models", "concurrency_limit": 1}  # events of a model: one queue
PRIVATE: dict[str, Any] = {"api_visibility": "private"}  # events of the page that nobody else calls
AT_ONCE: dict[str, Any] = {"queue": False, "show_progress": "hidden", **PRIVATE}  # those of them that take no time
# What belongs to an image is emptied by a click while an answer is still on its way. An event's function runs, and is
# done, before what it cancels is cancelled, and words that were sent by then are written even later. So the browser
# counts how often the page was emptied, what begins remembers the count, and what ends under another is taken away.
EMPTYING = "() => { window.emptied = (window.emptied ?? 0) + 1; }"
SHOWN: dict[str, Any] = {"type": "pil", "interactive": False, "elem_classes": "titled"}  # of pictures to look at

THEME = gr.themes.Base(
    primary_hue="teal",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],  # the reader's own fonts: nothing is fetched
    font_mono=["ui-monospace", "monospace"],
)
CSS = (files("arr_coc") / "assets" / "demo.css").read_text(encoding="utf-8")


class WithoutStub(type(gr.Image)):  # type: ignore[misc]
    """Gradio writes a .pyi file beside every component it meets; nothing here is to be written by an import."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> type:
        return ABCMeta.__new__(cls, name, bases, attributes)


class Sent:
    """A file from the reader's own machine: what arrives is the file as it was sent, not decoded by anyone yet.

    Addresses are refused, so that nobody can make the server fetch something.
    """

    drawn_as: str

    def get_block_name(self) -> str:
        """What the page draws it as."""
        return self.drawn_as

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        if "://" in str(url_or_file_path or ""):
            raise gr.Error("an image is uploaded, not fetched from an address", print_exception=False)
        moved: str | None = await super().async_move_resource_to_block_cache(url_or_file_path)  # type: ignore[misc]
        return moved

    def preprocess(self, payload: Any) -> str | None:
        return None if payload is None else payload.path


class Upload(Sent, gr.Image, metaclass=WithoutStub):
    """An image, or what moves among them."""

    drawn_as = "image"


class VideoButton(Sent, gr.UploadButton, metaclass=WithoutStub):
    """A video. Gradio's component for one would load an editor from elsewhere, and play not all that can be read."""

    drawn_as = "uploadbutton"


class Player(gr.Video, metaclass=WithoutStub):
    """A video to look at, given as the bytes of an MP4; no program of the machine's is asked what it is."""

    is_template = True

    def postprocess(self, value: bytes | None) -> FileData | None:
        return None if value is None else FileData(path=save_bytes_to_cache(value, "overlay.mp4", self.GRADIO_CACHE))


def in_a_line(error: Exception) -> str:
    """An error in one line with its number."""
    number = secrets.token_hex(4)
    message = short_message(error, number)
    return message if number in message else f"{message} (error {number})"


def toast(message: str) -> gr.Error:
    """A message as text: the page would take it for HTML, and a file's name may hold some."""
    return gr.Error(html.escape(message, quote=False), print_exception=False)


@contextmanager
def _short_errors() -> Iterator[None]:
    """Errors as the page shows them."""
    try:
        yield
    except gr.Error:
        raise
    except Exception as error:
        raise toast(in_a_line(error)) from None


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors are short messages."""

    @functools.wraps(function)
    def steps(*values: Any) -> Iterator[Any]:
        with _short_errors():
            yield from function(*values)

    @functools.wraps(function)
    def once(*values: Any) -> Any:
        with _short_errors():
            return function(*values)

    return steps if inspect.isgeneratorfunction(function) else once


def dial_slider(name: str, keep: Keep) -> gr.Slider:
    """The one dial, for a model whose own is `keep`: the style sheet writes what its ends stand for."""
    looks: dict[str, Any] = {"buttons": [], "elem_id": name, "elem_classes": ["dial", f"dial-{keep}"]}
    return gr.Slider(OWN, PLAIN, value=OWN, step=1, label="How much of the image the model sees", **looks)


def emptied(components: list[Any]) -> list[Any]:
    """What makes components show nothing; those that were hidden at first are hidden again."""
    return [None if isinstance(one, gr.State) else gr.update(value=None, visible=one.visible) for one in components]


def begins(tab: str) -> str:
    """Script for the beginning of what a tab may have running."""
    return f"(...values) => {{ (window.begun ??= {{}}).{tab} = window.emptied; return values; }}"


def is_late(tab: str) -> str:
    """Script: whether the page was emptied since."""
    return f"window.begun?.{tab} !== window.emptied"


def leave_nothing_late(tab: str, events: list[Any], outputs: list[Any]) -> None:
    """Once the last words of what ran are on the page: away with them, if the page was emptied meanwhile."""
    places = [one for one in outputs if not isinstance(one, gr.State)]
    script = f"() => {is_late(tab)} ? {json.dumps(emptied(places))} : []"
    for event in events:
        for over in (event.success, event.failure):
            over(None, None, places, js=script, queue=False, **PRIVATE)


def picture(label: str, name: str, *, value: Any = None, visible: bool = True, bare: bool = False) -> gr.Image:
    """A picture that is shown and not changed; `bare` without buttons in its corner, where all of it can be clicked."""
    buttons = [] if bare else ["fullscreen", "download"]
    width = 280  # two in a row on a desk, one on a phone
    looks = {"format": "png", "buttons": buttons, "min_width": width, "elem_id": name, **SHOWN}
    return gr.Image(value, label=label, visible=visible, **looks)


def player(label: str, name: str, visible: bool = False) -> Player:
    """A place for a clip that plays by itself."""
    looks: dict[str, Any] = {"elem_id": name, "elem_classes": "titled", "buttons": ["download"]}
    return Player(label=label, visible=visible, interactive=False, autoplay=True, loop=True, **looks)


def pictures(name: str, count: int) -> list[gr.Image]:
    """Places for up to `count` pictures, two in a row where there is room; empty ones are not seen."""
    places = []
    for start in range(0, count, 2):
        with gr.Row():
            places += [picture("", f"{name}-{number}", visible=False) for number in range(start, min(start + 2, count))]
    return places


def filled(places: list[gr.Image], drawn: list[tuple[Image.Image, str]]) -> list[gr.Image]:
    """The places with (picture, label) in them, as far as there are any."""
    empty = len(places) - len(drawn)
    return [
        *(gr.Image(one, label=label, visible=True) for one, label in drawn),
        *(gr.Image(None, visible=False) for _ in range(empty)),
    ]
