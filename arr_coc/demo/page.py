"""The page: image, question, dial, buttons and examples at the left, and a tab for each way to look at an answer."""

import os
import tempfile
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from arr_coc.demo.ask import ask_tab
from arr_coc.demo.compare import compare_tab
from arr_coc.demo.inputs import AUTO, BY_HAND, MOST_CHARACTERS, Left, budget_line, count_tokens, dial, read_upload
from arr_coc.demo.microscope import microscope_tab
from arr_coc.demo.models import Models
from arr_coc.demo.parts import AT_ONCE, PRIVATE, Upload, guarded, told
from arr_coc.demo.scenes import example_rows, scenes_tab

HEAD = (
    "# ARR-COC\nAsk about an image. Only the visual tokens that matter for the question reach the model, "
    "and you see which."
)
HOUR = 3600  # seconds: uploads and pictures older than that are deleted, and that is looked after as often


def build_page(models: Models) -> gr.Blocks:
    """The whole demo, not yet served."""
    with gr.Blocks(title="ARR-COC", analytics_enabled=False, delete_cache=(HOUR, HOUR)) as page:
        gr.Markdown(HEAD)
        with gr.Row():
            with gr.Column(scale=2, min_width=320) as column:
                side = left_side(models, page)
            with gr.Column(scale=3, min_width=320), gr.Tabs(elem_id="tabs") as tabs:
                with gr.Tab("Ask", id="ask") as ask:
                    ask_tab(models, side, tabs)
                with gr.Tab("Compare", id="compare") as compare:
                    compare_tab(models, side)
                with gr.Tab("Microscope", id="microscope") as microscope:
                    microscope_tab(models, side)
                with gr.Tab("Scenes", id="scenes") as scenes:
                    scenes_tab(models, side)
        for tab in (ask, compare, microscope):
            tab.select(lambda: gr.Column(visible=True), None, column, **AT_ONCE)
        scenes.select(lambda: gr.Column(visible=False), None, column, **AT_ONCE)
    return page


def left_side(models: Models, page: gr.Blocks) -> Left:
    """Image, question, dial, buttons and examples; the tabs say what the buttons do."""
    rows = list(example_rows())
    files = _files([picture for picture, _, _ in rows])
    label = "Image: JPEG, PNG or WebP, up to 20 MB"
    image = Upload(files[0], label=label, sources=["upload", "clipboard"], height=320, elem_id="image")
    question = gr.Textbox(
        rows[0][1], label="Question", lines=1, max_length=MOST_CHARACTERS, elem_id="question", submit_btn=False
    )
    with gr.Row():
        ask = gr.Button("Ask", variant="primary", min_width=90, elem_id="ask")
        stop = gr.Button("Stop", min_width=90, elem_id="stop")
        clear = gr.Button("Clear", min_width=90, elem_id="clear")
    examples = gr.Examples(
        [[file, text] for file, (_, text, _) in zip(files, rows, strict=True)],
        [image, question],
        label="Examples: one click asks",
        example_labels=[text for _, text, _ in rows],
        elem_id="examples",
        api_visibility="private",
    )
    use = gr.Checkbox(True, label="Use ARR-COC", info="Off: the plain model, with every visual token.", elem_id="use")
    with gr.Group():
        mode = gr.Radio([AUTO, BY_HAND], value=AUTO, label="Visual tokens kept", elem_id="mode")
        percent = gr.Slider(1, 100, value=25, step=1, label="By hand: percent kept", elem_id="percent")
        budget = gr.Markdown("", elem_id="budget")
    model = gr.Dropdown(
        models.names, value=models.names[0], label="Model", visible=len(models.names) > 1, elem_id="model"
    )
    side = Left(image, question, ask, stop, clear, use, mode, percent, model, examples)
    _count_tokens(models, page, side, budget)
    return side


def _files(pictures: list[Image.Image]) -> list[str]:
    """The pictures as files in the folder of the server's own, which goes when the server ends."""
    folder = Path(tempfile.mkdtemp(dir=os.environ["GRADIO_TEMP_DIR"]))
    files = [folder / f"example-{number}.png" for number in range(1, len(pictures) + 1)]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file)
    return [str(file) for file in files]


def _count_tokens(models: Models, page: gr.Blocks, side: Left, budget: Any) -> None:
    """A new image is checked and counted at once; the dial shows what it stands for while it is turned."""
    total, dials = gr.State(0, time_to_live=3600), [side.mode, side.percent, side.use]

    @guarded
    def measure(path: str | None, name: str) -> tuple[Any, int]:
        if path is None:
            return gr.skip(), 0
        try:
            picture = read_upload(path)
        except ValueError as error:
            gr.Warning(told(error))
            return None, 0
        with models.use(name) as owner:
            return gr.skip(), count_tokens(owner.processor.image_processor, picture.size)

    @guarded
    def turned(tokens: int, mode: str, percent: float, use: bool) -> str:
        return budget_line(tokens, dial(mode, percent) if use else 1.0)

    for event in (page.load, side.image.change, side.model.change):
        # The line is made after the count, of the dials as they are then: they may have been turned meanwhile.
        measured = event(measure, [side.image, side.model], [side.image, total], **PRIVATE)
        measured.then(turned, [total, *dials], budget, **AT_ONCE)
    side.percent.input(lambda: BY_HAND, None, side.mode, **AT_ONCE)
    for event in (side.mode.change, side.percent.change, side.use.change):
        event(turned, [total, *dials], budget, **AT_ONCE)
