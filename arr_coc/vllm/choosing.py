"""What a front end of vLLM sends to its engine: of each image the kept windows, and where they stand. Knows no vLLM.

P patches of an image, K kept cells, X values of a patch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep, check_keep
from arr_coc.qwen.answers import ImageSelection
from arr_coc.qwen.chooser import Chooser
from arr_coc.qwen.memory import Memory
from arr_coc.qwen.request import cells_of
from arr_coc.qwen.vision import glance_rows, under_centres, unpatchify

Patches = Callable[[int], tuple[Tensor, Tensor]]  # the rows [P, X] and the grid [1, 3] of an image, by its number


@dataclass(frozen=True, slots=True)
class Windows:
    """One image on its way to the engine: its kept windows, and after them a small copy for those to attend to."""

    rows: Tensor  # [R, X]: a multiple of the patches of a cell
    places: Tensor  # [R]: the patch of the whole image where each stands
    grid: Tensor  # [3]: of the whole image, in patches
    kept: Tensor  # [K]: cells, increasing


def read_dial(given: Mapping[str, Any], default: Keep) -> Keep:
    """`keep` of a request's mm_processor_kwargs, which may hold nothing else. JavaScript's plain 1 is all."""
    if others := sorted(set(given) - {"keep"}):
        raise ValueError(f"mm_processor_kwargs: {', '.join(others)[:100]}: give keep alone")
    keep = given.get("keep", default)
    return check_keep(1.0 if type(keep) is int and keep == 1 else keep)


class FrontChooser:
    """Chooses for requests as a front end has them: ids with one placeholder an image, and patches."""

    def __init__(self, chooser: Chooser) -> None:
        """Refuses settings under which something else than windows of an image would go to the engine."""
        self.chooser, self.memory = chooser, Memory()
        config, selector = chooser.arr_coc_config, chooser.selector
        if chooser.encoding != "sparse" or selector.resizes or selector.reads_evidence:
            how = f"selector {selector.name!r} with encoding {chooser.encoding!r}: vLLM takes windows alone"
            raise ValueError(f"{how}, chosen before the ViT; leave --selector and --encoding out")
        if config.position_policy != "original":
            raise ValueError(f"position_policy={config.position_policy!r}: vLLM is given the original positions alone")

    def about(self) -> str:
        """What it takes, in a line."""
        held = {tensor.data_ptr(): tensor.nbytes for tensor in (*self.chooser.parameters(), *self.chooser.buffers())}
        layers = len(self.chooser.model.model.language_model.layers) if self.chooser.selector.first_look else 0
        parts = f"vision encoder, embedding table, {f'{layers} decoder layers' if layers else 'adapter'}"
        size = f"{sum(held.values()) / 1e9:.2f} GB on {self.chooser.device}"
        return f"ARR-COC chooses by {self.chooser.selector.name} with {size} beside the engine ({parts})"

    def windows(self, ids: Sequence[int], names: Sequence[str], patches: Patches, keep: Keep) -> list[Windows] | None:
        """Of all images of a request, chosen together; None where all of all is kept.

        `names` stand for the images' content: what was made of an image is remembered under its name.
        """
        seen = [self._seen(name, image, patches) for image, name in enumerate(names)]
        grids = torch.cat([grid for _, grid, _ in seen])
        inputs = {
            "input_ids": self._expanded(ids, grids),
            "pixel_values": seen[0][0][:0],  # read by selectors that choose after the ViT alone
            "image_grid_thw": grids,
            "original_image": [picture for _, _, picture in seen],
        }
        chosen = self.chooser.choose(inputs, keep=keep)
        if all(one.cells_kept == one.tokens_total for one in chosen):
            return None
        return [self._cut(*one, selection) for one, selection in zip(seen, chosen, strict=True)]

    def _seen(self, name: str, image: int, patches: Patches) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, grid and picture [3, h, w] of an image."""
        found = self.memory.get(name)
        if found is None:
            rows, grid = patches(image)
            geometry, normal = self.chooser.geometry, rows.float()
            if rows.dtype == torch.uint8:
                mean, std = self._byte_scale()
                normal = ((rows.unflatten(1, (3, -1)) - mean) / std).flatten(1)
            (cells,) = cells_of(grid, geometry.merge)
            found = (rows, grid, unpatchify(normal, cells, geometry))
            self.memory.put(name, found)
        rows, grid, picture = found
        return rows, grid, picture

    def _byte_scale(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of colours in bytes, in the very order in which the image processor computes them."""
        images = self.chooser.processor.image_processor
        mean, std = (torch.tensor(values).view(3, 1) for values in (images.image_mean, images.image_std))
        return mean * (1.0 / images.rescale_factor), std * (1.0 / images.rescale_factor)

    def _expanded(self, ids: Sequence[int], grids: Tensor) -> Tensor:
        """The prompt with as many placeholders as the images have cells."""
        token = self.chooser.model.config.image_token_id
        cells = (grids.prod(-1) // self.chooser.geometry.window).tolist()
        if ids.count(token) != len(cells):
            found = f"{ids.count(token)} image placeholders for {len(cells)} images"
            raise ValueError(f"{found}: leave <|image_pad|> out of texts")
        counts = iter(cells)
        return torch.tensor([[one for one in ids for _ in range(next(counts) if one == token else 1)]])

    def _cut(self, rows: Tensor, grid: Tensor, picture: Tensor, chosen: ImageSelection) -> Windows:
        """The kept windows, and the small copy where they are to attend to one."""
        geometry, looker, kept = self.chooser.geometry, self.chooser.looker(), chosen.kept.cpu()
        places = (kept.unsqueeze(1) * geometry.window + torch.arange(geometry.window)).flatten()
        cut = rows[places]
        if looker.gives_context:
            cut = cut.float()  # for all images alike, so that the engine can take them together
        if small := looker.context_grid(chosen.grid, chosen.cells_kept):
            copy = glance_rows(picture.unsqueeze(0), small, geometry)[0]
            if rows.dtype == torch.uint8:
                mean, std = self._byte_scale()
                copy = (copy.unflatten(1, (3, -1)) * std + mean).flatten(1)
            cut = torch.cat([cut, copy])
            places = torch.cat([places, under_centres(small, chosen.grid, geometry.merge, places.device)])
        return Windows(cut, places, grid[0], kept)


@lru_cache(maxsize=4)
def front_chooser(source: str, selector: str, encoding: str | None, device: str | None) -> FrontChooser:
    """One for all processors of a process: they hold the same weights."""
    return FrontChooser(Chooser.from_pretrained(source, selector=selector, encoding=encoding, device=device))
