"""Looking twice: where the model itself looks at a small copy, times what there is to see. Nothing is trained.

B images with one grid, R rows (a question about an image), H W grid of cells, N = H * W, S = 3 ways of knowing.

    participatory   attention of the prompt's last token over a small copy, in the first layers of the language model
    information     entropy inside the cells of the full-size textures
    perspectival    saliency of the full-size textures

They are multiplied: what the model looks at *and* what holds something. A product removes attention that falls on empty
ground, as the sinks of large models do, and detail that nobody asked for; a sum keeps both.
"""

import torch
from torch import Tensor

from arr_coc.attending import TokenAllocator
from arr_coc.balancing import cautious, multiply
from arr_coc.config import SCORERS, ARRCOCConfig, FirstLook
from arr_coc.knowing import InformationScorer, saliency
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Balance, Judgement, TexturePyramid
from arr_coc.selectors.base import Selector, View, register
from arr_coc.texture import texture_pyramid
from arr_coc.timing import Stopwatch

TENSIONS = (0.5, 0.0, 0.0)  # particularize, explore, diversify
STEEPNESS = 2.0
INFORMATION = 1.5
PERSPECTIVAL = 0.0


class LookTwiceSelector(Selector):
    name = "look_twice"
    pays = "ViT and the first LM layers: a small copy; then ViT: the kept windows when sparse; LM: the kept tokens"
    reads_pixels = True
    reads_tokens = False
    untrained_notice = "no trained adapter: the model looks twice, first at a small copy"

    def __init__(self, config: ARRCOCConfig, first_look: FirstLook, information: float, perspectival: float) -> None:
        super().__init__(TokenAllocator(config.min_tokens, config.max_tokens, STEEPNESS))
        self.first_look = first_look
        self.exponents = (information, perspectival, 1.0)
        self.channels = config.texture_channels
        self.information = InformationScorer(config.texture_channels)

    @torch.no_grad()
    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        assert view.attended_BN is not None
        with torch.autocast(view.attended_BN.device.type, enabled=False):
            with stopwatch.part("texture"):
                pyramid = view.pyramid
                if pyramid is None:
                    assert view.image_B3hw is not None
                    pyramid = texture_pyramid(view.image_B3hw, view.grid, self.channels)
            with stopwatch.part("knowing"):
                blind_RSHW, spread_R = self._blind(pyramid, view.image_R)
                attended_RHW = view.attended_BN.view(-1, *view.grid)
                # Nobody asked: every cell is wanted alike, and the other two decide.
                wanted_RHW = torch.where(view.question.asked_B.view(-1, 1, 1), attended_RHW, torch.ones_like(attended_RHW))
                scores_RSHW = torch.cat([blind_RSHW, wanted_RHW.unsqueeze(1)], dim=1)
            with stopwatch.part("balancing"):
                exponents_RS = attended_RHW.new_tensor(self.exponents).expand(scores_RSHW.shape[0], -1)
                relevance_RHW = multiply(scores_RSHW, exponents_RS)
                tensions_RT = attended_RHW.new_tensor(TENSIONS).expand(scores_RSHW.shape[0], -1)
                balance = cautious(Balance(relevance_RHW, exponents_RS, tensions_RT), spread_R)
        peak_RS11 = scores_RSHW.amax((2, 3), keepdim=True).clamp(min=1e-12)
        maps = dict(zip(SCORERS, (scores_RSHW / peak_RS11).unbind(1), strict=True))
        # Attention is shared between images as it is; the map of each is stretched to its own peak.
        mass_R = (scores_RSHW[:, -1] * blind_RSHW[:, 0]).sum((1, 2))
        return Judgement(maps, balance, mass_R)

    def _blind(self, pyramid: TexturePyramid, image_R: Tensor | None) -> tuple[Tensor, Tensor]:
        """Information and saliency of each row's image, `[R, 2, H, W]`, and how unevenly its detail lies."""
        maps_B2HW = torch.stack([self.information(pyramid), saliency(pyramid)], dim=1)
        if image_R is None:
            return maps_B2HW, pyramid.spread_B
        return maps_B2HW[image_R], pyramid.spread_B[image_R]


@register("look_twice")
def make(
    config: ARRCOCConfig,
    layer: ARRCOCLayer,
    least: int = 64,
    most: int = 256,
    depth: float = 4 / 7,
    information: float = INFORMATION,
    perspectival: float = PERSPECTIVAL,
) -> Selector:
    return LookTwiceSelector(config, FirstLook(least, most, depth), information, perspectival)
