"""What is asked: the caller's inputs, checked once, and whose each image is.

B batch, L full length, P patches, X values of a patch.

A clip is a row of images, one for each pair of its frames, as it is for the ViT and for M-RoPE: a grid (t, h, w) is t
grids (h, w). Images come first in every list here, then the pairs of all clips in their order.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.config import Keep, check_keeps
from arr_coc.qwen.vision import Grid

Box = tuple[float, float, float, float]  # left, top, right, bottom as shares of the image's width and height
IMAGE, VIDEO = 1, 2  # kinds of columns that show something
ROUNDING = 1e-6  # cells that a box enters by less than this are not touched


@dataclass(frozen=True, slots=True)
class Hints:
    """What only an experiment can tell a selector: one entry per image of the request."""

    evidence: Sequence[Sequence[Box]] | None = None  # where the answer is, for selector="oracle"
    image_numbers: Sequence[int] | None = None  # a number of each image, for selector="random"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column is what, and whose each image is."""

    types_BL: Tensor  # 0 text, 1 image, 2 video
    grids: list[Grid]  # cells of each image
    sample_of: list[int]  # the sample of each image
    clips: list[range] = field(default_factory=list)  # the images that each clip is made of: the last of all

    @classmethod
    def of(
        cls,
        input_ids: Tensor,
        image_grid_thw: Tensor,
        config: Any,
        video_grid_thw: Tensor | None = None,
        lengths: Sequence[int] = (),
    ) -> "Layout":
        """From the placeholders of a batch and its images; `config` is the stock model's.

        `video_grid_thw` has a row for each pair of frames, `lengths` says how many are of each clip.
        """
        types_BL = token_types(input_ids, config)
        merge = config.vision_config.spatial_merge_size
        grids = cells_of(image_grid_thw, merge)
        sample_of, ends = samples_of_images(types_BL, grids), itertools.accumulate(lengths, initial=len(grids))
        if video_grid_thw is not None:
            pairs = cells_of(video_grid_thw, merge)
            sample_of += samples_of_images(types_BL, pairs, VIDEO)
            grids = grids + pairs
        clips = [range(start, end) for start, end in itertools.pairwise(ends)]
        return cls(types_BL, grids, sample_of, clips)

    @property
    def images(self) -> int:
        """How many are images of their own: the first."""
        return self.clips[0].start if self.clips else len(self.grids)

    def in_order(self, sample: int) -> list[int]:
        """Numbers of a sample's images as they follow each other in its row."""
        own = [image for image, one in enumerate(self.sample_of) if one == sample]
        types_L = self.types_BL[sample]
        starts = [
            int(part[0])
            for kind in (IMAGE, VIDEO)
            for part in (types_L == kind)
            .nonzero()
            .flatten()
            .split([self.cells[n] for n in own if self.kind(n) == kind])
        ]
        return [image for _, image in sorted(zip(starts, own, strict=True))]

    def is_played(self, image: int) -> bool:
        """Whether its sample shows a clip."""
        return any(self.sample_of[clip.start] == self.sample_of[image] for clip in self.clips)

    def kind(self, image: int) -> int:
        """What its columns are: IMAGE or VIDEO."""
        return IMAGE if image < self.images else VIDEO

    @property
    def cells(self) -> list[int]:
        """Number of cells of each image."""
        return [height * width for height, width in self.grids]

    def columns(self, indices: Sequence[Tensor]) -> Tensor:
        """The columns that are left with these cells of each image: bool `[B, L]`."""
        cells = self.types_BL.new_zeros(sum(self.cells), dtype=torch.bool)
        for part, index in zip(cells.split(self.cells), indices, strict=True):
            part[index] = True
        whole = torch.ones_like(self.types_BL, dtype=torch.bool)
        of_images, of_videos = cells.tensor_split([sum(self.cells[: self.images])])
        whole = whole.masked_scatter(self.types_BL == IMAGE, of_images)
        return whole.masked_scatter(self.types_BL == VIDEO, of_videos) if self.clips else whole


