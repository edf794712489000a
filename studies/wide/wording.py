"""Questions as people type them: American and British spelling, synonyms, capitals, missing marks.

A wording is changed, never its meaning, and the answer stays as it is. No change makes a held-out wording
(`held_out.WORDINGS`) out of one of training: words are exchanged one for one, sentences keep their order.
"""

import re
from dataclasses import replace
from functools import cache
from random import Random
from typing import TypeVar

from arr_coc_scenes.types import Question
from arr_coc_scenes.words import DAYS, MONTHS, PEOPLE, world_words
from studies.mini.views import ViewQuestion

# Spellings and synonyms by the word or words that they stand for. Each is one token after `start.py` made room for it.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "colour": ("color",),
    "colours": ("colors",),
    "grey": ("gray",),
    "thing": ("object",),
    "things": ("objects",),
    "image": ("picture", "photo"),
    "scene": ("picture", "image"),
    "telephone": ("phone",),
    "telephones": ("phones",),
    "airplane": ("plane", "aeroplane"),
    "airplanes": ("planes", "aeroplanes"),
    "cup": ("mug",),
    "cups": ("mugs",),
    "gear": ("cog",),
    "gears": ("cogs",),
    "tick": ("checkmark",),
    "ticks": ("checkmarks",),
    "house": ("home",),
    "houses": ("homes",),
    "cross": ("plus",),
    "crosses": ("pluses",),
    "diamond": ("rhombus",),
    "smiley": ("face",),
    "smileys": ("faces",),
    "cat": ("kitten",),
    "cats": ("kittens",),
    "scale": ("balance",),
    "horse": ("knight",),
    "horses": ("knights",),
    "tower": ("castle",),
    "towers": ("castles",),
    "lightning bolt": ("lightning", "flash"),
    "lightning bolts": ("flashes",),
    "pair of scissors": ("scissors",),
    "pairs of scissors": ("scissors",),
    "recycle sign": ("recycle symbol",),
    "radiation sign": ("radiation symbol",),
    "recycle signs": ("recycle symbols",),
    "radiation signs": ("radiation symbols",),
    "largest": ("greatest",),
    "smallest": ("tiniest",),
    "highest": ("greatest", "largest"),
    "lowest": ("least", "smallest"),
    "title": ("heading", "headline"),
    "total": ("sum",),
    "faint": ("pale",),
    "unusual": ("strange",),
    "different": ("unlike",),
    "Tell me": ("Say", "Show me"),
    "written": ("printed",),
}
Q = TypeVar("Q", Question, ViewQuestion)
_HOW_MANY = re.compile(r"How many (?P<p>.+?) (?:are there|do you see|are in the image|does the image have)\?")
_ASKING = ("What", "Which", "How", "Is", "Do", "Does", "Can")
_CHART_WORDS = {"line": {"bar": "point"}, "pie": {"bar": "slice", "How high": "How large"}}


def fit_chart(question: Question, chart: str) -> Question:
    """A question about bars in the words of a line chart or a pie."""
    text = question.text
    for old, new in _CHART_WORDS.get(chart, {}).items() if question.family == "chart" else ():
        text = re.sub(rf"\b{old}\b", new, text)
    return replace(question, text=text) if text != question.text else question


@cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(SYNONYMS, key=len, reverse=True)
    return re.compile(r"\b(" + "|".join(map(re.escape, longest_first)) + r")\b")


def _exchanged(text: str, rng: Random, share: float) -> str:
    """Each word that has a synonym is exchanged with the probability `share`."""

    def other(found: re.Match[str]) -> str:
        word = found.group(1)
        return rng.choice(SYNONYMS[word]) if rng.random() < share else word

    return _pattern().sub(other, text)


def _shortened(text: str) -> str:
    """As in "Number of stars?", where the question is how many."""
    found = _HOW_MANY.fullmatch(text)
    return f"Number of {found.group('p')}?" if found else text


def _typed(text: str, rng: Random) -> str:
    """Capitals and marks as they are typed: all small, without the mark at the end, rarely all large."""
    way = rng.random()
    if way < 0.35:
        text = " ".join(word if _is_free(word) else word.lower() for word in text.split(" "))
    elif way < 0.38:
        text = text.upper()
    if rng.random() < 0.4:
        text = text.rstrip("?.")
    return text


def _is_free(word: str) -> bool:
    """Whether a word is spelled letter by letter: a text of the image in a question keeps its capitals."""
    return len(word) > 1 and word.strip("?.,").isupper()


def reworded(question: Q, rng: Random) -> Q:
    """The question with other spelling, synonyms, capitals and marks; answer and evidence stay."""
    text = question.text
    if question.family == "count" and rng.random() < 0.1:
        text = _shortened(text)
    text = _exchanged(text, rng, rng.choice((0.0, 0.4, 0.8)))
    if rng.random() < 0.08:
        opening = "Hello," if text.startswith(_ASKING) else "Please"
        text = f"{opening} {text[0].lower()}{text[1:]}"
    return replace(question, text=_typed(text, rng))


@cache
def new_words() -> dict[str, str]:
    """Words that training says beyond the old world, each with the old word whose meaning it starts from."""
    known = sorted(word for word in world_words() if word.isalpha())
    found: dict[str, str] = {}
    for old, others in SYNONYMS.items():
        for phrase in others:
            for word in phrase.split():
                found.setdefault(word, old.split()[-1])
    found |= {"Please": "Tell", "Hello": "Tell", "point": "bar", "slice": "bar", "large": "high", "symbols": "signs"}
    found |= {"Say": "Tell", "Show": "Tell", "Number": "number"}
    for word in (*known, *found):
        if word.islower():
            continue
        found.setdefault(word.lower(), word)
    for word in (*MONTHS, *DAYS, *PEOPLE):
        found.setdefault(word.lower(), word)
    return {word: old for word, old in found.items() if word not in known and len(word) > 1}
