"""Hostile and odd image files, 20 kinds of them, each drawn from a seed: the same bytes for the same seed.

Every file comes with the verdict it deserves: taken, refused, or either where chance decides whether it still is one.
"""

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

TAKEN, REFUSED, EITHER = "taken", "refused", "either"
SEEDS = 30
VARIANTS = 20  # of a kind; a later seed draws one of them with other bytes
MEGA = 2**20
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Hostile:
    kind: str
    seed: int
    name: str
    data: bytes
    verdict: str


def picture(rng: random.Random, width: int = 96, height: int = 64, mode: str = "RGB") -> Image.Image:
    """Coarse noise, so that no part of the file is empty."""
    noise = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Image.fromarray(noise).convert("RGBA" if mode in ("RGBA", "LA", "PA") else "RGB").convert(mode)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def any_file(rng: random.Random) -> tuple[str, bytes]:
    kind, options = rng.choice(
        [("png", {}), ("jpeg", {}), ("jpeg", {"progressive": True}), ("webp", {}), ("webp", {"lossless": True})]
    )
    return kind, saved(picture(rng), kind, **options)


def chunk(name: bytes, data: bytes, length: int | None = None) -> bytes:
    size = len(data) if length is None else length
    return struct.pack(">I", size) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, depth: int, colour: int, rows: bytes, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG by hand: any size, depth and colour type, with other chunks around the picture."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return PNG + chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(rows)) + after + chunk(b"IEND", b"")


def with_chunks(data: bytes, *chunks: bytes) -> bytes:
    """Chunks put behind the header of a PNG."""
    return data[:33] + b"".join(chunks) + data[33:]


def with_segments(data: bytes, marker: int, segments: list[bytes]) -> bytes:
    """Segments put behind the first two bytes of a JPEG."""
    made = b"".join(bytes((0xFF, marker)) + struct.pack(">H", len(one) + 2) + one for one in segments)
    return data[:2] + made + data[2:]


