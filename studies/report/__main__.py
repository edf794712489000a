"""Write our own report, docs/report: the page of `arr-coc report` with a verdict on every promise of the project.

python -m studies.report
python -m studies.report --results out --out out/report --failures 24
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arr_coc.evaluation.field.main import Say
from arr_coc.evaluation.report.main import Make, write_report
from arr_coc.evaluation.report.pages import Block
from arr_coc.evaluation.report.results import Measured
from studies.report.equal_time import equal_time_blocks
from studies.report.losses import loss_blocks
from studies.report.sections import clip_blocks, equal_token_blocks, lead_blocks, twice_blocks, who_blocks
from studies.report.sources import read_results, source_blocks
from studies.report.verdicts import promised_blocks, verdict_blocks


def sections(failures: int, say: Say) -> dict[str, list[Make]]:
    """What we add to the page, by the part that it follows; `failures` lost questions are shown."""

    def lost(measured: Measured) -> list[Block]:
        return loss_blocks(measured, failures, say)

    return {
        "summary": [promised_blocks],
        "opening": [who_blocks, verdict_blocks],
        "plots": [lead_blocks, twice_blocks],
        "tables": [equal_token_blocks, clip_blocks],
        "comparisons": [equal_time_blocks, lost, source_blocks],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="where field.json and its like lie")
    parser.add_argument("--out", type=Path, default=Path("docs/report"), help="for the pages and their pictures")
    parser.add_argument("--failures", type=int, default=12, help="lost questions that are shown; 0 leaves them out")
    parser.add_argument("--quiet", action="store_true", help="say nothing but the paths of the pages")
    given = parser.parse_args(arguments)

    def say(line: str) -> None:
        if not given.quiet:
            print(line, file=sys.stderr)

    try:
        read_results(given.results)  # a broken file is named before anything else is said
        for path in write_report(given.results, given.out, say, sections(given.failures, say)):
            print(path)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
