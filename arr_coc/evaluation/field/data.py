"""What the field is asked, and how right an answer is: images with their questions, drawn or from local files.

Images are read when they are needed. A dataset is

scenes                       the `seen` split, of one size in px
coco:... vqa:... docvqa:... chartqa:... jsonl:...     see `arr_coc.data.sources`

and is scored by its own customs, every score in [0, 1]:

exact     the expected text, blanks around it aside
normal    the expected text; case, articles, points and number words aside
f1        descriptions: over (colour, thing) pairs
anls      documents: 1 less the edit distance over the longer length, 0 where that is 0.5 or less; best answer
relaxed   charts: numbers within 5 %, texts exact, small letters
vqa       VQAv2: mean over the people of min(1, others who said the same / 3)
contains  an answer that stands in what was said, as whole words where a script parts them; else as `normal`
choice    one of several: by its letter, or by its text
none      nobody knows the answer: only evidence counts
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from arr_coc.data.examples import FileImage
from arr_coc.data.rows import MAX_BROKEN
from arr_coc.data.sources import FORMS, METRIC_OF, parse_source, read_source
from arr_coc.images.reader import read_image
from arr_coc_scenes import COLOURS, Question, Scene, draw_scene, make_scene

PER_IMAGE = 6  # questions asked about one scene
DESCRIBE = "describe"
# Families whose answer is a text of the image; charts need heights and places as well.
READING = ("read_sign", "title", "lookup", "grey_text")
SPREAD = (DESCRIBE, "count", "exists")  # families whose evidence may be anywhere; all others are localised
Share = tuple[float, float, float, float]  # left, top, right, bottom as shares of the image
SMALL_TEXT_PX = 20  # font size in px of the drawn scene up to which a text is small
MANY_THINGS = 8
SMALL_TEXT, MANY = "small text", "many things"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
BRIEF = "Answer with a word or a short phrase."
CHOOSE = "Answer with the letter of the right choice."
PROMPT_OF = dict.fromkeys(("vqa", "docvqa", "chartqa", "jsonl"), BRIEF)  # by the kind of the files, unless asked for
ANLS_LEAST = 0.5  # similarities up to here count as wrong
RELAXED = 0.05  # of the expected number
_ARTICLES = {"a", "an", "the"}
# Thai to Burmese, Khmer, kana, Chinese; Korean parts words, and lets endings stick to them.
UNPARTED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {"none": "0", **{word: str(number) for number, word in enumerate(_WORDS)}}

Record = dict[str, Any]  # an answer: a line of the file of samples


@dataclass(frozen=True, slots=True)
class Query:
    """One question about an image."""

    text: str
    answers: tuple[str, ...]
    metric: str
    family: str
    boxes: tuple[Share, ...] | None  # where the answer is; () nothing is there, None not known
    groups: tuple[str, ...] = ()  # further groups of reports, such as small text
    choices: tuple[str, ...] = ()  # what there is to choose from, A first
    gaze: tuple[tuple[float, float], ...] | None = None  # where people looked, x and y as shares of the image


@dataclass(frozen=True, slots=True)
class Picture:
    """An image, which is read only when asked for, and what is asked about it."""

    number: int  # the cluster of the statistics, and the image number of random draws
    size: tuple[int, int]  # (width, height) px
    read: Callable[[], np.ndarray]  # uint8 [height, width, 3]
    queries: tuple[Query, ...]


def ask_scenes(
    split: str, questions: int, size: tuple[int, int] | None, seed: int, difficulty: str | None = None
) -> Iterator[tuple[int, Scene, list[Question]]]:
    """(number, scene, what is asked): `questions` questions in all, at most PER_IMAGE of a scene, drawn at random."""
    left, number = questions, 0
    while left > 0:
        scene = make_scene(seed * 1_000_000 + number, split, size, difficulty)
        order = np.random.default_rng([seed, number]).permutation(len(scene.questions))
        asked = [scene.questions[i] for i in order[: min(PER_IMAGE, left)].tolist()]
        if asked:
            yield number, scene, asked
            left -= len(asked)
        number += 1


def scene_pictures(
    questions: int, side: int, seed: int, difficulty: str | None = None, split: str = "seen"
) -> list[Picture]:
    """Scenes with `questions` questions in all."""
    return [
        Picture(number, (side, side), partial(draw_scene, scene), tuple(_scene_query(scene, one) for one in asked))
        for number, scene, asked in ask_scenes(split, questions, (side, side), seed, difficulty)
    ]


def _scene_query(scene: Scene, question: Question) -> Query:
    shares = tuple(_share(box, (scene.width, scene.height)) for box in question.evidence)
    metric = "f1" if question.family == DESCRIBE else "exact"
    groups = [scene.difficulty]
    if question.family in READING and is_small_text(scene, question):
        groups.append(SMALL_TEXT)
    if sum(element.kind == "thing" for element in scene.elements) >= MANY_THINGS:
        groups.append(MANY)
    return Query(question.text, (question.answer,), metric, question.family, shares, tuple(groups))


def is_small_text(scene: Scene, question: Question) -> bool:
    """Whether the evidence of a question holds text, and no larger one than SMALL_TEXT_PX."""

    def touch(a: Sequence[int], b: Sequence[int]) -> bool:
        return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]

    texts = (element for element in scene.elements if element.kind == "text")
    held = [text.px for text in texts if any(touch(text.box, box) for box in question.evidence)]
    return bool(held) and max(held) <= SMALL_TEXT_PX


def read_pictures(
    spec: str,
    questions: int,
    side: int,
    seed: int,
    metric: str | None,
    say: Callable[[str], None],
    prompt: str = "",
    max_broken: float | None = None,
) -> list[Picture]:
    """The pictures that a dataset's text names, with about so many questions in all; `side` is of scenes alone.

    Of files, whole images in a shuffled order, the last one cut short. `prompt` stands behind the questions of files.
    """
    if questions < 1:
        raise ValueError(f"{questions} questions: ask at least one")
    kind = spec.partition(":")[0]
    if kind not in FORMS:
        raise ValueError(f"unknown dataset {spec!r}: use {', '.join(FORMS.values())}")
    if kind == "scenes":
        parse_source(spec)  # it takes nothing behind a colon
        return scene_pictures(questions, side, seed)
    if metric is not None and metric not in METRICS:
        raise ValueError(f"metric {metric!r}: expected one of {', '.join(METRICS)}")
    examples = read_source(spec, MAX_BROKEN if max_broken is None else max_broken)
    if examples.broken:
        say(f"{len(examples.broken)} broken rows were left out, first {examples.broken[0]}")
    by_image: dict[FileImage, list[Query]] = {}
    for row in examples.rows:
        answers = row.answers or ((row.answer,) if row.answer else ())
        boxes = None if row.boxes is None else tuple(_share(box, row.image.size) for box in row.boxes)
        how = metric or ("choice" if row.choices else METRIC_OF[kind])
        width, height = row.image.size
        gaze = None if row.fixations is None else tuple((x / width, y / height) for x, y in row.fixations)
        text = as_asked(row.question, row.choices, prompt)
        query = Query(text, answers, how, row.family, boxes, choices=row.choices, gaze=gaze)
        by_image.setdefault(row.image, []).append(query)
    images, left = list(by_image), questions
    pictures: list[Picture] = []
    for number in np.random.default_rng(seed).permutation(len(images)).tolist():
        image = images[number]
        queries = tuple(by_image[image][: max(0, left)])
        if queries:
            pictures.append(Picture(number, image.size, partial(_read, image), queries))
        left -= len(queries)
    return pictures


def as_asked(question: str, choices: Sequence[str], prompt: str) -> str:
    """A question as a model is asked it: what there is to choose from a line each, and what to answer with."""
    lettered = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
    return "\n".join([question, *lettered, *([CHOOSE] if choices and prompt else [prompt] if prompt else [])])


def _share(box: Sequence[float], size: tuple[int, int]) -> Share:
    return box[0] / size[0], box[1] / size[1], box[2] / size[0], box[3] / size[1]


def _read(image: FileImage) -> np.ndarray:
    return np.array(read_image(image.path))


def batches(pictures: Sequence[Picture], cells: int, cell: int) -> Iterator[list[Picture]]:
    """Pictures of one size in batches whose questions have at most so many cells in all, in a settled order."""
    sizes: dict[tuple[int, int], list[Picture]] = {}
    for picture in pictures:
        sizes.setdefault(picture.size, []).append(picture)
    for size, members in sizes.items():
        each = max(1, size[0] // cell) * max(1, size[1] // cell)
        batch: list[Picture] = []
        held = 0
        for picture in members:
            if batch and held + each * len(picture.queries) > cells:
                yield batch
                batch, held = [], 0
            batch.append(picture)
            held += each * len(picture.queries)
        yield batch


def ids_of(pictures: Sequence[Picture]) -> list[tuple[str, Picture, Query]]:
    """(id, picture, query) of every question, in order."""
    return [(f"{p.number}/{place}", p, query) for p in pictures for place, query in enumerate(p.queries)]


# ---------------------------------------------------------------- how right an answer is


def exact(given: str, answers: Sequence[str]) -> float:
    """1 where it is one of the answers."""
    return float(any(given.strip() == answer.strip() for answer in answers))


def normal(given: str, answers: Sequence[str]) -> float:
    """1 where it is one of the answers, in whatever dress."""
    return float(any(vqa_plain(given) == vqa_plain(answer) for answer in answers))


def pairs(description: str) -> Counter[tuple[str, str]]:
    """The (colour, thing) pairs of a description, with how often each is named."""
    found: Counter[tuple[str, str]] = Counter()
    for part in re.split(r",|\band\b|\.", description):
        words = part.split()
        colour = next((word for word in words if word in COLOURS), "")
        if colour:
            found[colour, " ".join(words[words.index(colour) + 1 :])] += 1
    return found


def pair_f1(expected: str, given: str) -> float:
    """F1 over pairs, counted as often as they occur; two empty descriptions agree where the texts do."""
    want, have = pairs(expected), pairs(given)
    if not want or not have:
        return float(expected.strip() == given.strip())
    return 2 * sum((want & have).values()) / (sum(want.values()) + sum(have.values()))


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements that turn one text into the other."""
    before = list(range(len(b) + 1))
    for row, left in enumerate(a, start=1):
        line = [row]
        for column, right in enumerate(b, start=1):
            line.append(min(before[column] + 1, line[-1] + 1, before[column - 1] + (left != right)))
        before = line
    return before[-1]


