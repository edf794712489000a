"""What was seen of images before: tensors by the content of the images they were made of, in so many bytes at most.

All of it serves every question about an image: what the ViT made of a small copy, the start of a prompt as the first
decoder layers read it, and textures with what a trained layer sees in them.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

from torch import Tensor, nn

from arr_coc.config import channel_names
from arr_coc.records import TexturePyramid

MOST_BYTES = 256 << 20  # of what is remembered of images: about 20 of them at 1024 px with a 2B model


class Memory:
    """Tensors by what they were made of, at most so many bytes: what was unused for longest goes first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes, self.size = most_bytes, 0
        self.hits, self.misses = 0, 0
        self._held: OrderedDict[Hashable, tuple[tuple[Tensor, ...], int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None) -> tuple[Tensor, ...] | None:
        """What was put under the key; None where nothing was, or it is gone."""
        with self._lock:
            if key is None or key not in self._held:
                self.misses += 1
                return None
            self.hits += 1
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable | None, tensors: Sequence[Tensor]) -> None:
        """Nothing is kept without a key, nor what is larger than all that may be kept."""
        size = sum(tensor.nbytes for tensor in tensors)
        if key is None or size > self.most_bytes:
            return
        with self._lock:
            _, before = self._held.pop(key, ((), 0))
            self._held[key] = tuple(tensors), size
            self.size += size - before
            while self.size > self.most_bytes:
                _, (_, gone) = self._held.popitem(last=False)
                self.size -= gone

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.size = 0

    def keys(self, images: Sequence[object], model: nn.Module) -> list[Hashable]:
        """What images are known by to a model: their content where that is at hand, else their place among these."""
        if not self.most_bytes:
            return [*range(len(images))]
        stamp = weights_stamp(model)
        made = [content_key(image) if isinstance(image, Tensor) else None for image in images]
        return [place if key is None else (key, stamp) for place, key in enumerate(made)]

    def pyramid(
        self,
        keys: Sequence[Hashable],
        what: Hashable,
        channels: int | Sequence[str],
        see: Callable[[list[int]], TexturePyramid],
    ) -> TexturePyramid:
        """Textures of images of one grid: those that are here, and the others as `see(places)` makes them, together.

        `what` says how they are seen: a grid, a selector.
        """
        names = [lasting(("pyramid", key, what), [key]) for key in keys]
        if not any(names):  # nobody can know these again
            return see(list(range(len(keys))))
        found = [self.get(name) for name in names]
        missing = [place for place, held in enumerate(found) if held is None]
        if missing:
            levels = see(missing).levels
            for row, place in enumerate(missing):
                found[place] = tuple(level[row : row + 1].clone() for level in levels)
                self.put(names[place], found[place] or ())
        return TexturePyramid.together([held for held in found if held is not None], channel_names(channels))


def content_key(image: Tensor) -> Hashable | None:
    """What an image on the host is known by: a digest of every pixel; None on a device, where reading it back costs."""
    if image.device.type != "cpu":
        return None
    whole = image.contiguous()
    digest = hashlib.blake2b(whole.numpy().data, digest_size=20)
    return digest.digest(), str(image.dtype), tuple(image.shape)


def lasting(name: Hashable, keys: Sequence[Hashable]) -> Hashable | None:
    """The name of something made of images, if it may be remembered: not where one is known by its place alone."""
    return None if any(isinstance(key, int) for key in keys) else name


def weights_stamp(module: nn.Module) -> Hashable:
    """Changes whenever weights are moved or written to: what was seen with others is not to be used."""
    parameters = list(module.parameters())
    versions = sum(parameter._version for parameter in parameters)
    return versions, *(parameter.data_ptr() for parameter in (*parameters[:1], *parameters[-1:]))
