"""How questions about clips and about several images are worded: per key those of training, and the held-out ones.

Every word of a held-out wording is a word of training.
"""

import re
from functools import cache

Wording = tuple[tuple[str, ...], tuple[str, ...]]
CLIP_WORDINGS: dict[str, Wording] = {
    "moves": (
        ("What moves?", "What is moving?", "Which thing moves?", "What moves in the clip?", "Name what moves."),
        ("Which thing is moving in the clip?", "Tell me what moves."),
    ),
    "moving_colour": (
        ("What colour is the thing that moves?", "Which colour has the moving thing?"),
        ("What colour is the moving thing?",),
    ),
    "direction": (
        ("Where does the {x} move?", "Which way does the {x} move?", "In which direction does the {x} move?"),
        ("Where is the {x} moving?", "In which direction is the {x} moving?"),
    ),
    "way": (
        ("Which way does it move?", "Where does the moving thing go?", "What is the direction of the motion?"),
        ("In which direction does the moving thing go?",),
    ),
    "who_goes": (
        ("What moves {w}?", "Which thing moves {w}?", "What goes {w}?"),
        ("Which thing goes {w}?",),
    ),
    "stays": (
        ("What does not move?", "What stays where it is?", "Which thing stays still?"),
        ("Which thing does not move?",),
    ),
    "appears": (
        ("What appears?", "What is new at the end?", "Which thing appears in the clip?", "What comes into view?"),
        ("Which thing comes into view?", "Tell me what appears."),
    ),
    "leaves": (
        ("What leaves?", "What disappears?", "Which thing disappears in the clip?", "What is missing at the end?"),
        ("Which thing is missing at the end?", "Tell me what leaves."),
    ),
    "comes_or_goes": (
        ("Does the {x} appear or leave?", "What happens to the {x}?"),
        ("What does the {x} do, appear or leave?",),
    ),
    "blinks": (("What blinks?", "Which thing blinks?", "What comes and goes?"), ("Which thing comes and goes?",)),
    "which_appears": (
        ("Which appears {o}, the {x} or the {y}?", "What comes {o}, the {x} or the {y}?"),
        ("Which thing comes {o}, the {x} or the {y}?",),
    ),
    "which_leaves": (
        ("Which leaves {o}, the {x} or the {y}?", "What disappears {o}, the {x} or the {y}?"),
        ("Which thing leaves {o}, the {x} or the {y}?",),
    ),
    "order_appears": (
        ("What appears {o}?", "Which thing appears {o}?", "What comes {o}?"),
        ("Which thing comes {o}?",),
    ),
    "order_leaves": (
        ("What leaves {o}?", "Which thing leaves {o}?", "What disappears {o}?"),
        ("Which thing disappears {o}?",),
    ),
    "after_appears": (
        ("What appears after the {x}?", "What comes next after the {x}?"),
        ("Which thing appears after the {x}?",),
    ),
    "after_leaves": (
        ("What leaves after the {x}?", "What disappears next after the {x}?"),
        ("Which thing leaves after the {x}?",),
    ),
    "list_appears": (
        ("In which order do things appear?", "What appears, in order?"),
        ("Name what appears, in order.",),
    ),
    "list_leaves": (
        ("In which order do things leave?", "What leaves, in order?"),
        ("Name what leaves, in order.",),
    ),
    "often": (
        ("How often does the {x} appear?", "How many times does the {x} appear?", "How often does the {x} blink?"),
        ("How many times does the {x} blink?",),
    ),
    "count_start": (
        ("How many things are there at the start?", "How many things do you see at the start of the clip?"),
        ("How many things are in the clip at the start?",),
    ),
    "count_end": (
        ("How many things are there at the end?", "How many things do you see at the end of the clip?"),
        ("How many things are in the clip at the end?",),
    ),
    "moving_sign": (
        ("What does the moving sign say?", "Read the moving sign.", "What is written on the moving sign?"),
        ("Tell me what the moving sign says.",),
    ),
    "sign": (
        ("What does the sign say?", "Read the sign.", "What is written on the sign?"),
        ("Tell me what the sign says.",),
    ),
    "colour": (
        ("What colour is the {x}?", "Which colour is the {x}?", "Tell me the colour of the {x}."),
        ("Which colour does the {x} have?",),
    ),
    "thing": (("What is the {c} thing?", "Which thing is {c}?", "Name the {c} thing."), ("What thing is {c}?",)),
    "exists": (
        ("Is there {a}?", "Is there {a} in the clip?", "Do you see {a} in the video?", "Does {a} appear?"),
        ("Is there {a} in the video?",),
    ),
    "story": (("What happens?", "Describe the clip.", "What happens in the video?"), ("Tell me what happens.",)),
}
SEVERAL_WORDINGS: dict[str, Wording] = {
    "which": (
        ("Which image has {a}?", "Which image shows {a}?", "In which image is there {a}?", "Where do you see {a}?"),
        ("In which image do you see {a}?", "Tell me which image has {a}."),
    ),
    "says": (
        ("Which image says {s}?", "In which image is {s} written?", "Where is {s} written?"),
        ("Which image has the text {s}?",),
    ),
    "page": (
        ("Which image shows {a}?", "Which image is {a}?"),
        ("Tell me which image shows {a}.",),
    ),
    "images": (
        ("How many images show {a}?", "How many images have {a}?", "In how many images is there {a}?"),
        ("In how many images do you see {a}?",),
    ),
    "both": (
        ("Do both images show {a}?", "Is there {a} in both images?"),
        ("Do both images have {a}?",),
    ),
    "differs": (
        ("What differs between the images?", "What is different?", "What has changed?", "What is not the same?"),
        ("What is different between the images?",),
    ),
    "missing": (
        ("What is missing in the {o} image?", "What does the {o} image not have?"),
        ("Which thing is missing in the {o} image?",),
    ),
    "recoloured": (
        ("Which thing has another colour in the {o} image?", "What changes its colour?"),
        ("Which thing changes its colour?",),
    ),
    "odd": (
        ("Which image is different?", "Which image is not like the others?", "Which image differs?"),
        ("Which image is not the same?",),
    ),
    "own": (
        ("In the {o} image, {q}", "Look at the {o} image. {Q}", "The {o} image: {q}"),
        ("About the {o} image: {q}",),
    ),
}
ORDINALS = ("first", "second", "third", "fourth")
# Words that the wide words before these do not have -> one of those, near which its row starts.
ORIGINS: dict[str, str] = {
    **{"first": "left", "second": "right", "third": "top", "fourth": "bottom", "last": "right"},
    **{"up": "above", "down": "below", "images": "image", "Images": "image", "clip": "scene", "video": "scene"},
    **{"seconds": "number", "moves": "is", "move": "is", "moving": "is", "motion": "thing", "direction": "thing"},
    **{"appears": "is", "appear": "see", "leave": "see", "disappears": "is", "disappear": "see", "blinks": "is"},
    **{"blink": "see", "comes": "is", "come": "see", "goes": "is", "go": "see", "stays": "is", "stay": "see"},
    **{"still": "in", "order": "number", "often": "many", "times": "number", "start": "top", "end": "bottom"},
    **{"happens": "is", "missing": "unusual", "new": "different", "view": "image", "both": "image"},
    **{"differs": "different", "between": "in", "changed": "different", "changes": "is", "same": "different"},
    **{"another": "different", "shows": "has", "after": "right", "before": "left", "its": "the", "none": "no"},
    **{"About": "Tell", "Look": "Tell", "Where": "Which", "frame": "image", "frames": "image", "then": "the"},
    **{"it": "thing", "into": "in", "way": "thing", "In": "in", "The": "the", "about": "Tell", "look": "Tell"},
    **{"where": "Which", "pictures": "picture", "photos": "photo", "clips": "scene", "videos": "scene"},
}
_WORD = re.compile(r"[A-Za-z]+")


@cache
def view_words() -> tuple[str, ...]:
    """Every word of these wordings and of their answers, as it stands there and in small letters."""
    tables = (CLIP_WORDINGS, SEVERAL_WORDINGS)
    phrases = [text for table in tables for pair in table.values() for wordings in pair for text in wordings]
    phrases += [*ORIGINS, *ORDINALS, "up down left right the image none seconds stays"]
    found = {word for text in phrases for word in _WORD.findall(re.sub(r"\{\w\}", " ", text))}
    return tuple(sorted(word for word in found | {word.lower() for word in found} if len(word) > 1))
