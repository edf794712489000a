"""scenes: the synthetic world. A seed gives a description, with questions and evidence; that gives pixels.

    scene = make_scene(7, "train", (512, 512))
    image = draw_scene(scene)                      # uint8 [512, 512, 3]
    scene.questions[0].text, scene.questions[0].answer, scene.questions[0].evidence

Needs numpy and Pillow, and no torch.
"""

from arr_coc_scenes.drawing import draw_scene
from arr_coc_scenes.making import FAMILIES, make_scene
from arr_coc_scenes.types import Box, Element, Glyph, Question, Scene
from arr_coc_scenes.words import COLOURS, THINGS, world_words

__all__ = [
    "COLOURS",
    "FAMILIES",
    "THINGS",
    "Box",
    "Element",
    "Glyph",
    "Question",
    "Scene",
    "draw_scene",
    "make_scene",
    "world_words",
]
