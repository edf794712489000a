"""Reading images that users hand in: few formats, limits checked on the header, orientation applied, plain RGB out.

What its size does not vouch for is decoded in a process of its own (`box`); a server has everything decoded there.
"""

import io
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Union

import numpy as np
from PIL import Image

from arr_coc.images import box
from arr_coc.images.decoding import decode, upright_rgb
from arr_coc.images.headers import ORIENTATION, check_picture, check_size, one_line, orientation_of, read_header

if TYPE_CHECKING:  # who only reads needs no torch
    from torch import Tensor

MOST_BYTES = 20 * 1024 * 1024
MOST_IMAGES = 8
MOST_PIXELS_IN_ALL = 100_000_000  # of the images of one question, before they are resized

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # of a page or a server; a path may have halved the slashes

ImageLike = Union[str, os.PathLike[str], bytes, bytearray, IO[bytes], Image.Image, np.ndarray, "Tensor"]


def read_image(image: ImageLike, boxed: bool = False, name: str = "") -> Image.Image:
    """A path, a file or its bytes, a Pillow image or values -> RGB, upright, transparency on white.

    Values are an array or a tensor, grey or with 1, 3 or 4 channels first or last, of bytes or of fractions. `boxed`
    decodes in a process of its own even what looks harmless, as is right for what strangers send. `name` is what
    messages call it; if left out, a file by its name without the folder.
    """
    if isinstance(image, (str, os.PathLike)):
        return _from_path(image, boxed, name)
    if not isinstance(image, Image.Image) and hasattr(image, "read"):
        image = image.read(MOST_BYTES + 1)
    if isinstance(image, (bytes, bytearray)):
        return _from_file(io.BytesIO(image), len(image), name or "the image", boxed)
    if isinstance(image, np.ndarray) or hasattr(image, "detach"):
        image = _from_values(image)
    if not isinstance(image, Image.Image):
        ways = "a path, a file opened to read bytes, a Pillow image, an array or a tensor"
        raise ValueError(f"cannot read a {type(image).__name__} as an image: give {ways}")
    check_size(image.width, image.height, "the image")
    with one_line("the image"):
        return upright_rgb(_of_8_bits(image) if image.mode == "F" else image, _orientation(image))


def read_images(images: ImageLike | Sequence[ImageLike], names: Sequence[str] = ()) -> list[Image.Image]:
    """One image or several, at most 8, of 100 megapixels together; `names` are for messages, one for each."""
    several: Sequence[ImageLike] = images if isinstance(images, (list, tuple)) else [images]  # type: ignore[list-item]
    if not 1 <= len(several) <= MOST_IMAGES:
        raise ValueError(f"{len(several)} images: give 1 to {MOST_IMAGES}")
    read: list[Image.Image] = []
    for image, name in zip(several, names or [""] * len(several), strict=True):
        read.append(read_image(image, name=name))
        if sum(one.width * one.height for one in read) > MOST_PIXELS_IN_ALL:
            most = MOST_PIXELS_IN_ALL // 10**6
            raise ValueError(f"image {len(read)} of {len(several)}: over {most} megapixels in all; resize them first")
    return read


def byte_tensor(image: Image.Image) -> "Tensor":
    """uint8 `[3, h, w]` of an RGB image."""
    import torch

    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def image_tensor(image: "ImageLike | Tensor") -> "Tensor":
    """`[3, h, w]` in [0, 1] from a tensor already so (or uint8), or from anything `read_image` takes."""
    import torch

    if not isinstance(image, torch.Tensor):
        return byte_tensor(read_image(image)).float() / 255
    if image.ndim != 3 or image.shape[0] != 3 or image.numel() == 0:
        raise ValueError(f"image tensor of shape {tuple(image.shape)}: give [3, height, width]")
    return image.float() / 255 if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _from_path(source: str | os.PathLike[str], boxed: bool, name: str) -> Image.Image:
    path = Path(source)
    name = shown(name or path.name or str(path))
    if ADDRESS.match(str(source)):
        raise ValueError(f"{name}: an address is not fetched; download the image and give the file")
    try:
        is_file = stat.S_ISREG(os.stat(path).st_mode)  # first: opening a pipe would wait for ever
    except (OSError, ValueError):
        raise ValueError(f"{name}: no such image file; check the path") from None
    if not is_file:
        raise ValueError(f"{name}: no such image file, but a folder or a device; give the image itself")
    try:
        file = open(path, "rb")  # noqa: SIM115  (its own message, and closed below)
    except OSError as error:
        raise ValueError(f"{name}: the image cannot be opened ({error.strerror}); check who may read it") from None
    with file:
        return _from_file(file, os.fstat(file.fileno()).st_size, name, boxed)


def _from_file(file: IO[bytes], size: int, name: str, boxed: bool) -> Image.Image:
    if size > MOST_BYTES:
        raise ValueError(f"{name}: {size / 2**20:.0f} MB, at most {MOST_BYTES // 2**20} MB; save it smaller")
    with one_line(name):
        picture = read_header(file)
        check_picture(picture, name)
        return box.BOX.decode(picture, name) if boxed or picture.is_risky else decode(picture, name)


def shown(name: str) -> str:
    """A file's name as part of one line: nothing in it can break the line or steer a terminal."""
    name = "".join(one if one.isprintable() else "?" for one in name)
    return name if len(name) <= 100 else f"{name[:60]}...{name[-30:]}"


def _from_values(values: Any) -> Image.Image:
    """Channels are where there are 1, 3 or 4: of a tensor rather in front, of an array rather at the end."""
    shape, first, array = tuple(values.shape), hasattr(values, "detach"), values
    if first:
        array = (values.detach().float() if values.is_floating_point() else values).cpu().numpy()
    is_bytes, is_fractions = array.dtype == np.uint8, array.dtype.kind == "f"
    ends = [place for place in ((0, -1) if first else (-1, 0)) if len(shape) == 3 and shape[place] in (1, 3, 4)]
    if not (is_bytes or is_fractions) or not (len(shape) == 2 or ends) or array.size == 0:
        wanted = "bytes or fractions of shape (height, width), (height, width, 3) or (3, height, width)"
        raise ValueError(f"values of {values.dtype} {shape}: give {wanted}")
    if ends:
        array = np.moveaxis(array, ends[0], -1)
    check_size(array.shape[1], array.shape[0], "the image")
    if is_fractions:
        if not (array.min() >= 0 and array.max() <= 1):
            raise ValueError("values of an image as fractions are 0 to 1: divide by the largest, or give bytes")
        array = (array * 255 + 0.5).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2:] == (1,) else array))


def _orientation(image: Image.Image) -> int:
    """Of an image that the caller opened or made."""
    if exif := image.info.get("exif"):
        return orientation_of(exif)
    return int(image.getexif().get(ORIENTATION, 0))


def _of_8_bits(image: Image.Image) -> Image.Image:
    """Fractions: white is the largest, but at least 1."""
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    top = max(1.0, float(values.max()))
    return Image.fromarray((values.clip(0, top) * (255 / top)).astype(np.uint8))
