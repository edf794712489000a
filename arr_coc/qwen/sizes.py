"""Sizes of images: what a processor resizes them to, and within which limits of pixels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from transformers.image_utils import SizeDict
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from arr_coc.images.clips import Clip

APART = 4  # times: between narrower limits not every shape has a size of whole cells
MOST_RESIZED = 2**26  # pixels of an image as the model sees it; Qwen3-VL's own limit is a quarter


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """The sizes of images that a processor leaves as they are: whole cells, within its limits of pixels."""

    cell: int  # px on a side
    least: int  # pixels of an image
    most: int

    @classmethod
    def of(cls, processor: Any) -> "ImageSizes":
        images = processor.image_processor
        return cls(images.patch_size * images.merge_size, images.size["shortest_edge"], images.size["longest_edge"])

    def nearest(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) in px that an image of that size is resized to."""
        kept: tuple[int, int] = smart_resize(height, width, self.cell, min_pixels=self.least, max_pixels=self.most)
        return kept

    def settled(self, height: int, width: int) -> tuple[int, int]:
        """As `nearest`, until it is left as it is: long images within small limits are resized more than once."""
        size = self.nearest(height, width)
        while (again := self.nearest(*size)) != size:
            size = again
        return size


def fit_images(processor: Any, images: Sequence[Image.Image | Clip]) -> list[Image.Image | Clip] | None:
    """The images as the processor will resize them, bit for bit; None where it resizes by other means than Pillow.

    Clips are left as they are: they were resized as they were read.
    """
    own = processor.image_processor
    if not isinstance(own, Qwen2VLImageProcessorPil) or not own.do_resize:
        return None
    sizes = ImageSizes.of(processor)

    def fitted(image: Image.Image) -> Image.Image:
        return image.resize(sizes.nearest(image.height, image.width)[::-1], own.resample)

    return [image if isinstance(image, Clip) else fitted(image) for image in images]


def limit_pixels(processor: Any, least: int, most: int) -> Any:
    """The processor with other limits of the pixels of an image; 0 leaves its own."""
    own = ImageSizes.of(processor)
    most = most or max(own.most, APART * least)
    least = least or min(own.least, most // APART)
    if not (own.cell**2 <= most <= MOST_RESIZED and APART * least <= most):
        room = f"{own.cell**2} to {MOST_RESIZED} at most, and {APART} times the least"
        raise ValueError(f"min_pixels={least}, max_pixels={most}: expected {room}")
    if (least, most) != (own.least, own.most):
        processor.image_processor.size = SizeDict(shortest_edge=least, longest_edge=most)
    return processor
