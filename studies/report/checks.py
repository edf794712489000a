"""One promise held against the results: a verdict, the figure behind it, and the file that it came from."""

from dataclasses import dataclass

from arr_coc.evaluation.report.pages import BAD, EVEN, GOOD, MISSING, signed

HOLDS, FAILS, NOT_HERE, NOT_YET = "holds", "does not hold", "not measurable here", "not measured yet"
SPACE = "\u00a0"  # at which no line is broken
TONES = {HOLDS: GOOD, FAILS: BAD, NOT_HERE: EVEN, NOT_YET: MISSING}


@dataclass(frozen=True, slots=True)
class Check:
    """What was asked, and what was found."""

    asked: str
    verdict: str
    figure: str  # with its conditions
    file: str  # "" where no file is needed


def judge(asked: str, good: bool | None, figure: str, file: str) -> Check:
    """A check from whether it came out well; None: nothing was measured."""
    if good is None:
        return Check(asked, NOT_YET, figure, file)
    return Check(asked, HOLDS if good else FAILS, figure, file)


def not_yet(asked: str, file: str, reason: str = "no result yet") -> Check:
    return Check(asked, NOT_YET, reason, file)


def percent(share: float) -> str:
    return f"{100 * share:.1f}{SPACE}%"


def points(share: float) -> str:
    """A difference of shares, with its sign."""
    return f"{signed(share)} points"
