"""Questions that need reading: signs, titles, grey text, tables, receipts and charts."""

from arr_coc_scenes.asking_things import call
from arr_coc_scenes.draft import Bar, Draft, Sign, TableRow
from arr_coc_scenes.types import Box, Element, Question, centre, gap_between
from arr_coc_scenes.words import GOODS, HEIGHTS, PLACES, phrase


def _sign_question(draft: Draft, sign: Sign, text: str, also: tuple[Box, ...] = ()) -> Question:
    rest = tuple(s.text.box for s in draft.signs if s is not sign)
    return Question(text, sign.text.text, "read_sign", (sign.text.box, *also), rest)


def _by_colour(draft: Draft) -> Question | None:
    """By the colour of its plate ("the red sign") or of its ink ("the red text"), if no other text has it."""
    inks = [e.colour for e in draft.elements if e.kind == "text"]
    worn = inks + [s.plate for s in draft.signs]
    clear = [s for s in draft.signs if worn.count(s.plate or s.text.colour) == 1]
    if not clear:
        return None
    sign = draft.rng.choice(clear)
    key, colour = ("read_plate", sign.plate) if sign.plate else ("read_text", sign.text.colour)
    return _sign_question(draft, sign, phrase(draft.rng, draft.wording, key, c=colour))


def farthest_text(texts: list[Element], place: str, reach: float) -> Element | None:
    """The text farthest to the `place` ("top" ... "right") by at least `reach` pixels, or None."""
    axis, way = {"top": (1, 1), "bottom": (1, -1), "left": (0, 1), "right": (0, -1)}[place]
    ordered = sorted(texts, key=lambda text: way * centre(text.box)[axis])
    if len(ordered) < 2:
        return None
    ahead = way * (centre(ordered[1].box)[axis] - centre(ordered[0].box)[axis])
    return ordered[0] if ahead >= reach else None


def _by_place(draft: Draft) -> Question | None:
    """As in "What does the sign at the top say?", with a clear lead of a tenth of the side."""
    place = draft.rng.choice(tuple(PLACES))
    found = farthest_text([e for e in draft.elements if e.kind == "text"], place, draft.side / 10)
    sign = next((s for s in draft.signs if s.text is found), None)
    if sign is None:
        return None
    kind = "sign" if sign.plated else "text"
    text = phrase(draft.rng, draft.wording, "read_place", k=kind, w=PLACES[place])
    return _sign_question(draft, sign, text)


def _by_thing(draft: Draft) -> Question | None:
    """As in "What does the sign beside the umbrella say?", with every other text far from it."""
    with_thing = [s for s in draft.signs if s.beside is not None]
    if not with_thing:
        return None
    sign = draft.rng.choice(with_thing)
    assert sign.beside is not None
    said = call(draft, sign.beside)
    near = gap_between(sign.box, sign.beside.box)
    rest = [e.box for e in draft.elements if e.kind == "text" and e is not sign.text]
    x_gap = min((gap_between(sign.beside.box, b) for b in rest), default=float("inf"))
    same_line = all(b[3] <= sign.text.box[1] or b[1] >= sign.text.box[3] for b in rest)
    if said is None or not (x_gap >= 1.8 * near or same_line):
        return None
    kind = "sign" if sign.plated else "text"
    text = phrase(draft.rng, draft.wording, "read_beside", k=kind, x=said)
    return _sign_question(draft, sign, text, (sign.beside.box,))


def ask_read_sign(draft: Draft) -> Question | None:
    """Read a sign that is pointed at by its colour, its place, or the thing beside it."""
    if not draft.signs:
        return None
    ways = [_by_colour, _by_place, _by_thing]
    draft.rng.shuffle(ways)
    return next((asked for way in ways if (asked := way(draft)) is not None), None)


def ask_title(draft: Draft) -> Question | None:
    """As in "What is the title of the page?": the words as drawn."""
    if draft.title is None:
        return None
    text = phrase(draft.rng, draft.wording, "title", d=draft.page)
    rest = tuple(e.box for e in draft.elements if e.kind == "text" and e is not draft.title)
    return Question(text, draft.title.text, "title", (draft.title.box,), rest)


