"""Reading images that users hand in: few formats, limits checked on the header, orientation applied, plain RGB out."""

import os
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_PIXELS = 50_000_000
MOST_BYTES = 20 * 1024 * 1024
MOST_ASPECT = 200  # Qwen's resizing refuses more
MOST_IMAGES = 8

ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray


def read_image(image: ImageLike) -> Image.Image:
    """A path, a Pillow image or a uint8 array `[h, w, 3]` -> RGB, upright, transparency on white."""
    name = (Path(image).name or str(image)) if isinstance(image, (str, os.PathLike)) else "the image"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows, and is lower
            return _read(image, name)
    except Image.DecompressionBombError:
        raise ValueError(f"{name}: more pixels than any allowed image; resize it first") from None
    except UnidentifiedImageError:
        raise ValueError(f"{name}: not a readable {', '.join(FORMATS)} image; convert it first") from None
    except (OSError, SyntaxError, MemoryError, OverflowError, EOFError, IndexError, struct.error) as error:
        raise ValueError(f"{name}: the image is damaged ({type(error).__name__}); export it again") from None


def _read(image: ImageLike, name: str) -> Image.Image:
    if isinstance(image, (str, os.PathLike)):
        return _open(Path(image))
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            raise ValueError(f"array of {image.dtype} {image.shape}: give uint8 of shape (height, width, 3)")
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise ValueError(f"cannot read a {type(image).__name__} as an image: give a path, a Pillow image or an array")
    _check_size(image.width, image.height, name)
    return _to_rgb(image)


def read_images(images: ImageLike | Sequence[ImageLike]) -> list[Image.Image]:
    """One image or several, at most 8."""
    several: Sequence[ImageLike] = images if isinstance(images, (list, tuple)) else [images]  # type: ignore[list-item]
    if not 1 <= len(several) <= MOST_IMAGES:
        raise ValueError(f"{len(several)} images: give 1 to {MOST_IMAGES}")
    return [read_image(image) for image in several]


def image_tensor(image: ImageLike | Tensor) -> Tensor:
    """`[3, h, w]` in [0, 1] from a tensor already so (or uint8), or from anything `read_image` takes."""
    if not isinstance(image, Tensor):
        pixels = torch.from_numpy(np.array(read_image(image)))
        return pixels.permute(2, 0, 1).float() / 255
    if image.ndim != 3 or image.shape[0] != 3 or image.numel() == 0:
        raise ValueError(f"image tensor of shape {tuple(image.shape)}: give [3, height, width]")
    return image.float() / 255 if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _open(path: Path) -> Image.Image:
    name = path.name or str(path)
    if not path.is_file():
        raise ValueError(f"{name}: no such image file; check the path")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(
            f"{name}: {path.stat().st_size / 2**20:.0f} MB, at most {MOST_BYTES // 2**20} MB; save it smaller"
        )
    with Image.open(path, formats=FORMATS) as image:
        _check_size(image.width, image.height, name)
        return _to_rgb(image)


def _check_size(width: int, height: int, name: str) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"{name}: {width}x{height} has no pixels")
    if width * height > MOST_PIXELS:
        raise ValueError(f"{name}: {width}x{height} is over {MOST_PIXELS // 10**6} megapixels; resize it first")
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise ValueError(f"{name}: {width}x{height} is longer than {MOST_ASPECT} to 1; crop it first")


def _to_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I;16", "I;16B", "I;16L", "I", "F"):
        values = np.asarray(image, dtype=np.float64)
        top = 65535 if image.mode.startswith("I") else max(1.0, float(np.nan_to_num(values).max()))
        image = Image.fromarray((np.nan_to_num(values).clip(0, top) * (255 / top)).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
