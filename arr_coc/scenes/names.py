"""The nouns and colours of the world: what may be drawn and what it is called."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (216, 28, 28),
    "orange": (255, 136, 0),
    "yellow": (250, 216, 20),
    "green": (24, 150, 48),
    "blue": (36, 92, 235),
    "purple": (148, 48, 196),
    "pink": (255, 120, 192),
    "brown": (136, 80, 36),
    "black": (16, 16, 16),
    "white": (252, 252, 252),
}

# Characters of DejaVu Sans. Left out on purpose, because they look alike at 24 px: the club (clover),
# the bishop and king (pawn, crown), the film reel (radiation), the peace sign (wheel), the pen (pencil).
PICTOGRAMS: dict[str, str] = {
    **{"sun": "☀", "cloud": "☁", "umbrella": "☂", "snowman": "☃", "telephone": "☎", "cup": "☕"},
    **{"clover": "☘", "hand": "☛", "skull": "☠", "radiation": "☢", "wheel": "☸", "smiley": "☺", "moon": "☾"},
    **{"trident": "♆", "crown": "♛", "tower": "♜", "horse": "♞", "pawn": "♟", "spade": "♠", "note": "♫"},
    **{"recycle": "♻", "wheelchair": "♿", "dice": "⚄", "flag": "⚑", "hammer": "⚒", "anchor": "⚓"},
    **{"sword": "⚔", "scale": "⚖", "flask": "⚗", "gear": "⚙", "lily": "⚜", "lightning": "⚡", "coin": "⛃"},
    **{"key": "⚷", "scissors": "✂", "airplane": "✈", "envelope": "✉", "pencil": "✎", "tick": "✔"},
    **{"flower": "✿", "snowflake": "❄", "keyboard": "⌨", "house": "⌂", "cat": "🐱", "cow": "🐮", "monkey": "🐵"},
    **{"leaf": "❧", "arrow": "➡"},
}
SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "bowtie", "cross", "ring")
THINGS: tuple[str, ...] = (*PICTOGRAMS, *SHAPES)

_NOUNS = {
    "scissors": "pair of scissors",
    "recycle": "recycle sign",
    "radiation": "radiation sign",
    "lightning": "lightning bolt",
}
_PLURALS = {
    "scissors": "pairs of scissors",
    "recycle": "recycle signs",
    "radiation": "radiation signs",
    "snowman": "snowmen",
    "dice": "dice",
    "leaf": "leaves",
    "lily": "lilies",
    "lightning": "lightning bolts",
    "cross": "crosses",
}

GOODS = (
    *("tea", "coffee", "milk", "bread", "butter", "cheese", "soup", "salad", "pasta", "rice", "fish", "cake"),
    *("juice", "water", "apple", "banana", "lemon", "melon", "onion", "potato", "tomato", "carrot", "sugar"),
    *("salt", "honey", "jam", "egg", "ham", "pizza", "wine", "beer", "cocoa", "soap", "paper", "candle"),
)
PEOPLE = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jack", "Kate", "Leo"),
    *("Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Vera"),
)
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# Columns of a table: what they are called for goods and for people, and the range of their whole numbers.
GOODS_COLUMNS = ("price", "weight", "stock")
PEOPLE_COLUMNS = ("age", "score", "height")

# Real words for signs and titles, drawn in capitals. Answers spell them: no whole words of the world.
SIGN_WORDS = (
    *("OPEN", "EXIT", "STOP", "SALE", "TAXI", "BANK", "HOTEL", "CAFE", "BAKERY", "MUSEUM", "PARK", "POLICE"),
    *("MARKET", "STREET", "BRIDGE", "SCHOOL", "CINEMA", "GARDEN", "HARBOR", "STATION", "LIBRARY", "OFFICE"),
    *("PUSH", "PULL", "ENTRY", "CLOSED", "DANGER", "QUIET", "PRIVATE", "WELCOME", "NORTH", "SOUTH", "EAST"),
    *("WEST", "RIVER", "FOREST", "WINTER", "SUMMER", "REPORT", "NOTES", "WEEKLY", "ANNUAL", "GUIDE", "STORY"),
    *("MUSIC", "TRAVEL", "HEALTH", "SCIENCE", "NATURE", "WEATHER", "KITCHEN", "ENERGY", "TRADE", "ISLAND"),
)


def noun(thing: str) -> str:
    """How a sentence calls one `thing`: "umbrella", "pair of scissors"."""
    return _NOUNS.get(thing, thing)


def plural(thing: str) -> str:
    """How a sentence calls several of `thing`: "umbrellas", "pairs of scissors"."""
    return _PLURALS.get(thing, thing + "s")


def with_article(phrase: str) -> str:
    """`phrase` with "a" or "an" before it."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"
