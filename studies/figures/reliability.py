"""Tables of what was attacked and what held, from results/reliability.json."""

from typing import Any

from arr_coc.evaluation.report.pages import markdown_table

MEASURE = "python tests/attacks/measure.py"


def reliability_rows(results: dict[str, Any]) -> str:
    """The contract, row by row: how many were tried, how many held, and the command."""
    rows = sorted(results["rows"].items(), key=lambda row: int(row[0][1:]))
    return "\n".join(
        markdown_table(
            ("", "what holds", "tried", "held", "command"),
            [(name, one["what"], f"{one['tried']:,}", f"{one['held']:,}", f"`{one['command']}`") for name, one in rows],
        )
    )


def reliability_runs(results: dict[str, Any]) -> str:
    """The long runs."""
    images, folders, threads, queue = (results[name] for name in ("images", "folders", "threads", "queue"))
    a_pixel = ", ".join(f"{name} {most:.1f}" for name, most in images["most_bytes_a_pixel"].items())
    alone, beside = queue["alone_seconds"], queue["beside_four_of_the_worst_seconds"]
    seen = {
        "images": f"{images['kinds']} kinds, {images['taken']} taken; at most {images['most_cpu_seconds']:.2f} s of "
        f"CPU time; bytes of memory a pixel, of images over 1 megapixel: {a_pixel}",
        "folders": f"{folders['by_name']} attacks by name, the rest bytes changed at random; {folders['loaded']} load; "
        f"code ran {folders['code_ran']} times, weights that are not finite loaded {folders['not_finite']} times; "
        f"median {folders['median_seconds']:.1f} s, slowest {folders['most_seconds']:.1f} s",
        "threads": f"{threads['threads']} threads, {threads['sizes']} sizes, each answer against its own alone; "
        f"{threads['fallbacks']} fallbacks; memory of the last half {threads['memory_growth_of_last_half']:+.2%}",
    }
    counts = {name: (f"{results[name]['tried']:,}", f"{results[name]['held']:,}") for name in seen}
    table = markdown_table(
        ("run", "tried", "held", "seen", "command"),
        [(name, *counts[name], told, f"`{MEASURE} {name}`") for name, told in seen.items()],
    )
    line = f"A good question takes {alone:.1f} s alone and {beside:.1f} s behind four of the worst images"
    return "\n".join([*table, "", f"{line} (`{MEASURE} queue`)."])


def mutants_line(results: dict[str, Any]) -> str:
    """The mutants, and those of them that all tests were run with."""
    tried = results["whole"]["mutants"]
    line = (
        f"Of {results['listed']} mutants the tests that name them killed {results['killed']} (`{results['command']}`)."
    )
    if not tried:
        return line
    killed = ", ".join(
        f"{name} (`{one['failed'][0].partition('::')[2]}`)" for name, one in tried.items() if one["failed"]
    )
    told = (
        f"With all that `make test` runs, {len(tried)} were tried (`{results['whole']['command']}`); the first to fail"
    )
    return f"{line} {told}: {killed}."


def page_line(load: dict[str, Any]) -> str:
    """The page among slow, many and greedy clients."""
    after = ", ".join(map(str, load["megabytes_after"]))
    return (
        f"The page, with {load['slow_bodies']} slow bodies, {load['sessions']} sessions and one greedy client "
        f"({load['greedy_answers']} answers, {load['greedy_refused']} refused) on {load['cores']} cores: a second "
        f"client's question took {load['seconds_under_load']:.2f} s, {load['times_alone']:.2f} times as long as alone. "
        f"The process had {load['megabytes_before']} MB before, {load['megabytes_with_sessions']} with sessions and "
        f"{load['megabytes_at_most']} at most; once all pages were closed and forgotten {after}, after each of "
        f"{load['loads']} such loads. {'All' if load['answers_equal'] else 'Not all'} answers were equal "
        f"(`{load['command']}`)."
    )
