"""The wide world as the trainer of mini knows it: `"world": "studies.wide.training:WIDE"` in its settings."""

import warnings
from random import Random

import numpy as np

from arr_coc_scenes.types import Question
from studies.mini.data import SEEDS_PER_BATCH, Drawn
from studies.mini.views import Form, ShownViews
from studies.wide.clips import CLIP_FORMS, make_clip
from studies.wide.draft import WideDraft
from studies.wide.making import make_wide
from studies.wide.several import SEVERAL_FORMS, make_several
from studies.wide.wording import fit_chart, reworded

OLD_SHARE = 0.35  # of the questions about the old world that are said in other words
FURTHER_SHARE = 0.5  # of the questions that practice adds to a wide scene


class WideWorld:
    """Draws wide scenes of the training split and words the questions of all rows."""

    def draw(self, seed: int, size: tuple[int, int], crowd: float, families: tuple[str, ...] | None) -> Drawn:
        """Scene number `seed` in `size` px; the next one where one fails, for one scene must not end a run."""
        for attempt in range(5):
            try:
                wide = make_wide(seed + attempt * SEEDS_PER_BATCH // 2, "train", size, crowd, families)
                return Drawn(wide.scene, wide.pixels, wide.draft)
            except Exception as error:
                warnings.warn(f"wide scene {seed} at {size} was left out: {error!r}", stacklevel=2)
                families = None
        raise RuntimeError(f"five wide scenes after {seed} at {size} failed: see the warnings above")

    def said(self, question: Question, drawn: Drawn, rng: np.random.Generator) -> Question:
        """Questions of a wide scene are worded already; those of practice and of the old world get other words here."""
        if isinstance(drawn.draft, WideDraft):
            if question in drawn.scene.questions:
                return question
            question, share = fit_chart(question, drawn.draft.chart), FURTHER_SHARE
        else:
            share = OLD_SHARE
        return reworded(question, Random(int(rng.integers(2**31)))) if rng.random() < share else question

    def forms(self, kind: str) -> tuple[Form, ...]:
        """The forms of "several" images, or of "clips"."""
        return {"several": SEVERAL_FORMS, "clips": CLIP_FORMS}[kind]

    def draw_views(self, kind: str, seed: int, form: Form) -> ShownViews:
        """Row number `seed` of several views; the next one where one fails, as above."""
        make = {"several": make_several, "clips": make_clip}[kind]
        for attempt in range(5):
            try:
                return make(seed + attempt * SEEDS_PER_BATCH // 2, "train", form)
            except Exception as error:
                warnings.warn(f"{kind} {seed} of {form} was left out: {error!r}", stacklevel=2)
        raise RuntimeError(f"five rows of {kind} after {seed} failed: see the warnings above")


WIDE = WideWorld()
