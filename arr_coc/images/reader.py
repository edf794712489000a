"""Reading images that users hand in: few formats, limits checked on the header, orientation applied, plain RGB out.

Beside the finished image (4 bytes a pixel in memory) at most 4 bytes a pixel are held, the decoded image or what its
decoder needs: what must be converted is converted strip by strip, and what would need more is read otherwise. A WebP
alone costs up to 17, since Pillow reads it as an animation; so it may only be as large as costs no more than 50
megapixels of another format, 23 megapixels.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image, ImageFile
from torch import Tensor

from arr_coc.images.headers import MOST_PIXELS, Damaged, NotAnImage, Refused, check_size, read_header

FORMATS = ("JPEG", "PNG", "WEBP")
MOST_BYTES = 20 * 1024 * 1024
MOST_IMAGES = 8
MOST_COST = 8  # bytes of memory a pixel, the finished image among them; a WebP is bounded by its size instead
SPARE = 8 * 2**20  # bytes that a decoder may take beyond that
PILLOWS_WEBP = 17  # bytes a pixel at most: two canvases, the frame, the image
STRIP = 2**18  # pixels that are converted at a time; small enough to cost nothing, large enough to be quick

ORIENTATION = 0x0112  # the tag of EXIF
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What sets an image upright, by its orientation tag."""
DEEP = ("I;16", "I;16B", "I;16L", "I", "F")  # modes with more than 8 bits a value

ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # of a page or a server; a path may have halved the slashes

ImageLike = str | os.PathLike[str] | Image.Image | np.ndarray