def short(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    start = rng.choice([b"", PNG, b"\xff\xd8\xff", b"RIFF\x10\0\0\0WEBPVP8 ", rng.randbytes(20)])
    return rng.choice(["png", "jpg", "webp"]), start[: seed if seed < 12 else None], REFUSED


def truncated(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    kind, data = any_file(rng)
    return kind, data[: int(len(data) * (0.02 + 0.9 * seed / VARIANTS))], REFUSED


def flipped(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    kind, data = any_file(rng)
    bits = bytearray(data)
    for _ in range(2 ** (seed % 8)):
        bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
    return kind, bytes(bits), EITHER


def renamed(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(zipfile.ZipInfo("a.png"), saved(picture(rng), "png"))
    others = [
        b"hello\n" * 50, b"%PDF-1.7\n" + rng.randbytes(400), b"<!doctype html><img src=x>", archive.getvalue(),
        b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        b"\0\0\0\x18ftypmp42" + rng.randbytes(300), b"\x7fELF" + rng.randbytes(300), b"8BPS\0\1" + rng.randbytes(100),
        b"SIMPLE  =                    T" + b" " * 200, b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xfe" + rng.randbytes(64),
        b"\0\0\0\x0cjP  \r\n\x87\n" + rng.randbytes(200), b"RIFF\x24\0\0\0WAVEfmt " + rng.randbytes(40),
        b"\0\0\0\x1cftypavif" + rng.randbytes(200), b"icns" + rng.randbytes(200),
    ]  # fmt: skip
    verdict = REFUSED
    if seed >= len(others):
        other = ["gif", "bmp", "tiff", "ppm", "tga"][seed - len(others)]
        others += [saved(picture(rng), other)] * VARIANTS
        verdict = TAKEN if other in ("gif", "bmp", "tiff") else REFUSED  # pictures that are read, whatever their name
    return rng.choice(["png", "jpg", "webp"]), others[seed], verdict


def bomb(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Sizes that nobody means: claimed by a header, or really there and packed small."""
    side = [7_072, 13_378, 16_383, 60_000, 65_535][seed % 5]
    if seed % 4 == 0:
        return "png", png(side, side, 8, 2, b""), REFUSED
    if seed % 4 == 1:
        row = zlib.compressobj(9)
        packed = b"".join(row.compress(bytes(side + 1)) for _ in range(2_000)) + row.flush()
        header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
        return "png", PNG + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b""), REFUSED
    if seed % 4 == 2:
        data = bytearray(saved(picture(rng), "jpeg", progressive=seed % 8 == 2))
        place = data.index(b"\xff\xc2" if seed % 8 == 2 else b"\xff\xc0")
        data[place + 5 : place + 9] = struct.pack(">HH", side, side)
        return "jpg", bytes(data), REFUSED
    data = bytearray(saved(picture(rng, mode="RGBA"), "webp", lossless=seed % 8 == 3))
    if data[12:16] == b"VP8X":
        data[24:30] = (side - 1).to_bytes(3, "little") * 2
    else:
        data[21:25] = ((16_383 << 14) | 16_383).to_bytes(4, "little")
    return "webp", bytes(data), REFUSED


def tiny(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    sizes = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 31), (28, 28), (32, 32), (33, 31), (64, 1)]
    kind = ["png", "jpeg", "webp"][seed % 3]
    return (
        kind,
        saved(picture(rng, *sizes[seed % len(sizes)], "RGBA" if kind != "jpeg" and seed % 2 else "RGB"), kind),
        TAKEN,
    )


def aspect(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    short_side, ratio = 1 + seed // 4, [199, 200, 201, 900][seed % 4]
    size = (short_side * ratio, short_side)
    kind = ["png", "jpeg", "webp"][seed % 3]
    return (
        kind,
        saved(picture(rng, *(size if rng.random() < 0.5 else size[::-1])), kind),
        TAKEN if ratio <= 200 else REFUSED,
    )


def modes(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Every mode that the three formats hold, 16 bits and transparency in all ways among them."""
    in_png = ["1", "L", "LA", "P", "RGB", "RGBA"]
    if seed < 6:
        return "png", saved(picture(rng, mode=in_png[seed]), "png"), TAKEN
    if seed < 12:  # colour types 0 grey, 2 RGB, 4 grey and alpha, 6 RGBA, of 16 bits; grey of 2 and 4 bits
        depth, colour, samples = [(16, 0, 1), (16, 2, 3), (16, 4, 2), (16, 6, 4), (2, 0, 1), (4, 0, 1)][seed - 6]
        row = b"\0" + rng.randbytes(40 * samples * depth // 8)
        return "png", png(40, 30, depth, colour, row * 30), TAKEN
    if seed < 16:  # a transparent colour, or colours of a palette
        clear = chunk(b"tRNS", [b"\0\x80", b"\0\1\0\2\0\3", bytes(range(200)), b"\xff\xff"][seed - 12])
        colour, samples, depth = [(0, 1, 8), (2, 3, 8), (3, 1, 8), (0, 1, 16)][seed - 12]
        palette = chunk(b"PLTE", rng.randbytes(768)) if colour == 3 else b""
        row = b"\0" + rng.randbytes(40 * samples * depth // 8)
        return "png", png(40, 30, depth, colour, row * 30, before=palette + clear), TAKEN
    return (
        "jpg",
        saved(picture(rng, mode=["CMYK", "L", "CMYK", "RGB"][seed - 16]), "jpeg", progressive=seed == 18),
        TAKEN,
    )


def turned(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Orientations 1 to 8, values that are none, and EXIF that cannot be read."""
    kind, image = ["jpeg", "png", "webp"][seed % 3], picture(rng, 60, 30)
    if seed < 12:
        exif = image.getexif()
        exif[0x0112] = [1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 255, 65_535][seed]
        return kind, saved(image, kind, exif=exif), TAKEN
    junk = [
        b"",
        b"II*\0",
        b"II*\0\xff\xff\xff\xff",
        b"MM\0*\0\0\0\x08\xff\xff",
        rng.randbytes(300),
        b"II*\0\x08\0\0\0\1\0",
    ]
    return kind, saved(image, kind, exif=b"Exif\0\0" + junk[seed % 6] + rng.randbytes(seed)), TAKEN


def animated(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    frames = [picture(rng, mode="RGBA") for _ in range(2 + seed % 5)]
    kind = ["png", "webp", "mpo", "webp"][seed % 4]
    if kind == "mpo":
        frames = [frame.convert("RGB") for frame in frames]
    lossless = {"lossless": True} if kind == "webp" else {}
    return (
        kind.replace("mpo", "jpg"),
        saved(frames[0], kind, save_all=True, append_images=frames[1:], **lossless),
        TAKEN,
    )


def texts(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Comments larger than the picture: plain, packed a thousandfold, many, or more than a file may hold."""
    size = [1, 4, 8, 18, 21][seed % 5] * MEGA
    verdict = TAKEN if size < 20 * MEGA else REFUSED
    if seed % 4 == 0:
        return "png", with_chunks(saved(picture(rng), "png"), chunk(b"tEXt", b"k\0" + bytes([65]) * size)), verdict
    if seed % 4 == 1:
        bomb_text = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(4 * size)))
        return "png", with_chunks(saved(picture(rng), "png"), bomb_text), TAKEN
    if seed % 4 == 2:
        many = [chunk(b"zTXt", b"k%d\0\0" % n + zlib.compress(bytes(1_000_000))) for n in range(40)]
        return "png", with_chunks(saved(picture(rng), "png"), *many), TAKEN
    return "jpg", with_segments(saved(picture(rng), "jpeg"), 0xFE, [bytes(65_533)] * (size // 65_533)), verdict


def profiles(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Colour profiles that are none: we do not read them."""
    junk = rng.randbytes(rng.randrange(1, 3_000))
    if seed % 4 == 0:
        return "png", with_chunks(saved(picture(rng), "png"), chunk(b"iCCP", b"p\0\0" + zlib.compress(junk))), TAKEN
    if seed % 4 == 1:
        return (
            "png",
            with_chunks(saved(picture(rng), "png"), chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(MEGA * 64)))),
            TAKEN,
        )
    if seed % 4 == 2:
        parts = [b"ICC_PROFILE\0" + bytes((rng.randrange(256), rng.randrange(256))) + junk for _ in range(1 + seed)]
        return "jpg", with_segments(saved(picture(rng), "jpeg"), 0xE2, parts), TAKEN
    return "webp", saved(picture(rng), "webp", icc_profile=junk), TAKEN


def pieces(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Cut into so many pieces that walking them would take long."""
    count = [30_000, 100_000, 400_000, 1_000_000][seed // 5]
    if seed % 3 == 0:
        return "png", with_chunks(saved(picture(rng), "png"), chunk(b"teSt", b"") * count), REFUSED
    if seed % 3 == 1:
        return "jpg", with_segments(saved(picture(rng), "jpeg"), 0xFE, [b""] * count), REFUSED
    data = saved(picture(rng, 512, 512), "jpeg", progressive=True)
    last = data.rindex(b"\xff\xda")
    return "jpg", data[:-2] + data[last:-2] * 100 + data[-2:], REFUSED


def broken(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Files that contradict themselves."""
    row = b"\0" + rng.randbytes(120)
    good = png(40, 30, 8, 2, row * 30)
    jpeg, webp = saved(picture(rng), "jpeg"), saved(picture(rng), "webp")
    size = jpeg.index(b"\xff\xc0")
    made: list[tuple[str, bytes, str]] = [
        ("png", png(40, 30, 3, 2, row * 30), REFUSED),
        ("png", png(40, 30, 8, 7, row * 30), REFUSED),
        ("png", png(40, 30, 8, 3, (b"\0" + bytes(40)) * 30), EITHER),
        ("png", png(0, 30, 8, 2, row * 30), REFUSED),
        ("png", png(40, 30, 8, 2, row * 9), EITHER),
        ("png", png(40, 30, 8, 2, row * 3_000), EITHER),
        ("png", good[:33] + chunk(b"IEND", b""), REFUSED),
        ("png", good[:33] + chunk(b"IDAT", b"junk") + chunk(b"IEND", b""), REFUSED),
        ("png", good[:33] + chunk(b"IDAT", zlib.compress(row * 30), length=2**31 - 1), EITHER),
        ("png", good[:29] + b"\0\0\0\0" + good[33:], REFUSED),
        ("png", with_chunks(good, chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))), REFUSED),
        ("png", with_chunks(good, chunk(b"tEXt", b"k\0v", length=2**32 - 1)), REFUSED),
        ("jpg", jpeg[:size] + jpeg[size + 19 :], REFUSED),
        ("jpg", jpeg[: size + 9] + b"\x09" + jpeg[size + 10 :], REFUSED),
        ("jpg", jpeg[:2] + b"\xff\xd9", REFUSED),
        ("jpg", jpeg[:2] + b"\xff" * 40_000 + b"\xc0", REFUSED),
        ("jpg", jpeg[:20] + b"\xff\xdb\0\1" + jpeg[20:], REFUSED),
        ("webp", webp[:4] + b"\xff\xff\xff\xff" + webp[8:], EITHER),
        ("webp", webp[:16] + b"\xff\xff\xff\x7f" + webp[20:], EITHER),
        ("webp", webp[:12] + b"VP8X\x0a\0\0\0\x02\0\0\0" + b"\x5f\0\0\x3f\0\0", EITHER),
    ]
    return made[seed]


def large(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """As large as is allowed, or a little more; flat, so that the file stays small."""
    width, height = [(3_000, 2_000), (2_400, 3_200), (7_072, 7_071), (7_071, 7_071), (49_000, 1_000)][seed % 5]
    kind, mode, options = [
        ("png", "RGBA", {}),
        ("jpeg", "RGB", {}),
        ("jpeg", "CMYK", {}),
        ("webp", "RGB", {"method": 0}),
        ("jpeg", "RGB", {"progressive": True, "subsampling": 0}),
        ("png", "L", {"compress_level": 1}),
    ][seed % 6 if width < 16_000 else 5]
    if kind == "webp":
        width, height = [(2_000, 1_500), (1_500, 2_001), (3_000, 1_000)][seed % 3]
    verdict = TAKEN if width * height <= (3_000_000 if kind == "webp" else 50_000_000) else REFUSED
    if verdict == TAKEN and width * height > 30_000_000:
        verdict = EITHER  # within two seconds, or not
    return kind, saved(Image.new(mode, (width, height)), kind, **options), verdict


def arithmetic(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """A JPEG that says it is arithmetic-coded, lossless or hierarchical, of its own size or of 49 megapixels."""
    marker = [0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF][seed % 10]
    data = bytearray(saved(picture(rng), "jpeg", progressive=True))
    place = data.index(b"\xff\xc2")
    data[place + 1] = marker
    if seed >= 10:
        data[place + 5 : place + 9] = struct.pack(">HH", 7_000, 7_000)
    return "jpg", bytes(data), REFUSED


def exif(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """5,400 tags that each point at the same 60 KB: 300 MB, if they are read."""
    order, kind = [("<", b"II*\0"), (">", b"MM\0*")][seed % 2], ["jpeg", "png", "webp"][seed % 3]
    tags = [struct.pack(f"{order[0]}HHII", 0x0112, 3, 1, 6 if order[0] == "<" else 6 << 16)]
    tags += [struct.pack(f"{order[0]}HHII", 0x9000 + n, 7, 60_000, 8) for n in range([5_400, 300][seed % 4 == 3])]
    block = order[1] + struct.pack(f"{order[0]}IH", 8, len(tags)) + b"".join(tags)
    return kind, saved(picture(rng, 64, 64), kind, exif=b"Exif\0\0" + block), TAKEN


def scans(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Many passes over many pixels that are not there."""
    count, side = [(60, 3_200), (12, 7_000), (30, 5_000), (200, 64), (40, 4_000)][seed % 5]
    data = bytearray(saved(picture(rng), "jpeg", progressive=True, subsampling=[0, 2][seed % 2]))
    place, last = data.index(b"\xff\xc2"), data.rindex(b"\xff\xda")
    data[place + 5 : place + 9] = struct.pack(">HH", side, side)
    more = count - data.count(b"\xff\xda")
    verdict = EITHER if count * side**2 < 600_000_000 and count <= 64 else REFUSED
    return "jpg", bytes(data[:-2] + data[last:-2] * more + data[-2:]), verdict


def lossless(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """A lossless WebP with a set of tables of its own for every 4 x 4 pixels, up to 65,536 of 5 KB: 340 MB."""
    side = [64, 256, 512, 768, 1_024][seed % 5]
    groups = (side // 4) ** 2
    bits = [f"{0x2F:08b}"[::-1], *(f"{side - 1:014b}"[::-1] for _ in "wh"), "0", "000", "0", "0", "1", "000", "0"]
    one = "1" + "0" + "0" + "0"  # a code of one symbol, 0
    every = "0" + f"{8:04b}"[::-1] + "000" * 11 + "100" + "1" + "110" + f"{254:08b}"[::-1]  # 256 symbols of 8 bits
    bits += [every, every, one, one, one]  # of the picture that says which set is whose: green, red, and nothing else
    bits += [f"{n % 256:08b}{n // 256:08b}" for n in range(groups)] + [one * 5] * groups
    data = "".join(bits)
    packed = int(data[::-1], 2).to_bytes(-(-len(data) // 8), "little") + rng.randbytes(seed)
    packed += b"\0" * (len(packed) % 2)
    chunk_ = b"VP8L" + struct.pack("<I", len(packed)) + packed
    return "webp", b"RIFF" + struct.pack("<I", len(chunk_) + 4) + b"WEBP" + chunk_, TAKEN if side == 64 else EITHER


def packed(rng: random.Random, seed: int) -> tuple[str, bytes, str]:
    """Flat, so that megapixels fit into kilobytes: harmless, but who knows."""
    mode, kind = [("RGB", "png"), ("L", "png"), ("RGBA", "webp"), ("RGB", "jpeg"), ("P", "png")][seed % 5]
    colour = tuple(rng.randrange(256) for _ in mode) if mode in ("RGB", "RGBA") else rng.randrange(256)
    options = {"lossless": True} if kind == "webp" else {}
    return kind, saved(Image.new(mode, (1_500 + seed, 1_200), colour), kind, **options), TAKEN


KINDS: dict[str, Callable[[random.Random, int], tuple[str, bytes, str]]] = {
    made.__name__: made
    for made in (short, truncated, flipped, renamed, bomb, tiny, aspect, modes, turned, animated, texts, profiles)
} | {made.__name__: made for made in (pieces, broken, large, arithmetic, exif, scans, lossless, packed)}


@lru_cache(maxsize=8)
def make(kind: str, seed: int) -> Hostile:
    """The file of that kind and seed."""
    suffix, data, verdict = KINDS[kind](random.Random(f"{kind} {seed}"), seed % VARIANTS)
    return Hostile(kind, seed, f"{kind}-{seed}.{suffix}", data, verdict)
