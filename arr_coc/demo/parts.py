"""What the tabs share of Gradio: an image that can only be uploaded, short errors, and the looks."""

import functools
import html
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from gradio.data_classes import ImageData
from PIL import Image

from arr_coc.demo.messages import short_message

MODELS: dict[str, Any] = {
    "concurrency_id": "models",
    "concurrency_limit": 1,
}  # events that use a model wait in one queue
PRIVATE: dict[str, Any] = {"api_visibility": "private"}  # events of the page that nobody else calls

THEME = gr.themes.Base(
    primary_hue="teal",
    neutral_hue="slate",
    font=["system-ui", "sans-serif"],  # the reader's own fonts: nothing is fetched
    font_mono=["ui-monospace", "monospace"],
)
CSS = """
.gradio-container { max-width: 1240px !important; }
#image [data-testid="block-label"], .titled [data-testid="block-label"] {
  position: static; width: fit-content; margin-bottom: 2px;
}
#image .image-container { height: calc(100% - 28px); }
.prose table, .prose th, .prose td { border-color: var(--border-color-primary) !important; }
.prose td, .prose th { padding: 4px 12px !important; }
.prose td:last-child, .prose th:last-child { white-space: nowrap; }
.titled .icon-button-wrapper { top: -26px !important; }
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); }
.card { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: 12px 16px; }
.card h4 { margin: 0; color: var(--body-text-color-subdued); font-weight: 600; }
.card .answer { font-size: 1.3em; margin: 4px 0 8px; overflow-wrap: anywhere; }
.card ul { list-style: none; padding: 0; margin: 0; color: var(--body-text-color-subdued); }
#budget { padding: 4px 16px 12px; background: var(--block-background-fill); }
#answer textarea { font-size: 1.3em; }
@media (max-width: 640px) {
  .gradio-container { padding: 8px !important; }
  .tab-container button { padding: 0 8px !important; }
}
"""


class WithoutStub(type(gr.Image)):  # type: ignore[misc]
    """Gradio writes a .pyi file beside every component it meets; nothing here is to be written by an import."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> type:
        return ABCMeta.__new__(cls, name, bases, attributes)


class Upload(gr.Image, metaclass=WithoutStub):
    """An image from the reader's own machine: what arrives is the file as it was sent, not decoded by anyone yet.

    Addresses are refused, so that nobody can make the server fetch something.
    """

    is_template = True  # drawn in the page as the image that it is

    async def async_move_resource_to_block_cache(self, url_or_file_path: Any) -> str | None:
        if "://" in str(url_or_file_path or ""):
            raise gr.Error("an image is uploaded, not fetched from an address", print_exception=False)
        return await super().async_move_resource_to_block_cache(url_or_file_path)

    def preprocess(self, payload: ImageData | None) -> str | None:
        return None if payload is None else payload.path


def told(error: Exception) -> str:
    """An error in one line, as text: the page would take it for HTML, and a file's name may hold some."""
    return html.escape(short_message(error), quote=False)


def page_error(error: Exception) -> gr.Error:
    """An error as the page shows it."""
    if isinstance(error, gr.Error):
        return error
    return gr.Error(told(error), print_exception=False)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose errors are short messages."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def steps(*values: Any) -> Iterator[Any]:
            try:
                yield from function(*values)
            except Exception as error:
                raise page_error(error) from None

        return steps

    @functools.wraps(function)
    def once(*values: Any) -> Any:
        try:
            return function(*values)
        except Exception as error:
            raise page_error(error) from None

    return once


def picture(label: str, name: str, *, value: Any = None, visible: bool = True, bare: bool = False) -> gr.Image:
    """A picture that is shown and not changed; `bare` without buttons in its corner, where all of it can be clicked."""
    return gr.Image(
        value,
        label=label,
        type="pil",
        format="png",
        interactive=False,
        buttons=[] if bare else ["fullscreen", "download"],
        visible=visible,
        min_width=280,  # two in a row on a desk, one on a phone
        elem_id=name,
        elem_classes="titled",
    )


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
