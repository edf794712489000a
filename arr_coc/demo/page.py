"""The page: what answers and what to try on top, image, question and dial at the left, a tab for each way to look."""

import os
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

from arr_coc.config import Keep
from arr_coc.demo.ask import Opening, ask_tab, opening
from arr_coc.demo.compare import compare_tab
from arr_coc.demo.inputs import MOST_CHARACTERS, Left, budget_line, count_tokens, dialled, read_upload
from arr_coc.demo.microscope import microscope_tab
from arr_coc.demo.models import Models
from arr_coc.demo.parts import AT_ONCE, EMPTYING, PRIVATE, Upload, dial_slider, emptied, guarded, in_a_line
from arr_coc.demo.scenes import examples, scenes_tab
from arr_coc.demo.telling import about, note

HEAD = (
    "# ARR-COC\nAsk about an image. Only the visual tokens that matter for the question reach the model, "
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
            tab.select(lambda: [gr.update(visible=True)] * 2, None, [column, gallery], **AT_ONCE)
        scenes.select(lambda: [gr.update(visible=False)] * 2, None, [column, gallery], **AT_ONCE)
    return page


def thumbnails() -> tuple[gr.Gallery, list[str]]:
    """The examples, and their files in the folder of the server's own, which goes when the server ends."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["GRADIO_TEMP_DIR"]))
    files = [str(folder / f"example-{number}.png") for number in range(1, len(examples()) + 1)]
    for one, file in zip(examples(), files, strict=True):
        one.picture.save(file)
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
    label = "Image, up to 20 MB"
    image = Upload(file, label=label, sources=["upload", "clipboard"], height=320, elem_id="image")
    trouble = gr.HTML("", elem_id="trouble")
    question = gr.Textbox(
        first.example.question, label="Question", lines=1, max_length=MOST_CHARACTERS, elem_id="question"
    )
    with gr.Row():
        ask = gr.Button("Ask", variant="primary", scale=2, min_width=90, elem_id="ask")
        stop = gr.Button("Stop", min_width=60, elem_id="stop")
        clear = gr.Button("Clear", min_width=60, elem_id="clear")
    with gr.Group():
        dial = dial_slider("dial", keep)
        budget = gr.Markdown(budget_line(first.total, keep), elem_id="budget")
    total = gr.Number(first.total, visible=False)  # visual tokens of the image
    return Left(image, question, ask, stop, clear, dial, model, trouble, budget, total)


def _choosing(gallery: gr.Gallery, files: list[str], side: Left) -> Any:
    """A click on an example puts it before the reader; the event, for what follows."""

    def choose(event: gr.SelectData) -> tuple[str, str, str]:
        return files[event.index], examples()[event.index].question, ""

    return gallery.select(choose, None, [side.image, side.question, side.trouble], **AT_ONCE)


def _heed(
    models: Models, side: Left, known: Any, chosen: Any, gallery: Any, belongs: list[Any], running: list[Any]
) -> None:
    """A new image is checked and counted at once, and takes away what belonged to the last one; so does a new model.

    The dial shows what it stands for while it is turned.
    """

    @guarded
    def measure(path: str | None, name: str) -> tuple[Any, str, int]:
        if path is None:
            return gr.skip(), "", 0
        try:
            picture = read_upload(path)
        except ValueError as error:
            return None, note(in_a_line(error), "trouble"), 0
        with models.use(name) as owner:
            return gr.skip(), "", count_tokens(owner.processor.image_processor, picture.size)

    @guarded
    def turned(total: float, dial: float, name: str) -> str:
        chosen = dialled(dial)
        return budget_line(total, models.keep(name) if chosen is None else chosen)

    @guarded
    def change_model(name: str) -> tuple[str, Any]:
        with models.use(name) as owner:
            return about(name, owner), dial_slider("dial", owner.keep)

    def empty() -> list[Any]:
        return [gr.Gallery(selected_index=None), *emptied(belongs)]

    image, measured = side.image, [side.image, side.trouble, side.total]
    dialled_now = [side.total, side.dial, side.model]
    emptying = (image.upload, image.clear, side.model.change)
    for event in (*emptying, side.clear.click):  # what runs is ended before anything is emptied
        event(None, None, None, js=EMPTYING, cancels=running, queue=False, **PRIVATE)
    *images, model = (event(empty, None, [gallery, *belongs], **AT_ONCE) for event in emptying)
    model = model.then(change_model, side.model, [known, side.dial], **PRIVATE)
    for before in (*images, model, chosen):
        # One after the other: what is asked once the count is there is not taken away any more, and the line is made
        # of the dial as it is then, since it may have been turned meanwhile.
        counted = before.then(measure, [image, side.model], measured, show_progress="hidden", **PRIVATE)
        counted.then(turned, dialled_now, side.budget, **AT_ONCE)
    side.dial.change(turned, dialled_now, side.budget, **AT_ONCE)

    def nothing() -> list[Any]:
        return [None, "", "", 0, "no image yet", *empty()]

    everything = [image, side.question, side.trouble, side.total, side.budget, gallery, *belongs]
    side.clear.click(nothing, None, everything, **AT_ONCE)
