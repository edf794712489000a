"""The page: what answers and what to try on top, image, question and dial at the left, a tab for each way to look."""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from arr_coc.config import Keep
from arr_coc.demo import parts
from arr_coc.demo.ask import Opening, ask_tab, opening
from arr_coc.demo.compare import compare_tab
from arr_coc.demo.inputs import MOST_CHARACTERS, MOST_FRAMES, Left, budget_line, count_tokens, dialled, read_upload
from arr_coc.demo.microscope import microscope_tab
from arr_coc.demo.models import Models
from arr_coc.demo.scenes import examples, scenes_tab
from arr_coc.demo.telling import about, note
from arr_coc.images.clips import Clip
from arr_coc.viewing.clips import clip_video

HEAD = (
    "# ARR-COC\nAsk about an image or a clip. Only the visual tokens that matter for the question reach the model, "
    "and you see which."
)
HOUR = 3600  # seconds: uploads and pictures older than that are deleted, and that is looked after as often


def build_page(models: Models) -> gr.Blocks:
    """The whole demo, not yet served; the first example is answered by then."""
    with gr.Blocks(title="ARR-COC", analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        first = opening(models)
        with gr.Row(elem_id="head"):
            with gr.Column(min_width=320):
                gr.Markdown(HEAD)
            with gr.Column(min_width=320):
                known = gr.HTML(first.about, elem_id="about")
                model = gr.Dropdown(
                    models.names, value=models.names[0], label="Model", visible=len(models.names) > 1, elem_id="model"
                )
        gallery, files = thumbnails()
        with gr.Row():
            with gr.Column(scale=2, min_width=320) as column:
                side = left_side(files[0], first, model, models.keep(models.names[0]))
            with gr.Column(scale=3, min_width=320), gr.Tabs(elem_id="tabs") as tabs:
                chosen = _choosing(gallery, files, side)
                with gr.Tab("Ask", id="ask") as ask:
                    answered, running = ask_tab(models, side, tabs, first, chosen)
                with gr.Tab("Compare", id="compare") as compare:
                    compared, comparing = compare_tab(models, side)
                with gr.Tab("Microscope", id="microscope") as microscope:
                    looked, looking = microscope_tab(models, side)
                with gr.Tab("Scenes", id="scenes") as scenes:
                    scenes_tab(models, side)
        running = [*running, *comparing, *looking]
        _heed(models, side, known, chosen, gallery, [*answered, *compared, *looked], running)
        for tab in (ask, compare, microscope):
            tab.select(lambda: [gr.update(visible=True)] * 2, None, [column, gallery], **parts.AT_ONCE)
        scenes.select(lambda: [gr.update(visible=False)] * 2, None, [column, gallery], **parts.AT_ONCE)
    return page


def thumbnails() -> tuple[gr.Gallery, list[str]]:
    """The examples, and their files in the folder of the server's own, which goes when the server ends."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["GRADIO_TEMP_DIR"]))
    files = [one.save(folder, f"example-{number}") for number, one in enumerate(examples(), 1)]
    gallery = gr.Gallery(
        [(file, one.question) for file, one in zip(files, examples(), strict=True)],
        label="Examples: one click asks",
        columns=len(files),
        allow_preview=False,
        selected_index=0,
        object_fit="cover",
        buttons=[],
        interactive=False,
        elem_id="examples",
    )
    return gallery, files


def left_side(file: str, first: Opening, model: gr.Dropdown, keep: Keep) -> Left:
    """Image, question, buttons and dial; the tabs say what the buttons do."""
    label, played = "Image or GIF, up to 20 MB", gr.State(None)
    image = parts.Upload(file, label=label, sources=["upload", "clipboard"], height=320, elem_id="image")
    clip = parts.player(f"The clip: up to {MOST_FRAMES} frames of it are looked at", "clip")
    video = parts.VideoButton("Or upload a video, up to 20 MB", file_types=["video"], size="sm", elem_id="video")
    trouble = gr.HTML("", elem_id="trouble")
    question = gr.Textbox(
        first.example.question, label="Question", lines=1, max_length=MOST_CHARACTERS, elem_id="question"
    )
    with gr.Row():
        ask = gr.Button("Ask", variant="primary", scale=2, min_width=90, elem_id="ask")
        stop = gr.Button("Stop", min_width=60, elem_id="stop")
        clear = gr.Button("Clear", min_width=60, elem_id="clear")
    with gr.Group():
        dial = parts.dial_slider("dial", keep)
        budget = gr.Markdown(budget_line(first.total, keep), elem_id="budget")
    total = gr.Number(first.total, visible=False)  # visual tokens of the image
    return Left(image, clip, video, played, question, ask, stop, clear, dial, model, trouble, budget, total)


def _choosing(gallery: gr.Gallery, files: list[str], side: Left) -> Any:
    """A click on an example puts it before the reader; the event, for what follows."""

    def choose(event: gr.SelectData) -> tuple[Any, ...]:
        return *_shown(files[event.index]), examples()[event.index].question, ""

    return gallery.select(choose, None, [*side.shown, side.question, side.trouble], **parts.AT_ONCE)


def _shown(image: str | None = None, clip: bytes | None = None, played: str | None = None) -> list[Any]:
    """An image, or a clip and its file, in the place that both have; or neither."""
    seen = [gr.update(value=image, visible=clip is None), gr.update(value=clip, visible=clip is not None)]
    return [*seen, played]


def _heed(
    models: Models, side: Left, known: Any, chosen: Any, gallery: Any, belongs: list[Any], running: list[Any]
) -> None:
    """What is new is checked and counted at once, and takes away what belonged to the last; so does a new model.

    The dial shows what it stands for while it is turned.
    """

    @parts.guarded
    def measure(path: str | None, played: str | None, name: str) -> list[Any]:
        if not (played or path):
            return [*[gr.skip()] * 3, "", 0]
        try:
            shown = read_upload(played or path, partial(models.fit, name))
        except ValueError as error:
            return [*_shown(), note(parts.in_a_line(error), "trouble"), 0]
        seen = _shown(None, clip_video(shown), played) if isinstance(shown, Clip) and played else [gr.skip()] * 3
        with models.use(name) as owner:
            return [*seen, "", count_tokens(owner.processor, shown)]

    @parts.guarded
    def turned(total: float, dial: float, name: str) -> str:
        chosen = dialled(dial)
        return budget_line(total, models.keep(name) if chosen is None else chosen)

    @parts.guarded
    def change_model(name: str) -> tuple[str, Any]:
        with models.use(name) as owner:
            return about(name, owner), parts.dial_slider("dial", owner.keep)

    def empty() -> list[Any]:
        return [gr.Gallery(selected_index=None), *parts.emptied(belongs)]

    image, measured = side.image, [*side.shown, side.trouble, side.total]
    dialled_now = [side.total, side.dial, side.model]
    emptying = (image.upload, image.clear, side.video.upload, side.model.change)
    for event in (*emptying, side.clear.click):  # what runs is ended before anything is emptied
        event(None, None, None, js=parts.EMPTYING, cancels=running, queue=False, **parts.PRIVATE)
    *images, video, model = (event(empty, None, [gallery, *belongs], **parts.AT_ONCE) for event in emptying)
    video = video.then(lambda path: path, side.video, side.played, **parts.AT_ONCE)
    model = model.then(change_model, side.model, [known, side.dial], **parts.PRIVATE)
    for before in (*images, video, model, chosen):
        # One after the other: what is asked once the count is there is not taken away any more, and the line is made
        # of the dial as it is then, since it may have been turned meanwhile.
        counted = before.then(
            measure, [image, side.played, side.model], measured, show_progress="hidden", **parts.PRIVATE
        )
        counted.then(turned, dialled_now, side.budget, **parts.AT_ONCE)
    side.dial.change(turned, dialled_now, side.budget, **parts.AT_ONCE)

    def nothing() -> list[Any]:
        return [*_shown(), "", "", 0, "no image yet", *empty()]

    everything = [*side.shown, side.question, side.trouble, side.total, side.budget, gallery, *belongs]
    side.clear.click(nothing, None, everything, **parts.AT_ONCE)
