"""From the picture in a file to plain RGB, upright, on white: with Pillow alone, here or in a process of its own.

Beside the finished image (4 bytes a pixel in memory) at most 4 bytes a pixel are held, the decoded image or what its
decoder needs: what must be converted is converted strip by strip, and what would need more is read otherwise. A WebP
alone costs more, since Pillow reads it as an animation, on two canvases: so it may have fewer pixels.
"""

from collections.abc import Iterator

from PIL import Image, WebPImagePlugin

from arr_coc.images.headers import MOST_COST, NotAnImage, PictureFile, Refused, check_size

MOST_TWICE = 16_000_000  # pixels of a JPEG that must be read twice, which takes a second
SPARE = 8 * 2**20  # bytes that the decoder of a JPEG or PNG may take beside 8 a pixel
STRIP = 2**18  # pixels that are converted at a time; small enough to cost nothing, large enough to be quick

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
DEEP = ("I;16", "I;16B", "I;16L", "I")  # modes with 16 bits a value
FROM_DEEP = [int(value * (255 / 65535)) for value in range(65536)]


def decode(picture: PictureFile, name: str) -> Image.Image:
    """The size was checked as its header told it; it is checked again as the decoder does."""
    with Image.open(picture.file, formats=(picture.format,)) as image:
        check_size(image.width, image.height, name)
        if isinstance(image, WebPImagePlugin.WebPImageFile):
            return upright_rgb(_first_frame(image), picture.orientation, ours=True)
        if picture.format == "TIFF" and image.mode in ("F", "I"):
            raise NotAnImage("its values are fractions, or of 32 bits")
        pixels = image.width * image.height
        if (picture.held + 4 - MOST_COST) * pixels <= SPARE:  # what its decoder holds, and the image that it makes
            return upright_rgb(image, picture.orientation, ours=True)
        if image.mode != "RGB" or pixels > MOST_TWICE:
            says = f"a progressive {image.mode} JPEG of {image.width}x{image.height} needs too much memory"
            raise Refused(f"{name}: {says}; save it as RGB or without 'progressive'")
    return upright_rgb(_with_coarse_colours(picture), picture.orientation, ours=True)


def _first_frame(image: WebPImagePlugin.WebPImageFile) -> Image.Image:
    """The pixels of a WebP without its decoder, whose canvases are let go before another image is made."""
    data, *_ = image._get_next()
    image._decoder = None
    return Image.frombuffer(image.rawmode, image.size, data, "raw", image.rawmode, 0, 1)


def _with_coarse_colours(picture: PictureFile) -> Image.Image:
    """A JPEG with all of its brightness, its colours at half the size, as most JPEGs have them anyhow.

    A large progressive one that has its colours in full would cost 10 bytes a pixel: 6 are held until the end, and the
    image is 4. So it is read twice, each time into 1 byte a pixel.
    """
    colours = _half_size(picture)
    picture.file.seek(0)
    with Image.open(picture.file, formats=("JPEG",)) as fine:
        fine.draft("L", fine.size)
        fine.load()
        rgb = Image.new("RGB", fine.size)
        for y, rows in strips(*fine.size):
            strip = fine.crop((0, y, fine.width, y + rows))
            box = (0, y / 2, fine.width / 2, (y + rows) / 2)
            _, cb, cr = colours.resize(strip.size, Image.Resampling.BILINEAR, box).split()
            rgb.paste(Image.merge("YCbCr", (strip, cb, cr)).convert("RGB"), (0, y))
    return rgb


def _half_size(picture: PictureFile) -> Image.Image:
    """A JPEG at half its width and height, rounded up, as YCbCr."""
    picture.file.seek(0)
    with Image.open(picture.file, formats=("JPEG",)) as image:
        image.draft("RGB", (image.width // 2, image.height // 2))
        return image.convert("YCbCr")


def upright_rgb(image: Image.Image, orientation: int, ours: bool = False) -> Image.Image:
    """A new image. Never more than two at once: one that is `ours` is given up as soon as it was converted."""
    image.load()
    turn = TURNS.get(orientation)
    if turn is not None and image.mode == "RGB" and not _is_clear(image):
        return image.transpose(turn)
    rgb = _to_rgb(image)
    if ours:
        image.close()
    return rgb if turn is None else rgb.transpose(turn)


def _is_clear(image: Image.Image) -> bool:
    """Whether some of it may be transparent."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _to_rgb(image: Image.Image) -> Image.Image:
    is_clear = _is_clear(image)
    if not is_clear and image.mode not in DEEP:
        return image.convert("RGB")
    rgb = Image.new("RGB", image.size)
    for y, rows in strips(*image.size):
        strip = image.crop((0, y, image.width, y + rows))
        rgb.paste(strip.convert("I").point(FROM_DEEP, "L") if image.mode in DEEP else _on_white(strip), (0, y))
    return rgb


def _on_white(image: Image.Image) -> Image.Image:
    image = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def strips(width: int, height: int) -> Iterator[tuple[int, int]]:
    """(first row, number of rows) of parts that are small enough to be held beside an image."""
    rows = max(1, STRIP // width)
    for y in range(0, height, rows):
        yield y, min(rows, height - y)