@dataclass(frozen=True, slots=True)
class Request:
    """Model inputs as the processor returns them, and what the caller wants of them."""

    input_ids: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    attention_mask: Tensor
    layout: Layout
    keeps: list[Keep]  # one checked dial per sample
    labels: Tensor | None = None
    pixel_values_videos: Tensor | None = None
    video_grid_thw: Tensor | None = None  # a row for each pair of frames
    question_mask: Tensor | None = None
    original_image: Any = None
    seconds: Sequence[float] | None = None  # when each pair of frames of all clips is, where that is known
    hints: Hints = Hints()
    keeps_all: bool = field(init=False)  # whether every sample asks for all of its tokens

    def __post_init__(self) -> None:
        whole = all(isinstance(keep, float) and keep == 1.0 for keep in self.keeps)
        object.__setattr__(self, "keeps_all", whole)

    @property
    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """Patches and their (1, h, w) of all images, and of all clips: each encoded by itself, as stock does."""
        both = [(self.pixel_values, self.image_grid_thw)]
        if self.pixel_values_videos is not None and self.video_grid_thw is not None:
            both.append((self.pixel_values_videos, self.video_grid_thw))
        return [part for part in both if part[1].shape[0]]

    @property
    def rows(self) -> list[Tensor]:
        """Patches of each image, `[P, X]`."""
        return [rows for pixels, thw in self.parts for rows in pixels.split(thw.prod(-1).tolist())]

    @property
    def thw(self) -> Tensor:
        """Patches of each image as (1, h, w)."""
        return torch.cat([thw for _, thw in self.parts])

    def by_sample(self, chosen: Sequence[Any]) -> list[list[Any]]:
        """The selections of each sample's images; those of a clip's moments say whose they are, and when."""
        images: list[list[Any]] = [[] for _ in self.keeps]
        clip_of = {image: number for number, clip in enumerate(self.layout.clips) for image in clip}
        for number, (sample, image) in enumerate(zip(self.layout.sample_of, chosen, strict=True)):
            if number in clip_of:
                when = None if self.seconds is None else self.seconds[number - self.layout.images]
                image = replace(image, clip=clip_of[number], seconds=when)
            images[sample].append(image)
        return images

    @classmethod
    def of(
        cls,
        config: Any,
        device: torch.device,
        input_ids: Tensor | None,
        pixel_values: Tensor | None,
        image_grid_thw: Tensor | None,
        attention_mask: Tensor | None,
        keep: Any,
        original_image: Any,
        hints: Hints | None = None,
        seconds: Sequence[float] | None = None,
        **tensors: Tensor | None,
    ) -> "Request":
        """Check what must be there and bring it to the model's device; `config` is the stock model's."""
        moved = {name: tensor if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        videos, video_thw = moved.get("pixel_values_videos"), moved.get("video_grid_thw")
        pairs = ((pixel_values, image_grid_thw, "image"), (videos, video_thw, "video"))
        for seen, thw, what in pairs:
            if (seen is None) != (thw is None) or input_ids is None:
                needed = f"need input_ids and {what}_grid_thw: pass all that the processor returns"
                raise ValueError(f"pixel_values{'_videos' if what == 'video' else ''} {needed}")
        assert input_ids is not None
        lengths: list[int] = []
        if video_thw is not None and videos is not None:
            lengths = video_thw[:, 0].tolist()
            moved["video_grid_thw"] = video_thw = one_by_one(video_thw)
            if pixel_values is None:
                pixel_values, image_grid_thw = videos[:0], video_thw[:0]
        assert pixel_values is not None, "something is shown"
        assert image_grid_thw is not None
        hints, count = hints or Hints(), image_grid_thw.shape[0] + sum(lengths)
        for name, given in (("evidence", hints.evidence), ("image_numbers", hints.image_numbers)):
            if given is not None and len(given) != count:
                raise ValueError(f"{name} is for {len(given)} images, the inputs have {count}")
        keeps = check_keeps(keep, input_ids.shape[0])
        ids, grids = input_ids.to(device), image_grid_thw.to(device)
        return cls(
            ids,
            pixel_values.to(device),
            grids,
            torch.ones_like(ids) if attention_mask is None else attention_mask.to(device),
            Layout.of(ids, grids, config, video_thw, lengths),
            keeps,
            original_image=original_image,
            hints=hints,
            seconds=seconds,
            **moved,
        )


def refuse_placeholders(config: Any, input_ids: Tensor | None, cache: Any) -> None:
    """A prompt that shows what did not come along would be answered without it."""
    if input_ids is None or cache is not None:
        return
    for what, place in (("an image", config.image_token_id), ("a video", config.video_token_id)):
        if (input_ids == place).any():
            raise ValueError(f"the prompt shows {what} that is not in the inputs: pass all that the processor returns")


def refuse_positions(position_ids: Any) -> None:
    if position_ids is not None:
        raise ValueError("position_ids with an image: leave them out, they follow from the whole sequence")


def refuse_cache(cache: Any, only_marked: bool = False) -> None:
    """A prompt with images is prepared as a whole; a cache that was shortened cannot be matched with full ids."""
    if cache is None or (only_marked and not hasattr(cache, "arr_coc")):
        return
    if cache.get_seq_length():
        raise ValueError("a new question chooses anew: pass the whole conversation instead of past_key_values")


def one_by_one(video_grid_thw: Tensor) -> Tensor:
    """(t, h, w) of clips -> (1, h, w) of each of their pairs of frames."""
    pairs = video_grid_thw.repeat_interleave(video_grid_thw[:, 0], dim=0)
    pairs[:, 0] = 1
    return pairs


def cells_of(image_grid_thw: Tensor, merge: int) -> list[Grid]:
    """(H, W) in cells of each image."""
    grids = image_grid_thw.tolist()
    assert all(t == 1 for t, _, _ in grids), "an image has one frame"
    return [(h // merge, w // merge) for _, h, w in grids]


def token_types(input_ids: Tensor, config: Any) -> Tensor:
    """0 for text, 1 for image, 2 for video placeholders, as the processor would have said."""
    return (input_ids == config.image_token_id).int() + 2 * (input_ids == config.video_token_id).int()


def samples_of_images(types_BL: Tensor, grids: Sequence[Grid], kind: int = IMAGE) -> list[int]:
    """Which sample each image belongs to, from the placeholders of its kind, which must be as many as the cells."""
    room = (types_BL == kind).sum(-1).tolist()
    cells = [height * width for height, width in grids]
    if sum(room) != sum(cells):
        what = f"{sum(room)} {'image' if kind == IMAGE else 'video'} placeholders in input_ids"
        raise ValueError(f"{what} for {sum(cells)} visual tokens: make both with one processor")
    sample_of, sample = [], 0
    for size in cells:
        while room[sample] == 0:
            sample += 1
        if size > room[sample]:
            raise ValueError("an image's placeholders are split between two rows: check the order of the images")
        sample_of.append(sample)
        room[sample] -= size
    return sample_of


def evidence_mask(boxes: Sequence[Box], grid: Grid) -> Tensor:
    """The cells that any box touches: bool `[H, W]`."""
    mask_HW = torch.zeros(grid, dtype=torch.bool)
    for left, top, right, bottom in boxes:
        if not (0 <= left <= right <= 1 and 0 <= top <= bottom <= 1):
            raise ValueError(
                f"evidence box {(left, top, right, bottom)}: give left, top, right, bottom as shares of the image"
            )
        rows, columns = (
            slice(int(start * cells + ROUNDING), math.ceil(end * cells - ROUNDING))
            for start, end, cells in ((top, bottom, grid[0]), (left, right, grid[1]))
        )
        mask_HW[rows, columns] = True
    return mask_HW


def check_aspect(image: Tensor, grid: Grid) -> None:
    """An original must be the picture that was resized to this grid, give or take the rounding to whole cells."""
    height, width = image.shape[-2:]
    stretch = (height / width) / (grid[0] / grid[1])
    rounding = (1 + 1 / grid[0]) * (1 + 1 / grid[1])
    if not 1 / rounding**2 <= stretch <= rounding**2:
        raise ValueError(
            f"original_image of {width}x{height} px does not have the shape of the {grid[1]}x{grid[0]} cells"
        )


# ---------------------------------------------------------------- the question


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """Ids that mark the turns of a conversation in the chat template."""

    turn_start: int
    turn_end: int
    user: int
    newline: int


def find_question(input_ids: Tensor, attention_mask: Tensor, config: Any, chat: ChatTokens | None) -> Tensor:
    """Mask of the last user turn's text: not the system prompt, not the template, not placeholders. `[B, L]` bool.

    Without chat tokens in sight, the text after the last image.
    """
    names = ("image", "video", "vision_start", "vision_end")
    visual_ids = torch.tensor([getattr(config, f"{name}_token_id") for name in names], device=input_ids.device)
    visual = torch.isin(input_ids, visual_ids)
    place = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    start_B1 = torch.where(visual, place + 1, 0).amax(-1, keepdim=True)
    end_B1 = torch.full_like(start_B1, input_ids.shape[1])
    if chat is not None:
        turn = (input_ids == chat.turn_start) & (input_ids.roll(-1, dims=1) == chat.user)
        has_turn_B1 = turn.any(-1, keepdim=True)
        turn_start_B1 = torch.where(turn, place + 2, 0).amax(-1, keepdim=True)
        newline = (input_ids.gather(1, turn_start_B1.clamp(max=input_ids.shape[1] - 1)) == chat.newline).long()
        start_B1 = torch.where(has_turn_B1, turn_start_B1 + newline, start_B1)
        ends = torch.where((input_ids == chat.turn_end) & (place >= start_B1), place, end_B1)
        end_B1 = torch.where(has_turn_B1, ends.amin(-1, keepdim=True), end_B1)
    return (place >= start_B1) & (place < end_B1) & ~visual & attention_mask.bool()
