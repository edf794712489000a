"""How questions are worded, and every whole word of the world. Per key: phrasings of training, and of the unseen test.

Every word of an unseen phrasing is also a word of training: the wording is new, the words are not.
"""

import re
from collections.abc import Mapping
from functools import cache
from random import Random

from arr_coc.scenes import names

PHRASINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "colour": (
        (
            "What colour is the {x}?",
            "Which colour is the {x}?",
            "What is the colour of the {x}?",
            "Tell me the colour of the {x}.",
            "What colour does the {x} have?",
        ),
        ("Which colour does the {x} have?", "Name the colour of the {x}."),
    ),
    "thing": (
        (
            "What is the {c} thing?",
            "Which thing is {c}?",
            "What thing is {c}?",
            "Name the {c} thing.",
            "Tell me what the {c} thing is.",
            "Tell me which thing is {c}.",
        ),
        ("What is the thing that is {c}?", "Name the thing that is {c}."),
    ),
    "count": (
        (
            "How many {p} are there?",
            "How many {p} do you see?",
            "Count the {p}.",
            "What is the number of {p}?",
            "How many {p} are in the image?",
            "How many {p} does the image have?",
        ),
        ("How many {p} are here?", "Tell me the number of {p}.", "How many {p} do you see here?"),
    ),
    "exists": (
        (
            "Is there {a}?",
            "Is there {a} in the image?",
            "Do you see {a}?",
            "Can you see {a} here?",
            "Does the image have {a}?",
        ),
        ("Is there {a} here?", "Do you see {a} in the image?", "Can you see {a} in the image?"),
    ),
    "exists_row": (
        ("Is there {g} on the {d}?", "Does the {d} have {g}?", "Do you see {g} on the {d}?", "Is {g} on the {d}?"),
        ("Can you see {g} on the {d}?", "Is there {g} here on the {d}?"),
    ),
    "spatial": (
        (
            "What is {r} the {x}?",
            "Which thing is {r} the {x}?",
            "What thing is {r} the {x}?",
            "Name the thing {r} the {x}.",
            "Tell me what is {r} the {x}.",
        ),
        ("What do you see {r} the {x}?", "What is the thing {r} the {x}?"),
    ),
    "larger": (
        (
            "Which is {s}, the {x} or the {y}?",
            "What is {s}, the {x} or the {y}?",
            "Which thing is {s}, the {x} or the {y}?",
            "Which one is {s}, the {x} or the {y}?",
        ),
        ("Tell me which is {s}, the {x} or the {y}.", "Is the {x} or the {y} {s}?"),
    ),
    "largest": (
        (
            "What is the {s} thing?",
            "Which thing is the {s}?",
            "Name the {s} thing.",
            "Tell me what the {s} thing is.",
            "Which thing is {s} of all?",
        ),
        ("What is the {s} thing of all?", "Tell me which thing is the {s}."),
    ),
    "read_text": (
        (
            "What does the {c} text say?",
            "Read the {c} text.",
            "What is the {c} text?",
            "What is written in {c}?",
            "Which word is {c}?",
        ),
        ("Tell me what the {c} text says.", "What word is written in {c}?"),
    ),
    "read_plate": (
        (
            "What does the {c} sign say?",
            "Read the {c} sign.",
            "What is written on the {c} sign?",
            "Tell me what the {c} sign says.",
        ),
        ("What word is on the {c} sign?", "What text is on the {c} sign?"),
    ),
    "read_place": (
        ("What does the {k} {w} say?", "Read the {k} {w}.", "What is the word {w}?", "Tell me what the {k} {w} says."),
        ("What is written {w}?", "Read the word {w}."),
    ),
    "read_beside": (
        (
            "What does the {k} beside the {x} say?",
            "Read the {k} beside the {x}.",
            "What is written beside the {x}?",
            "What does the {k} next to the {x} say?",
            "What is written next to the {x}?",
        ),
        ("What word is beside the {x}?", "Read the word next to the {x}."),
    ),
    "title": (
        (
            "What is the title of the {d}?",
            "What is the title?",
            "Read the title of the {d}.",
            "What does the title say?",
            "What is the {d} called?",
        ),
        ("Tell me the title of the {d}.", "What does the title of the {d} say?"),
    ),
    "price": (
        (
            "What does the {g} cost?",
            "How much is the {g}?",
            "What is the price of the {g}?",
            "How much does the {g} cost?",
            "Tell me the price of the {g}.",
        ),
        ("Read the price of the {g}.", "Find the price of the {g}.", "Tell me what the {g} costs."),
    ),
    "value_of": (
        ("What is the {v} of {g}?", "Tell me the {v} of {g}.", "Which {v} does {g} have?", "Read the {v} of {g}."),
        ("What {v} does {g} have?", "Find the {v} of {g}."),
    ),
    "total": (
        ("What is the total?", "How much is the total?", "Tell me the total.", "Read the total of the {d}."),
        ("What is the total of the {d}?", "Find the total."),
    ),
    "which_costs": (
        ("Which item costs {n}?", "What costs {n}?", "Which item has the price {n}?", "Name the item that costs {n}."),
        ("Tell me which item costs {n}.", "What item has the price {n}?"),
    ),
    "which_has": (
        (
            "Which {k} has the {v} {n}?",
            "Name the {k} that has the {v} {n}.",
            "Find the {k} that has the {v} {n}.",
            "What {k} has the {v} {n}?",
        ),
        ("Tell me which {k} has the {v} {n}.", "Tell me the {k} that has the {v} {n}."),
    ),
    "extreme": (
        (
            "Which {l} is {s}?",
            "Which {l} has the {s} bar?",
            "Which {l} has the {s} value?",
            "What is the {s} {l}?",
            "Name the {s} {l}.",
        ),
        ("What {l} is {s}?", "Tell me which {l} has the {s} value."),
    ),
    "bar_value": (
        (
            "What is the value of {b}?",
            "What value does {b} have?",
            "How high is {b}?",
            "Read the value of {b}.",
            "Tell me the value of {b}.",
        ),
        ("Which value does {b} have?", "Find the value of {b}."),
    ),
    "which_bar": (
        (
            "Which {l} has the value {n}?",
            "Which {l} is at {n}?",
            "What {l} has the value {n}?",
            "Name the {l} that has the value {n}.",
        ),
        ("Tell me which {l} has the value {n}.", "Find the {l} that has the value {n}."),
    ),
    "odd_one_out": (
        (
            "What is unusual here?",
            "What is the odd one out?",
            "Which thing is different?",
            "Find the odd one out.",
            "What does not belong here?",
            "Which one is not like the others?",
        ),
        ("Which thing does not belong here?", "Name the odd one out.", "Which one is different?"),
    ),
    "grey_text": (
        (
            "What does the grey text say?",
            "Read the grey text.",
            "What is written in grey?",
            "What does the faint text say?",
            "Read the faint text.",
        ),
        ("Tell me what the grey text says.", "Which word is grey?", "What is the faint text?"),
    ),
    "describe": (
        (
            "Describe the scene.",
            "Describe the image.",
            "What do you see?",
            "List the things.",
            "What is in the image?",
            "Name all the things and their colours.",
        ),
        ("List all the things in the image.", "Tell me what you see.", "What do you see in the image?"),
    ),
}