def ask_grey_text(draft: Draft) -> Question | None:
    """As in "What does the grey text say?": the distractors are the bright signs and things around it."""
    if draft.grey is None:
        return None
    text = phrase(draft.rng, draft.wording, "grey_text")
    return Question(text, draft.grey.text, "grey_text", (draft.grey.box,), tuple(draft.loud))


def ask_lookup(draft: Draft) -> Question | None:
    """Look up a value by its row, or a row by its value: label, value, and the header if there is one."""
    if not draft.rows:
        return None
    row = draft.rng.choice(draft.rows)
    column = draft.rng.choice(sorted(row.values))
    inverse = row.word != "total" and draft.rng.random() < 0.25
    return lookup_question(draft, row, column, inverse)


def lookup_question(draft: Draft, row: TableRow, column: str, inverse: bool) -> Question:
    """The value of a row, or by its value the row (`inverse`; never the total)."""
    value, of_price = row.values[column], column == "price"
    if inverse:  # "Which item costs 3.40?"
        key = "which_costs" if of_price else "which_has"
    else:  # "What does the tea cost?", "What is the age of Anna?", "What is the total?"
        key = "total" if row.word == "total" else "price" if of_price else "value_of"
    kind = "item" if row.word in GOODS else "name"
    slots = {"g": row.word, "n": value.text, "v": column, "k": kind, "d": draft.page}
    text = phrase(draft.rng, draft.wording, key, **slots)
    header = (draft.headers[column].box,) if column in draft.headers else ()
    used = (row.label.box, value.box)
    rest = tuple(e.box for r in draft.rows for e in (r.label, *r.values.values()) if e.box not in used)
    answer = row.word if inverse else value.text
    return Question(text, answer, "lookup", (row.label.box, value.box, *header), rest)


def ask_exists_row(draft: Draft) -> Question | None:
    """As in "Is there tea on the receipt?": yes or no by the toss of a coin."""
    rng = draft.rng
    goods = [r for r in draft.rows if r.word in GOODS]
    if not goods:
        return None
    labels = tuple(r.label.box for r in draft.rows)
    if rng.random() < 0.5:
        row = rng.choice(goods)
        text = phrase(rng, draft.wording, "exists_row", g=row.word, d=draft.page)
        return Question(text, "yes", "exists", (row.label.box,), tuple(b for b in labels if b != row.label.box))
    here = {r.word for r in goods}
    absent = rng.choice([g for g in GOODS if g not in here])
    return Question(phrase(rng, draft.wording, "exists_row", g=absent, d=draft.page), "no", "exists", (), labels)


def chart_extreme(draft: Draft) -> Question | None:
    """As in "Which month is highest?": every bar is compared, one label is read."""
    high = draft.rng.random() < 0.6
    ordered = sorted(draft.bars, key=lambda b: b.value, reverse=high)
    span = max(b.value for b in draft.bars)
    if abs(ordered[0].value - ordered[1].value) < 0.06 * span:
        return None
    bar = ordered[0]
    text = phrase(draft.rng, draft.wording, "extreme", l=draft.bar_noun, s=HEIGHTS[high])
    evidence = (bar.label.box, *(b.tip for b in ordered))
    return Question(text, bar.word, "chart", evidence, tuple(b.label.box for b in ordered[1:]))


def chart_value(draft: Draft, bar: Bar, inverse: bool = False) -> Question | None:
    """As in "What is the value of May?", or `inverse`: "Which month has the value 17?", if no other bar has it."""
    if inverse and sum(b.value == bar.value for b in draft.bars) > 1:
        return None
    slots = {"b": bar.word, "l": draft.bar_noun, "n": str(bar.value)}
    text = phrase(draft.rng, draft.wording, "which_bar" if inverse else "bar_value", **slots)
    rest = tuple(b.tip for b in draft.bars if b is not bar)
    answer = bar.word if inverse else str(bar.value)
    return Question(text, answer, "chart", (bar.label.box, bar.tip, *bar.scale), rest)


def ask_chart(draft: Draft) -> Question | None:
    """Read a bar chart: the highest or lowest bar, the value of a bar, the bar of a value."""
    if not draft.bars:
        return None
    bar, way = draft.rng.choice(draft.bars), draft.rng.random()
    if way < 0.4:
        return chart_extreme(draft)
    return chart_value(draft, bar, inverse=way >= 0.8)