def read_image(image: ImageLike) -> Image.Image:
    """A path, a Pillow image or a uint8 array `[h, w, 3]` -> RGB, upright, transparency on white."""
    if isinstance(image, (str, os.PathLike)):
        return _from_file(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
            raise ValueError(f"array of {image.dtype} {image.shape}: give uint8 of shape (height, width, 3)")
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        raise ValueError(f"cannot read a {type(image).__name__} as an image: give a path, a Pillow image or an array")
    check_size(image.width, image.height, "the image")
    with _one_line("the image"):
        return _upright_rgb(image)


def read_images(images: ImageLike | Sequence[ImageLike]) -> list[Image.Image]:
    """One image or several, at most 8."""
    several: Sequence[ImageLike] = images if isinstance(images, (list, tuple)) else [images]  # type: ignore[list-item]
    if not 1 <= len(several) <= MOST_IMAGES:
        raise ValueError(f"{len(several)} images: give 1 to {MOST_IMAGES}")
    return [read_image(image) for image in several]


def byte_tensor(image: Image.Image) -> Tensor:
    """uint8 `[3, h, w]` of an RGB image."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def image_tensor(image: ImageLike | Tensor) -> Tensor:
    """`[3, h, w]` in [0, 1] from a tensor already so (or uint8), or from anything `read_image` takes."""
    if not isinstance(image, Tensor):
        return byte_tensor(read_image(image)).float() / 255
    if image.ndim != 3 or image.shape[0] != 3 or image.numel() == 0:
        raise ValueError(f"image tensor of shape {tuple(image.shape)}: give [3, height, width]")
    return image.float() / 255 if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _from_file(source: str | os.PathLike[str]) -> Image.Image:
    path = Path(source)
    name = _shown(path)
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
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{name}: {size / 2**20:.0f} MB, at most {MOST_BYTES // 2**20} MB; save it smaller")
        with _one_line(name):
            return _decode(file, name)


def _decode(file: IO[bytes], name: str) -> Image.Image:
    """The size is checked twice: as we read the header, before anything is made of it, and as the decoder does."""
    header = read_header(file)
    check_size(header.width, header.height, name)
    pixels = header.width * header.height
    if header.format == "WEBP" and pixels * PILLOWS_WEBP > MOST_PIXELS * MOST_COST:
        raise Refused(f"{name}: {header.width}x{header.height} is too large for a WebP here; save it as PNG or JPEG")
    picture = header.picture()
    with Image.open(picture, formats=(header.format,)) as image:
        check_size(image.width, image.height, name)
        if (header.held + 4 - MOST_COST) * pixels <= SPARE:  # what its decoder holds, and the image that it makes
            return _upright_rgb(image, ours=True)
        if image.mode != "RGB":
            says = f"a progressive {image.mode} JPEG of {image.width}x{image.height} needs too much memory"
            raise Refused(f"{name}: {says}; save it as RGB or without 'progressive'")
    return _upright_rgb(_with_coarse_colours(picture), ours=True)


def _with_coarse_colours(file: IO[bytes]) -> Image.Image:
    """A JPEG with all of its brightness, its colours at half the size, as most JPEGs have them anyhow.

    A large progressive one that has its colours in full would cost 10 bytes a pixel: 6 are held until the end, and the
    image is 4. So it is read twice, each time into 1 byte a pixel.
    """
    colours = _half_size(file)
    file.seek(0)
    with Image.open(file, formats=("JPEG",)) as fine:
        fine.draft("L", fine.size)
        fine.load()
        width, height = fine.size
        rgb = Image.new("RGB", fine.size)
        rgb.info.update(fine.info)
        rows = max(1, STRIP // width)
        for y in range(0, height, rows):
            strip = fine.crop((0, y, width, min(y + rows, height)))
            box = (0, y / 2, width / 2, (y + strip.height) / 2)
            _, cb, cr = colours.resize(strip.size, Image.Resampling.BILINEAR, box).split()
            rgb.paste(Image.merge("YCbCr", (strip, cb, cr)).convert("RGB"), (0, y))
    return rgb


def _half_size(file: IO[bytes]) -> Image.Image:
    """A JPEG at half its width and height, rounded up, as YCbCr."""
    file.seek(0)
    with Image.open(file, formats=("JPEG",)) as image:
        image.draft("RGB", (image.width // 2, image.height // 2))
        return image.convert("YCbCr")


@contextlib.contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Whatever a decoder says of hostile bytes, the user is told in one line, without addresses and paths."""
    try:
        yield
    except (Refused, MemoryError):
        raise
    except NotAnImage:
        raise ValueError(f"{name}: not a readable {', '.join(FORMATS)} image; convert it first") from None
    except Damaged as error:
        raise ValueError(f"{name}: the image is damaged ({error}); export it again") from None
    except Exception as error:  # decoders fail in every way that there is
        raise ValueError(f"{name}: the image is damaged ({type(error).__name__}); export it again") from None


def _shown(path: Path) -> str:
    """A file's name as part of one line: nothing in it can break the line or steer a terminal."""
    name = "".join(one if one.isprintable() else "?" for one in path.name or str(path))
    return name if len(name) <= 100 else f"{name[:60]}...{name[-30:]}"


def _upright_rgb(image: Image.Image, ours: bool = False) -> Image.Image:
    """Never more than two images at once: one that is `ours` is given up as soon as it was converted."""
    image.load()
    turn = TURNS.get(_orientation(image))
    is_ready = image.mode == "RGB" and not _is_clear(image)
    if turn is not None and is_ready:
        return image.transpose(turn)
    if ours and is_ready and not isinstance(image, ImageFile.ImageFile):  # a file's image needs its file
        return image
    rgb = _to_rgb(image)
    if ours:
        image.close()
    return rgb if turn is None else rgb.transpose(turn)


def _is_clear(image: Image.Image) -> bool:
    """Whether some of it may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _orientation(image: Image.Image) -> Any:
    """The tag's value; damaged EXIF does not spoil a good picture."""
    try:
        return image.getexif().get(ORIENTATION)
    except Exception:  # a parser of hostile bytes, see `_one_line`
        return None


def _to_rgb(image: Image.Image) -> Image.Image:
    if not _is_clear(image) and image.mode not in DEEP:
        return image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    top = _top_value(image) if image.mode in DEEP else 0.0
    rows = max(1, STRIP // image.width)
    for y in range(0, image.height, rows):
        strip = image.crop((0, y, image.width, min(y + rows, image.height)))
        rgb.paste(_from_deep(strip, top) if image.mode in DEEP else _on_white(strip), (0, y))
    return rgb


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _top_value(image: Image.Image) -> float:
    """What white is: 65,535 where values are whole numbers, else the largest, but at least 1."""
    return 65535.0 if image.mode.startswith("I") else max(1.0, float(np.nan_to_num(np.asarray(image)).max()))


def _from_deep(image: Image.Image, top: float) -> Image.Image:
    values = np.nan_to_num(np.asarray(image, dtype=np.float64)).clip(0, top)
    return Image.fromarray((values * (255 / top)).astype(np.uint8)).convert("RGB")