# Words that fill {r}, {w} and {s}.
RELATIONS = {
    "left": ("left of", "to the left of", "just left of"),
    "right": ("right of", "to the right of", "just right of"),
    "above": ("above", "just above"),
    "below": ("below", "under", "just below"),
    "nearest": ("nearest to", "closest to"),
}
PLACES = {"top": "at the top", "bottom": "at the bottom", "left": "on the left", "right": "on the right"}
SIZES = {True: ("larger", "bigger"), False: ("smaller",)}
MOST = {True: ("largest", "biggest"), False: ("smallest",)}
HEIGHTS = {True: "highest", False: "lowest"}
PAGES = ("page", "poster", "table", "receipt", "menu", "chart")


Wordings = Mapping[str, tuple[str, ...]]
WORDINGS: dict[str, Wordings] = {
    "seen": {key: seen for key, (seen, _) in PHRASINGS.items()},
    "unseen": {key: unseen for key, (_, unseen) in PHRASINGS.items()},
}


def phrase(rng: Random, wordings: Wordings, key: str, **slots: str) -> str:
    """A question of that key with its slots filled, in one of the wordings."""
    return rng.choice(wordings[key]).format(**slots)


# ---------------------------------------------------------------- every word

MARKS = (".", ",", "?")
_ANSWERS = ("thing", "things", "sign", "text", "item", "name", "month", "day", "total", "yes", "no", "a", "an")
_SLOT = re.compile(r"\{\w+\}")
_WORD = re.compile(r"[A-Za-z]+")


def phrasing_words(unseen: bool) -> set[str]:
    """The words of the phrasings themselves, slots left out."""
    return {w for pair in PHRASINGS.values() for p in pair[unseen] for w in _WORD.findall(_SLOT.sub(" ", p))}


def slot_words() -> set[str]:
    """The words that can fill a slot or be an answer."""
    phrases = [say(t) for say in (names.noun, names.plural, str) for t in names.THINGS] + list(names.COLOURS)
    phrases += [w for group in (*RELATIONS.values(), *SIZES.values(), *MOST.values()) for w in group]
    phrases += [*PLACES.values(), *HEIGHTS.values(), *PAGES, *names.GOODS, *names.PEOPLE, *names.MONTHS, *names.DAYS]
    phrases += [*names.GOODS_COLUMNS, *names.PEOPLE_COLUMNS, *_ANSWERS]
    return {w for p in phrases for w in _WORD.findall(p)}


@cache
def world_words() -> tuple[str, ...]:
    """All whole words, sorted, as they are cased in sentences, for a tokenizer, and the punctuation marks."""
    return (*sorted(phrasing_words(False) | phrasing_words(True) | slot_words()), *MARKS)
