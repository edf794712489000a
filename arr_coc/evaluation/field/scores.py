"""How right an answer is, by the customs of each dataset: every score is in [0, 1].

exact     the expected text, blanks around it aside
f1        descriptions: over (colour, thing) pairs
anls      documents: 1 less the edit distance over the longer length, 0 where that is 0.5 or less; best answer
relaxed   charts: numbers within 5 %, texts exact, small letters
vqa       VQAv2: mean over the people of min(1, others who said the same / 3)
none      nobody knows the answer: only evidence counts
"""

import re
from collections.abc import Callable, Iterable, Sequence

from arr_coc.evaluation.metrics import pair_f1

ANLS_LEAST = 0.5  # similarities up to here count as wrong
RELAXED = 0.05  # of the expected number
_ARTICLES = {"a", "an", "the"}
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {"none": "0", **{word: str(number) for number, word in enumerate(_WORDS)}}


def exact(given: str, answers: Sequence[str]) -> float:
    """1 where it is one of the answers."""
    return float(any(given.strip() == answer.strip() for answer in answers))


def best_pair_f1(given: str, answers: Sequence[str]) -> float:
    """The best F1 over (colour, thing) pairs."""
    return max(pair_f1(answer, given) for answer in answers)


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
    return max(_similarity(_plain(given), _plain(answer)) for answer in answers)


def _similarity(a: str, b: str) -> float:
    longer = max(len(a), len(b))
    similarity = 1.0 if not longer else 1 - edit_distance(a, b) / longer
    return similarity if similarity > ANLS_LEAST else 0.0


def relaxed(given: str, answers: Sequence[str]) -> float:
    """Charts: a number may be off by 5 % of the expected one."""
    return float(any(_relaxed(given, answer) for answer in answers))


def _relaxed(given: str, answer: str) -> bool:
    have, want = _number(given), _number(answer)
    if have is None or want is None:
        return _plain(given) == _plain(answer)
    return have == want if want == 0 else abs(have - want) <= RELAXED * abs(want)


def _number(text: str) -> float | None:
    """A number, thousands and percent signs allowed; a percentage is a share."""
    found = re.fullmatch(r"[$€£]?(-?[\d,]*\.?\d+)\s*(%?)", text.strip())
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
    """Small letters, digits for number words, no articles and no punctuation but inside numbers."""
    text = re.sub(r"(?<!\d)[.,]|[.,](?!\d)|[^\w\s.,'-]", " ", text.lower())
    words: Iterable[str] = (_NUMBERS.get(word, word) for word in text.split())
    return " ".join(word for word in words if word not in _ARTICLES)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


METRICS: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact": exact,
    "f1": best_pair_f1,
    "anls": anls,
    "relaxed": relaxed,
    "vqa": vqa,
}


def score(metric: str, given: str, answers: Sequence[str]) -> float | None:
    """The score of an answer; None where nobody knows the right one."""
    if metric == "none" or not answers:
        return None
    return METRICS[metric](given, answers)


def found_evidence(kept: set[int], evidence: set[int]) -> tuple[float | None, float | None]:
    """(recall, precision) of kept cells; None where there is no evidence.

    Recall is of the most that so many cells could hold, so that it can be 1; precision of the most as well.
    """
    if not evidence or not kept:
        return None, None
    both = len(kept & evidence)
    return both / min(len(kept), len(evidence)), both / len(kept)
