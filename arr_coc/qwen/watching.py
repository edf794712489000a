"""Watching: frames one by one, a question that stands, and an answer whenever it is wanted.

N cells of a moment (a pair of frames). A moment is judged once, when it is there: where the model looks for the
question, and how much of that was not there a moment before. So many moments are held; where there are more, the one
that is worth least goes, with what was relevant long ago fading. Neither memory nor the time of a frame grows.

An answer that was given stands until others are clearly likelier, the less firmly the more has come since that is new
where the model looks: a word that is read at the edge of two readings does not change with every frame.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from arr_coc.config import FINE, Timing
from arr_coc.images.clips import Clip
from arr_coc.images.reader import ImageLike, byte_tensor, read_image
from arr_coc.qwen.answers import Answer, ImageSelection
from arr_coc.qwen.clips import ClipForm
from arr_coc.qwen.graphs.rules import ids_of
from arr_coc.qwen.moving import follow, samples_of
from arr_coc.qwen.streaming import Standing

WINDOW = 32  # moments that are held
FADING = 0.995  # of a moment's worth that is left a moment later: half after 138
MOST_NEW = 128  # tokens of an answer where nobody says: one of so many was cut off, and its end is none
FIRM = 30.0  # times as likely as what was answered before another word must be; 1: every answer is made anew


@dataclass(slots=True, eq=False)
class Moment:
    """Two frames, when they were, and what they are worth for the question."""

    frames_23hw: Tensor  # uint8
    seconds: tuple[float, float]
    choice: ImageSelection
    worth: float
    new: float  # share of what is relevant in it that was not there a moment before
    cut: bool  # whether another scene began with it


class Onlooker:
    """What is seen so far for one question; made by `ARRCOCQwen.watch`, whose model is the `owner`."""

    def __init__(
        self, owner: Any, question: str, keep: Any, fps: float, window: int, system: str, firm: float = FIRM
    ) -> None:
        if window < 2:
            raise ValueError(f"window={window}: give the number of pairs of frames that are held, 2 or more")
        if not 1 <= firm < math.inf:
            raise ValueError(f"firm={firm}: give how many times as likely another answer must be, 1 (anew) or more")
        self.owner, self.question, self.keep, self.system = owner, question, keep, system
        self.fps, self.window, self.firm = fps, window, firm
        self.held: list[Moment] = []
        self.frames = 0  # seen so far
        self._waiting: tuple[Tensor, float] | None = None  # the first frame of a pair
        self._last: Tensor | None = None  # samples of the moment before
        self._size: tuple[int, int] | None = None  # (height, width) in px that frames are seen at
        self._said, self._since = "", 0.0  # the answer that stands, and the share of what it saw that still holds

    def see(self, frame: ImageLike, seconds: float | None = None) -> Moment | None:
        """One more frame, at that time if it is given. Gives the moment that it completes, with its choice of cells."""
        seconds = self.frames / self.fps if seconds is None else float(seconds)
        self.frames += 1
        picture = self._fitted(byte_tensor(read_image(frame)))
        if self._waiting is None:
            self._waiting = (picture, seconds)
            return None
        (first, began), self._waiting = self._waiting, None
        made = self._judged(torch.stack([first, picture]), (began, seconds))
        if self.frames % (2 * self.window) == 0:
            self.owner.memory.clear()  # of moments that passed, nothing is asked again
        for one in self.held:
            one.worth *= FADING
        self._since *= 1 - made.new
        self.held.append(made)
        if len(self.held) > self.window:
            # The newest stays: what is going on now is what most questions are about.
            self.held.remove(min(self.held[:-1], key=lambda one: one.worth))
        return made

    def follow(self, frames: Iterable[ImageLike]) -> Iterator[Moment]:
        """All frames of a source, moment by moment."""
        for frame in frames:
            if (made := self.see(frame)) is not None:
                yield made

    def answer(self, **options: Any) -> Answer:
        """The answer as of now, from the moments that are held. `options` are those of `ask`."""
        if not self.held and self._waiting is None:
            raise ValueError("nothing was seen yet: show frames with see(frame), then ask for the answer")
        frames, seconds = [one.frames_23hw for one in self.held], [time for one in self.held for time in one.seconds]
        if self._waiting is not None:
            frames, seconds = [*frames, self._waiting[0].expand(2, -1, -1, -1)], [*seconds, *[self._waiting[1]] * 2]
        clip = Clip(torch.cat(frames), tuple(seconds))
        how = {"keep": self.keep, "system": self.system, **options}
        ahead = math.log(self.firm) * self._since * (1 - self._new_in_waiting())
        if ahead > 0 and options.get("num_beams", 1) == 1:  # scores of beams add up
            said = self.owner.processor.tokenizer(self._said, add_special_tokens=False).input_ids
            ended = len(said) < options.get("max_new_tokens", MOST_NEW)
            ends = ids_of(self.owner.model.generation_config.eos_token_id) if ended else ()
            how["logits_processor"] = [*(options.get("logits_processor") or ()), Standing(said, ends, ahead)]
        answer: Answer = self.owner.ask(question=self.question, video=clip, **how)
        self._said, self._since = answer.text, 1.0
        return answer

    def _fitted(self, picture: Tensor) -> Tensor:
        if self._size is None:
            self._size = ClipForm.of(self.owner.processor).fit(2 * self.window, *picture.shape[-2:])
        if tuple(picture.shape[-2:]) == self._size:
            return picture
        return F.interpolate(picture[None], self._size, mode="bicubic", antialias=True)[0]

    def _new_in_waiting(self) -> float:
        """Share of the frame that waits for its pair that was not there a moment before."""
        if self._waiting is None or self._last is None:
            return 0.0
        grid = self._last.shape[-2] // FINE, self._last.shape[-1] // FINE
        now = samples_of(self._waiting[0].expand(1, 2, -1, -1, -1).float() / 255, grid)
        timing = self.owner.clip_selector.timing or Timing()
        return float(follow(torch.cat([self._last, now]), timing).new_THW[-1].mean())

    def _judged(self, frames_23hw: Tensor, seconds: tuple[float, float]) -> Moment:
        (choice,) = self.owner.choose(None, self.question, keep=self._dial(), video=Clip(frames_23hw, seconds))
        now = samples_of(frames_23hw[None].float() / 255, choice.grid)
        before, self._last = self._last, now
        timing = self.owner.clip_selector.timing or Timing()
        motion = follow(now if before is None else torch.cat([before, now]), timing)
        new_HW = motion.new_THW[-1]
        relevance_HW = torch.ones_like(new_HW) if choice.relevance is None else choice.relevance.cpu().float()
        share = float((relevance_HW * new_HW).sum() / relevance_HW.sum().clamp(min=1e-12))
        worth = (1.0 if choice.mass is None else float(choice.mass)) * (timing.repeated + (1 - timing.repeated) * share)
        return Moment(frames_23hw, seconds, choice, worth, share, bool(motion.cuts_T[-1]))

    def _dial(self) -> Any:
        """Of one moment, a fraction: a number of tokens is meant for all of them."""
        return self.keep if isinstance(self.keep, float) else 0.25
