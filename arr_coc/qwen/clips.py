"""Clips -> model inputs, as the stock video processor makes them, without torchvision: patches, grids, timestamps.

T frames, P patches, X values of a patch.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.utils.hub import cached_file

from arr_coc.images.clips import STILLS, Clip, Fit, is_clip, read_clip
from arr_coc.images.reader import MOST_IMAGES, read_images

SIZE = {"shortest_edge": 4096, "longest_edge": 25_165_824}  # pixels of a clip, Qwen3-VL's own limits


@dataclass(frozen=True, slots=True)
class ClipForm:
    """How a model sees clips: sizes in px, limits in pixels of all frames, and its colours."""

    patch: int
    merge: int
    frames: int  # of a pair: patches reach over so many
    least: int
    most: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, processor: Any) -> "ClipForm":
        """As the processor's video half is set; where it has none, as it was found beside the model."""
        own = getattr(processor, "video_processor", None) or processor.image_processor
        size = getattr(processor, "clip_size", None) or (SIZE if own is processor.image_processor else own.size)
        return cls(
            own.patch_size,
            own.merge_size,
            own.temporal_patch_size,
            size["shortest_edge"],
            size["longest_edge"],
            tuple(own.image_mean),
            tuple(own.image_std),
        )

    def fit(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) in px that so many frames of that size are seen at."""
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize  # loads much: for clips alone

        cell = self.patch * self.merge
        kept: tuple[int, int] = smart_resize(frames, height, width, self.frames, cell, self.least, self.most)
        return kept

    def rows(self, clip: Clip) -> tuple[Tensor, list[int]]:
        """Patches `[P, X]` of a clip, and its grid (t, h, w)."""
        frames_T3hw = clip.frames_T3hw
        more = -frames_T3hw.shape[0] % self.frames
        frames_T3hw = torch.cat([frames_T3hw, frames_T3hw[-1:].expand(more, -1, -1, -1)])
        # One multiplication, as torchvision fuses it: (x - 255 m) / (255 s).
        mean, std = (255 * torch.tensor(one).view(3, 1, 1) for one in (self.mean, self.std))
        values = (frames_T3hw.float() - mean) / std
        merge, patch = self.merge, self.patch
        t, h, w = values.shape[0] // self.frames, values.shape[2] // patch, values.shape[3] // patch
        blocks = values.view(t, self.frames, 3, h // merge, merge, patch, w // merge, merge, patch)
        return blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(t * h * w, -1), [t, h, w]


def clip_size(source: str, **hub: Any) -> dict[str, int]:
    """Limits of a clip's pixels as a model's folder says, or Qwen3-VL's own where it says nothing of video."""
    path = cached_file(source, "video_preprocessor_config.json", _raise_exceptions_for_missing_entries=False, **hub)
    if path is None:
        return SIZE
    try:
        found = json.loads(Path(path).read_text())["size"]
        size: dict[str, int] = {**SIZE, **{name: value for name, value in found.items() if name in SIZE}}
    except (ValueError, KeyError, AttributeError, TypeError):
        return SIZE
    if (
        not all(isinstance(value, int) for value in size.values())
        or not 1 <= size["shortest_edge"] <= size["longest_edge"]
    ):
        raise ValueError(f"the video processor's size cannot be meant ({size}); copy the model again")
    return size


def clip_features(processor: Any, clips: Sequence[Clip]) -> tuple[dict[str, Tensor], list[str]]:
    """Patches and grids of clips, and the text that stands for each: a time before each pair of frames."""
    form = ClipForm.of(processor)
    made = [form.rows(clip) for clip in clips]
    inputs = {
        "pixel_values_videos": torch.cat([rows for rows, _ in made]),
        "video_grid_thw": torch.tensor([grid for _, grid in made]),
    }
    start, pad, end = processor.vision_start_token, processor.video_token, processor.vision_end_token
    texts = []
    for clip, (_, (_, height, width)) in zip(clips, made, strict=True):
        cells = pad * (height * width // form.merge**2)
        texts.append("".join(f"<{time:.1f} seconds>{start}{cells}{end}" for time in clip.pairs(form.frames)))
    return inputs, texts


def read_shown(
    images: Any, video: Any, fit: Fit, fps: float | None = None, frames: int | None = None
) -> list[Image.Image | Clip]:
    """Images and clips in their order, then those of `video`: of `images`, what is named like a video is a clip."""
    given = [] if images is None else list(images) if isinstance(images, (list, tuple)) else [images]
    played = list(each_clip(video))
    if not played and not any(map(is_clip, given)):
        check_unplayed(fps, frames)
    if not given and not played:
        raise ValueError("there is nothing to ask about: give an image, or a video")
    if len(given) + len(played) > MOST_IMAGES:
        raise ValueError(f"{len(given) + len(played)} images and clips: give 1 to {MOST_IMAGES}")
    stills = [one for one in given if not is_clip(one)]
    read = iter(read_images(stills) if stills else [])
    shown = [read_clip(one, fit, fps, frames) if is_clip(one) else next(read) for one in given]
    return shown + [read_clip(one, fit, fps, frames) for one in played]


def check_unplayed(fps: float | None, frames: int | None) -> None:
    if fps is not None or frames is not None:
        raise ValueError("fps and frames are of a video: give one, or leave them out")


def each_clip(videos: Any) -> Iterator[Any]:
    """One clip after the other, of lists of lists: a list of stills is one clip, a list of files is several."""
    if isinstance(videos, (list, tuple)):
        if videos and all(_is_still(one) for one in videos):
            yield videos
        else:
            for one in videos:
                yield from each_clip(one)
    elif videos is not None:
        yield videos


def _is_still(one: Any) -> bool:
    if isinstance(one, (str, os.PathLike)):
        return os.path.splitext(one)[1].lower() in STILLS and not str(one).lower().endswith(".gif")
    return not isinstance(one, (list, tuple, bytes, bytearray, Clip)) and getattr(one, "ndim", 3) in (2, 3)
