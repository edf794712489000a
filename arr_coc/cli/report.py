"""arr-coc report: one page about all results, in HTML and Markdown."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where field.json and its like lie.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For the pages and their pictures.")] = Path(
        "docs/report"
    ),
    failures: Annotated[int, typer.Option(min=0, help="Moved: python -m studies.report, in a checkout.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the paths of the pages.")] = False,
) -> None:
    """Write one page about all results: plots, tables, who beats whom; HTML and Markdown.

    arr-coc report

    arr-coc report --results out --out out/report
    """
    from arr_coc.evaluation.report.main import ReportOptions, write_report

    if failures:
        raise ValueError(
            "lost questions are shown by the project's own report, in a checkout: python -m studies.report"
        )

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    for path in write_report(ReportOptions(results, out), say):
        typer.echo(path)
