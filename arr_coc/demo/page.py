"""The page: the left side, and a tab for each way to look at an answer."""

import gradio as gr

from arr_coc.demo.ask import ask_tab
from arr_coc.demo.compare import compare_tab
from arr_coc.demo.left import left_side
from arr_coc.demo.microscope import microscope_tab
from arr_coc.demo.models import Models
from arr_coc.demo.parts import AT_ONCE
from arr_coc.demo.scenes import scenes_tab

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
