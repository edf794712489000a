"""ARR-COC itself as a selector: textures and the question, before the vision encoder."""

from dataclasses import replace

from arr_coc.config import ARRCOCConfig
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Judgement, TexturePyramid
from arr_coc.selectors.base import Selector, View, register
from arr_coc.timing import Stopwatch


class ARRCOCSelector(Selector):
    name = "arr_coc"
    pays = "ViT: the kept windows when sparse, all when dense, and a small image for a glance; LM: the kept tokens"
    reads_pixels = True
    reads_tokens = False
    untrained_notice = "the ARR-COC layer is untrained: its choice hardly depends on the question"

    def __init__(self, layer: ARRCOCLayer) -> None:
        super().__init__(layer.attending)
        self.layer, self.channels = layer, layer.texture_channels
        self.reads_glance = layer.sight.glance is not None

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        assert view.image_B3hw is not None
        return self.layer.judge(view.image_B3hw, view.question, view.grid, stopwatch, view.glance_BXHW, view.image_R)

    def judge_textures(self, pyramid: TexturePyramid, view: View) -> Judgement:
        """The rest of `judge`, from textures that were made before."""
        seen = replace(pyramid, seen_BGHW=self.layer.sight(pyramid, view.glance_BXHW))
        return self.layer.weigh(seen, view.question)


@register("arr_coc")
def make(config: ARRCOCConfig, layer: ARRCOCLayer) -> Selector:
    return ARRCOCSelector(layer)
