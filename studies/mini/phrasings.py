"""Further wordings for practice, by the keys of WORDINGS. None of them is one of the world, nor of the unseen test.

A model that has met five wordings of a question knows five sentences; with these it has met the words in more places.
Every word is a word of the world, so the tokenizer stays as it is.
"""

PRACTICE_PHRASINGS: dict[str, tuple[str, ...]] = {
    "colour": ("Tell me which colour the {x} has.", "Find the colour of the {x}.", "Read me the colour of the {x}."),
    "thing": ("Find the {c} thing.", "Name the one {c} thing you see.", "Tell me the name of the {c} thing."),
    "count": ("Find the number of {p}.", "Count all the {p} in the image.", "Name the number of {p} you see."),
    "exists": ("Tell me, is there {a}?", "Is there {a} in the scene?", "Does the scene have {a}?"),
    "exists_row": ("Tell me, is {g} on the {d}?", "Is {g} written on the {d}?"),
    "spatial": ("Find the thing {r} the {x}.", "Tell me which thing is {r} the {x}.", "Name what is {r} the {x}."),
    "larger": ("Name the one that is {s}, the {x} or the {y}.", "Tell me the {s} one, the {x} or the {y}."),
    "largest": ("Find the {s} thing.", "Name the {s} one of all the things.", "Tell me the name of the {s} thing."),
    "read_text": ("Tell me the {c} text.", "Name the {c} word.", "Find what the {c} text says.", "Read what is {c}."),
    "read_plate": (
        "Read the text on the {c} sign.",
        "Tell me the word on the {c} sign.",
        "Find what the {c} sign says.",
    ),
    "read_place": ("Tell me the word {w}.", "Find what the {k} {w} says.", "Read what is written {w}."),
    "read_beside": ("Tell me what is written beside the {x}.", "Find what the {k} next to the {x} says."),
    "title": ("Name the title of the {d}.", "Find the title of the {d}.", "Tell me what the {d} is called."),
    "price": (
        "Find what the {g} costs.",
        "Read what the {g} costs.",
        "Name the price of the {g}.",
        "What price does the {g} have?",
        "Tell me which price the {g} has.",
    ),
    "value_of": (
        "Name the {v} of {g}.",
        "Tell me which {v} {g} has.",
        "Read which {v} {g} has.",
        "Find which {v} {g} has.",
    ),
    "total": ("Name the total.", "Read what the total is.", "Tell me what the total of the {d} is."),
    "which_costs": (
        "Find the item that costs {n}.",
        "Tell me the item that costs {n}.",
        "Name which item has the price {n}.",
        "Read the item at {n}.",
    ),
    "which_has": (
        "Read the {k} that has the {v} {n}.",
        "Name which {k} has the {v} {n}.",
        "Find which {k} has the {v} {n}.",
    ),
    "extreme": (
        "Tell me the {s} {l}.",
        "Find the {s} {l}.",
        "Find the {l} that has the {s} value.",
        "Name which {l} is {s}.",
    ),
    "bar_value": ("Name the value of {b}.", "Tell me what value {b} has.", "Read which value {b} has."),
    "which_bar": (
        "Read the {l} that has the value {n}.",
        "Tell me the {l} that has the value {n}.",
        "Name which {l} is at {n}.",
        "Find which {l} has the value {n}.",
    ),
    "odd_one_out": ("Tell me the odd one out.", "Name the thing that is different.", "Tell me what is unusual here."),
    "grey_text": ("Tell me the grey text.", "Find what the faint text says.", "Read the grey word."),
    "describe": (
        "Tell me what is in the image.",
        "Tell me all the things you see.",
        "Name what you see here.",
        "List what you see.",
        "Tell me what things are here.",
        "Name all the things in the scene.",
    ),
}
