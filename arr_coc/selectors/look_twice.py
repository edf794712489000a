"""Looking twice: where the model itself looks at a small copy, times what there is to see. Nothing is trained.

B images with one grid, R rows (a question about an image), H W grid of cells, N = H * W, S = 3 ways of knowing.

    participatory   attention of the prompt's last token over a small copy, in the first layers of the language model
    information     entropy inside the cells of the full-size textures
    perspectival    contrast in the full-size textures; where nobody asks, where people would look or read

They are multiplied: what the model looks at *and* what holds something. A product removes attention that falls on empty
ground, as the sinks of large models do, and detail that nobody asked for; a sum keeps both.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.attending import TokenAllocator
from arr_coc.balancing import above_ground, cautious, multiply
from arr_coc.config import DEPTH, SCORERS, ARRCOCConfig, FirstLook, Timing, channel_names
from arr_coc.knowing import inside_bits, saliency, stands_out, with_gaze
from arr_coc.layer import ARRCOCLayer
from arr_coc.records import Balance, Judgement, TexturePyramid
from arr_coc.selectors.base import Selector, Tensors, View, registered
from arr_coc.texture import texture_pyramid
from arr_coc.timing import Stopwatch

TENSIONS = (1.0, 0.0, 0.0)  # particularize, explore, diversify
STEEPNESS = 4.0  # of the mass that "auto" covers: 19 % of the cells of mini's scenes, 12 % for titles, 28 % to describe
EXPONENTS = (1.0, 0.0, 1.0)  # of information, perspectival and participatory where something is asked
UNASKED = (0.5, 1.0, 0.0)  # where nobody asks, what is there and what stands out decide
GATHERED = 9.0  # peak over mean of gaze that gathers somewhere: 95 of 100 photographs, 1 of 6 without structure
OVER_TIME = Timing()
REACH, MOST_REACH = 1, 8  # cells each way whose attention a cell shares; 0: its own alone


@registered
class LookTwiceSelector(Selector):
    name = "look_twice"
    pays = "ViT and the first LM layers: a small copy; then ViT: the kept windows when sparse; LM: the kept tokens"
    reads_pixels = True
    sees = True
    channels = 13  # the default textures, whatever an adapter beside it reads: its figures were measured with them
    untrained_notice = "no trained adapter: the model looks twice, first at a small copy"

    def __init__(
        self,
        config: ARRCOCConfig,
        layer: ARRCOCLayer | None = None,
        least: int = 64,
        most: int = 256,
        depth: float = DEPTH,
        information: float = EXPONENTS[0],
        perspectival: float = EXPONENTS[1],
        steepness: float = STEEPNESS,
        *,
        reach: int = REACH,
        decay: float = OVER_TIME.decay,
        repeated: float = OVER_TIME.repeated,
        enough: float = OVER_TIME.enough,
        motion: float = OVER_TIME.motion,
    ) -> None:
        super().__init__(TokenAllocator(config.min_tokens, config.max_tokens, steepness))
        if not (information >= 0 and perspectival >= 0):
            raise ValueError(f"exponents {information} and {perspectival}: expected 0 or more")
        if reach not in range(MOST_REACH + 1):
            raise ValueError(f"reach={reach}: expected 0 to {MOST_REACH} cells each way that lend their attention")
        self.first_look, self.timing = FirstLook(least, most, depth), Timing(decay, repeated, enough, motion)
        self.exponents, self.reach = (information, perspectival, EXPONENTS[2]), reach
        self.fixed_3S: Tensor  # exponents where something is asked and where not; tensions
        self.register_buffer("fixed_3S", torch.tensor([self.exponents, UNASKED, TENSIONS]), persistent=False)

    def judge(self, view: View, stopwatch: Stopwatch) -> Judgement:
        pyramid = view.pyramid
        if pyramid is None:
            assert view.image_B3hw is not None
            pyramid = self.see(view.image_B3hw, view.grid, None, stopwatch, bool(view.question.asked_B.all()))
        with stopwatch.part("knowing"):
            return self.judge_seen(self.seen(pyramid), view)

    def channels_for(self, asked: bool) -> int | tuple[str, ...]:
        """Learned gaze is heard only where nobody asks, and costs a third of the textures: elsewhere it is left out."""
        return self.channels if asked else with_gaze(self.channels)

    def see(
        self,
        image_B3hw: Tensor,
        grid: tuple[int, int],
        glance_BXHW: Tensor | None,
        stopwatch: Stopwatch,
        asked: bool = True,
    ) -> TexturePyramid:
        with stopwatch.part("texture"):
            return texture_pyramid(image_B3hw, grid, self.channels_for(asked))

    def judge_seen(self, seen: Tensors, view: View) -> Judgement:
        """The rest of `judge`, from what was `seen` before."""
        assert view.attended_BN is not None
        return self.weigh(seen, view.attended_BN.view(-1, *view.grid), view.question.asked_B, view.image_R)

    @torch.no_grad()
    def seen(self, pyramid: TexturePyramid) -> Tensors:
        """Information and what stands out, for which no question is needed. Always in fp32, as all that follows."""
        with torch.autocast(pyramid.spread_B.device.type, enabled=False):
            own = pyramid.only(channel_names(self.channels))
            held_BHW = inside_bits(own, own.names).mean(1)
            blind_B2HW = torch.stack([above_ground(held_BHW), saliency(own)], dim=1)
            found = {"blind": blind_B2HW, "spread": pyramid.spread_B}
            if pyramid.names == self.channels_for(asked=False):
                gaze_BN = pyramid.cell_BCHW[:, pyramid.names.index("saliency")].flatten(1)
                found["stands_out"] = stands_out(pyramid)
                found["gathered"] = gaze_BN.amax(1) / gaze_BN.mean(1).clamp(min=1e-12)
        return found

    @torch.no_grad()
    def weigh(self, seen: Tensors, attended_RHW: Tensor, asked_R: Tensor, image_R: Tensor | None = None) -> Judgement:
        """The judgement from what was seen in images, and from where the model looked for each row."""
        with torch.autocast(attended_RHW.device.type, enabled=False):
            if image_R is not None:
                seen = {name: one[image_R] for name, one in seen.items()}
            blind_B2HW, spread_R = seen["blind"], seen["spread"]
            if "stands_out" in seen:  # some row asks nothing
                gathered_R, unasked_R11 = seen["gathered"] > GATHERED, ~asked_R.view(-1, 1, 1)
                # Detail lies everywhere in a third of all photographs, and still people know where to look.
                spread_R = spread_R.masked_fill(~asked_R & gathered_R, torch.inf)
                out_RHW = torch.where(unasked_R11, seen["stands_out"], blind_B2HW[:, 1])
                blind_B2HW = torch.stack([blind_B2HW[:, 0], out_RHW], dim=1)
            asked_R1, even_RHW = asked_R.unsqueeze(-1), torch.ones_like(attended_RHW)
            wanted_RHW = torch.where(asked_R1.unsqueeze(-1), attended_RHW, even_RHW)
            asked_S, unasked_S, tensions_T = self.fixed_3S
            exponents_RS = torch.where(asked_R1, asked_S, unasked_S)
            held_RHW = blind_B2HW[:, 0] ** exponents_RS[:, :1].unsqueeze(-1)
            lending_RHW = torch.where(asked_R1.unsqueeze(-1), held_RHW, even_RHW)
            near_RHW = with_neighbours(wanted_RHW, lending_RHW, self.reach)
            scores_RSHW = torch.cat([blind_B2HW, near_RHW.unsqueeze(1)], dim=1)
            tensions_RT = tensions_T.expand(scores_RSHW.shape[0], -1)
            balance = cautious(Balance(multiply(scores_RSHW, exponents_RS), exponents_RS, tensions_RT), spread_R)
            peak_RS11 = scores_RSHW.amax((2, 3), keepdim=True).clamp(min=1e-12)
            maps = dict(zip(SCORERS, (scores_RSHW / peak_RS11).unbind(1), strict=True))
            # A map is stretched to its own peak; attention before that is shared between the images of a prompt.
            mass_R = (wanted_RHW * blind_B2HW[:, 0]).sum((1, 2))
        return Judgement(maps, balance, mass_R)


def with_neighbours(attended_RHW: Tensor, lending_RHW: Tensor, reach: int = REACH) -> Tensor:
    """Geometric mean of a cell's attention and the most that cells in reach lend: things and words lie over several.

    A cell of the small copy lies over four or more of the image, and attention is drawn to a part of what is meant. A
    cell lends its attention as far as it holds something (`lending_RHW`, 0 or more, in any unit): what falls on empty
    ground, as on sinks, is not handed on to what lies beside it.
    """
    lent_RHW = attended_RHW * lending_RHW / lending_RHW.amax((1, 2), keepdim=True).clamp(min=1e-12)
    return (attended_RHW * F.max_pool2d(lent_RHW.unsqueeze(1), 2 * reach + 1, stride=1, padding=reach)[:, 0]).sqrt()