def anls(given: str, answers: Sequence[str]) -> float:
    """Normalised Levenshtein similarity to the nearest answer."""
    pairs = ((_plain(given), _plain(answer)) for answer in answers)
    nearest = max(1 - edit_distance(a, b) / max(len(a), len(b), 1) for a, b in pairs)
    return nearest if nearest > ANLS_LEAST else 0.0


def relaxed(given: str, answers: Sequence[str]) -> float:
    """Charts: a number may be off by 5 % of the expected one."""

    def fits(answer: str) -> bool:
        have, want = _number(given), _number(answer)
        if have is None or want is None:
            return _plain(given) == _plain(answer)
        return abs(have - want) <= RELAXED * abs(want)

    return float(any(map(fits, answers)))


def _number(text: str) -> float | None:
    """A number, thousands and percent signs allowed; a percentage is a share."""
    found = re.fullmatch(r"[$€£]?(-?[\d,]*\.?\d+)\s*(%?)\.?", text.strip())  # models end in a full stop
    if found is None:
        return None
    return float(found[1].replace(",", "")) / (100 if found[2] else 1)


def vqa(given: str, answers: Sequence[str]) -> float:
    """VQAv2's accuracy against what several people said; against one answer alone, whether it is the same."""
    said, have = [vqa_plain(answer) for answer in answers], vqa_plain(given)
    if len(said) < 3:
        return float(have in said)
    others = ([*said[:place], *said[place + 1 :]] for place in range(len(said)))
    return sum(min(1.0, rest.count(have) / 3) for rest in others) / len(said)


