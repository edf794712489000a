"""The scenes task without lmms-eval: documents, their pictures, and what an answer is worth.

The questions are those of `arr-coc eval`, and so are the scores: a description's is F1, every other's exact match.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from PIL import Image

from arr_coc.evaluation.field.data import DESCRIBE, exact, scene_pictures, score
from arr_coc_scenes import FAMILIES, draw_scene, make_scene

Document = dict[str, Any]  # plain values: lmms-eval writes it beside the answer
OF_FAMILY = {family: f"{'f1' if family == DESCRIBE else 'exact_match'}_{family}" for family in FAMILIES}
METRICS = ("accuracy", "exact_match", *OF_FAMILY.values())


def scene_documents(questions: int, side: int, seed: int) -> list[Document]:
    """`questions` questions about square scenes of `side` px. More questions begin with the same ones."""
    return [
        {
            "image": picture.number,
            "seed": seed * 1_000_000 + picture.number,  # of the scene, as `scene_pictures` draws it
            "side": side,
            "question": query.text,
            "answer": query.answers[0],
            "family": query.family,
            "metric": query.metric,
        }
        for picture in scene_pictures(questions, side, seed)
        for query in picture.queries
    ]


def pictures(document: Document) -> list[Image.Image]:
    """The one picture that a document asks about."""
    return [_draw(document["seed"], document["side"])]


@lru_cache(maxsize=2)  # the questions about a scene follow each other
def _draw(seed: int, side: int) -> Image.Image:
    return Image.fromarray(draw_scene(make_scene(seed, "seen", (side, side))))


def judge(document: Document, answers: Sequence[str]) -> dict[str, dict[str, float] | None]:
    """A value for every metric, None for the other families'. The image is what standard errors are clustered by."""

    def item(value: float) -> dict[str, float]:
        return {"score": value, "image": document["image"]}

    given, expected = answers[0], (document["answer"],)
    value = score(document["metric"], given, expected)
    assert value is not None, "every scene has its answer"
    families = {name: item(value) if family == document["family"] else None for family, name in OF_FAMILY.items()}
    return {"accuracy": item(value), "exact_match": item(exact(given, expected)), **families}


def mean_score(items: Sequence[dict[str, float] | None]) -> float | str:
    """The mean over the items that count; "N/A", as lmms-eval writes it, where there are none."""
    scores = [item["score"] for item in items if item is not None]
    return sum(scores) / len(scores) if scores else "N/A"
