"""Questions of training alone that teach which label belongs to which value.

A model that reads every letter can still fail to bind: "Which item costs 3.40?" needs the value found and its row
followed. These questions take that in small steps: two values by their labels, two labels by their values, a
neighbour, a comparison, a column in order; and in large ones: all pairs, in either direction, or sorted by value.
All words are words of the world, so the tokenizer stays as it is, and no wording is one of the unseen test.
"""

from collections.abc import Sequence

import numpy as np

from arr_coc_scenes import Question
from arr_coc_scenes.draft import Draft
from studies.mini.facts import Column, Entry, value_columns

FAMILY = "binding"
MOST = 5  # entries of a long list; more would fill the row


def binding_question(draft: Draft, rng: np.random.Generator) -> Question | None:
    """A question about the pairs of the scene's table or chart; None where it has neither."""
    columns = value_columns(draft)
    if not columns:
        return None
    column = columns[int(rng.integers(len(columns)))]
    return WAYS[int(rng.integers(len(WAYS)))](column, rng)


def _all_pairs(column: Column, rng: np.random.Generator) -> Question:
    """As in "List the item and price pairs.": "tea 3.40, milk 2.10"; from five on, the first five."""
    inverse = bool(rng.random() < 0.5)
    first, second = (column.measure, column.noun) if inverse else (column.noun, column.measure)
    text = f"{_one(rng, 'List', 'Read', 'Name')} the {first} and {second} pairs."
    return _listed(text, column.entries[:MOST], inverse)


def _sorted_pairs(column: Column, rng: np.random.Generator) -> Question:
    """As in "List the month and value pairs, lowest to highest."; from five on, the first five."""
    down = bool(rng.random() < 0.5)
    ends = "highest to lowest" if down else "lowest to highest"
    text = f"List the {column.noun} and {column.measure} pairs, {ends}."
    return _listed(text, _by_value(column.entries, down)[:MOST], inverse=False)


def _values_of(column: Column, rng: np.random.Generator) -> Question:
    """As in "List the price of tea and milk."."""
    few = _few(column, rng)
    text = f"List the {column.measure} of {_and([e.word for e in few])}."
    return _listed(text, few, inverse=False)


def _words_of(column: Column, rng: np.random.Generator) -> Question:
    """As in "Name the item that has the price 3.40 and 2.10."."""
    few = _few(column, rng)
    text = (
        f"{_one(rng, 'Name', 'List')} the {column.noun} that has the {column.measure} {_and([e.value for e in few])}."
    )
    return _listed(text, few, inverse=True)


def _compared(column: Column, rng: np.random.Generator) -> Question:
    """As in "Which has the highest value, January or March?"."""
    few, high = _few(column, rng), bool(rng.random() < 0.5)
    named = f"{', '.join(e.word for e in few[:-1])} or {few[-1].word}"
    text = f"Which has the {'highest' if high else 'lowest'} {column.measure}, {named}?"
    return _question(text, _by_value(few, high)[0].word, few)


def _next_word(column: Column, rng: np.random.Generator) -> Question:
    """As in "Which month is just right of March?": the neighbour in the table or chart."""
    at = int(rng.integers(len(column.entries) - 1))
    pair = column.entries[at : at + 2]
    forward = bool(rng.random() < 0.5)
    place = (("above", "below") if column.below else ("left of", "right of"))[forward]
    known, wanted = pair if forward else pair[::-1]
    return _question(f"Which {column.noun} is just {place} {known.word}?", wanted.word, pair)


def _in_order(column: Column, rng: np.random.Generator) -> Question:
    """As in "Read all the price text.": one column from its first entry on, labels or values alone."""
    entries = column.entries[: MOST + 2]
    if rng.random() < 0.5:
        return _question(f"Read all the {column.noun} text.", ", ".join(e.word for e in entries), entries)
    return _question(f"Read all the {column.measure} text.", ", ".join(e.value for e in entries), entries)


WAYS = (_all_pairs, _all_pairs, _sorted_pairs, _values_of, _words_of, _words_of, _compared, _next_word, _in_order)


def _few(column: Column, rng: np.random.Generator) -> list[Entry]:
    """Two or three entries in any order."""
    count = min(int(rng.integers(2, 4)), len(column.entries))
    return [column.entries[int(k)] for k in rng.permutation(len(column.entries))[:count]]


def _by_value(entries: Sequence[Entry], down: bool) -> list[Entry]:
    return sorted(entries, key=lambda e: float(e.value), reverse=down)


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _one(rng: np.random.Generator, *wordings: str) -> str:
    return wordings[int(rng.integers(len(wordings)))]


def _listed(text: str, entries: Sequence[Entry], inverse: bool) -> Question:
    pairs = [f"{e.value} {e.word}" if inverse else f"{e.word} {e.value}" for e in entries]
    return _question(text, ", ".join(pairs), entries)


def _question(text: str, answer: str, entries: Sequence[Entry]) -> Question:
    return Question(text, answer, FAMILY, tuple(dict.fromkeys(b for e in entries for b in e.boxes)), ())