def vqa_plain(text: str) -> str:
    """Small letters, digits for number words, no articles, and no punctuation but the point of a number.

    Of a text that has nothing else, such as "A" or a smiley, all is left: it is no other text, and not nothing.
    """
    whole = re.sub(r"(?<=\d),(?=\d{3}\b)", "", unicodedata.normalize("NFKC", text).lower())
    parted = re.sub(r"(?<!\d)[.,]|[.,](?!\d)|[^\w\s.,'-]", " ", whole)
    words: Iterable[str] = (_NUMBERS.get(word, word) for word in parted.split())
    return " ".join(word for word in words if word not in _ARTICLES) or _plain(whole)


def holds(said: str, one: str) -> bool:
    """Whether words stand in a text, both plain: as whole words, or anywhere in a script that does not part words."""
    return bool(one) and (f" {one} " in f" {said} " or (UNPARTED.search(one) is not None and one in said))


def contains(given: str, answers: Sequence[str]) -> float:
    """1 where it is one of the answers, or holds one as whole words: for models that answer in sentences."""
    said, plain = vqa_plain(given), [vqa_plain(answer) for answer in answers]
    return float(said in plain or any(holds(said, one) for one in plain))


def chosen(given: str, choices: Sequence[str]) -> int | None:
    """Which of the choices an answer names, by its letter or else by its text; None where it names none, or several."""
    letters, given = LETTERS[: len(choices)], given.replace("*", "")  # models write letters in bold
    lettered = (
        re.match(rf"\s*\(?([{letters}])(?:\s*$|[.):,])", given)
        or re.match(rf"\s*\(([{letters}])\)", given, re.IGNORECASE)
        or re.search(rf"\b(?:answer|option|choice)(?:\s+is)?\s*:?\s*\(?([{letters}])\b(?!')", given, re.IGNORECASE)
    )
    said, plain = vqa_plain(given), [vqa_plain(choice) for choice in choices]
    named = [number for number, one in enumerate(plain) if holds(said, one)]
    # "dark red" names red as well: what stands inside another choice that was named does not count.
    inside = {one for one in named for other in named if one != other and holds(plain[other], plain[one])}
    whole = [one for one in named if one not in inside]
    if lettered:
        rest = vqa_plain(given[lettered.start(1) :])  # without an article: "the answer is a dog"
        if lettered[1] not in "Aa" or not any(rest.startswith(plain[one]) for one in whole):
            return letters.index(lettered[1].upper())
    if not named:  # "I think it is B", with or without signs around it; "A bird" is no letter
        alone = rf"(?<![A-Za-z0-9'])(?![AI]\s+\w)([{letters}])(?![A-Za-z0-9'])"
        whole = [letters.index(letter) for letter in set(re.findall(alone, given))]
    return whole[0] if len(whole) == 1 else None


def choice(given: str, answers: Sequence[str], choices: Sequence[str]) -> float:
    """1 where the choice that it names is the right one, which `answers` give by letter or text."""
    plain = [vqa_plain(one) for one in choices]
    texts = {plain.index(vqa_plain(one)) for one in answers if vqa_plain(one) in plain}
    letters = {LETTERS.find(one.strip().upper()) for one in answers if len(one.strip()) == 1}
    return float(chosen(given, choices) in (texts or letters - {-1}))


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact": exact,
    "f1": lambda given, answers: max(pair_f1(answer, given) for answer in answers),
    **{"anls": anls, "relaxed": relaxed, "vqa": vqa, "contains": contains, "normal": normal, "choice": contains},
}


def score(metric: str, given: str, answers: Sequence[str], choices: Sequence[str] = ()) -> float | None:
    """The score of an answer; None where nobody knows the right one."""
    if metric == "none" or not answers:
        return None
    return choice(given, answers, choices) if metric == "choice" and choices else METRICS[metric](given, answers)


def found_evidence(kept: set[int], evidence: set[int]) -> tuple[float | None, float | None]:
    """(recall, precision) of kept cells; None where there is no evidence.

    Recall is of the most that so many cells could hold, so that it can be 1; precision of the most as well.
    """
    if not evidence or not kept:
        return None, None
    both = len(kept & evidence)
    return both / min(len(kept), len(evidence)), both / len(kept)
