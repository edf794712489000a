"""Write docs/commands/, a page per verb, from the command line itself, after every change of a verb or an option.

python -m studies.figures.commands            write
python -m studies.figures.commands --check    exit with 1 if something would change
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from typer.main import get_command

from arr_coc.cli import chat
from arr_coc.cli.app import app, first_sentence, split_help
from arr_coc.evaluation.report.pages import markdown_table

FOLDER = Path(__file__).parents[2] / "docs" / "commands"
MADE = "<!-- made by studies/figures/commands.py from the code: change it there -->\n"
INDEX = "README.md"
NAME = "arr-coc"
MASKS = (
    "A mask unpacks as `numpy.unpackbits(numpy.frombuffer(mask, numpy.uint8), count=rows * columns)`, in a JSONL after "
    "`base64.b64decode`; rows and columns are its `grid`. A line with an `error` is not asked again: take it out of "
    "OUT for that."
)
WORDS = {int: "N", float: "NUMBER", Path: "PATH"}  # what the value of an option is called that has no name for it


def pages() -> dict[str, str]:
    """Every page by the name of its file: the index, then one for each verb."""
    root = get_command(app)
    verbs = root.commands  # type: ignore[attr-defined]
    made = {f"{name}.md": f"{MADE}\n{page(f'{NAME} {name}', verb)}{more(name)}" for name, verb in verbs.items()}
    return {INDEX: index(root, verbs), **made}


def index(root: Any, verbs: dict[str, Any]) -> str:
    """What every verb is for, in one sentence, and what holds for all of them."""
    rows = [(f"[`{name}`]({name}.md)", first_sentence(verb.help or "")) for name, verb in verbs.items()]
    _, about = split_help(root.help or "")
    return "\n".join([MADE, "# Commands", "", about, "", *markdown_table(("verb", "what it does"), rows), ""])


def page(path: str, command: Any, level: int = 1) -> str:
    """One verb: what it does, examples, usage, arguments and options. Verbs under it follow on the same page."""
    examples, about = split_help(command.help or "")
    context = command.context_class(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [f"{'#' * level} {path}", "", about, "", "```sh", *map(with_remark, examples), "```", ""]
    lines += [f"Usage: `{usage}`", ""]
    known = declared(command)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    if arguments:
        rows = [(f"`{one.metavar or one.name.upper()}`", told(one, known[one.name][1])) for one in arguments]
        lines += [*markdown_table(("argument", "what"), rows), ""]
    if options:
        wide = [(names(one, known[one.name][0]), told(one, known[one.name][1]), default(one)) for one in options]
        lines += [*markdown_table(("option", "what", "default"), wide), ""]
    for name, verb in getattr(command, "commands", {}).items():
        lines.append(page(f"{path} {name}", verb, level + 1))
    return "\n".join(lines).rstrip("\n") + "\n"


def more(name: str) -> str:
    """What a page tells beside the options: what can be typed into a chat, what JSON documents hold."""
    extra = ""
    if name in ("ask", "compare", "env", "tune"):
        schema = f"{name}.schema.json"
        extra = f"The document of `--json` is described by [{schema}](../../arr_coc/cli/{schema}).\n\n"
    if name == "batch":
        extra = f"A line of OUT is described by [batch.schema.json](../../arr_coc/cli/batch.schema.json). {MASKS}\n\n"
    if name == "chat":
        extra = "\n".join(["Between the questions:", "", "```text", *chat.COMMANDS.values(), "```\n\n"])
    if name == "report":
        extra = "The project's own report, with a verdict on each of its promises: `python -m studies.report`.\n\n"
    return f"\n{extra}[All verbs]({INDEX})\n"


def with_remark(example: str) -> str:
    """What an example of the help says about itself, far to the right or in brackets, as a comment of the shell."""
    return re.sub(r"\s{3,}\(?([^()]+)\)?$", r"  # \1", example)


def names(option: Any, word: str) -> str:
    """All spellings of an option, and what is to be written after it."""
    spelled = ", ".join([*option.opts, *option.secondary_opts])
    return f"`{spelled}`" if option.is_flag else f"`{spelled} {option.metavar or word}`"


def declared(command: Any) -> dict[str, tuple[str, Any]]:
    """Parameter -> (what its value is called, what the verb's signature says about it), whatever typer makes of it."""
    found = {}
    for name, parameter in inspect.signature(command.callback).parameters.items():
        hint = parameter.annotation
        if get_origin(hint) is Annotated:
            kind, said = get_args(hint)
            found[name] = (next((word for one, word in WORDS.items() if one in kinds_in(kind)), "TEXT"), said)
    return found


def kinds_in(hint: Any) -> set[Any]:
    """The types that a hint is made of: of `list[Path] | None` Path, and NoneType."""
    return {hint} if not get_args(hint) else set().union(*map(kinds_in, get_args(hint)))


def told(parameter: Any, limits: Any) -> str:
    """The help of a parameter, with the range of a number."""
    if limits.min is None:
        return str(parameter.help)
    allowed = f"{limits.min:,} or more" if limits.max is None else f"{limits.min:,} to {limits.max:,}"
    return f"{parameter.help.rstrip('.')}; {allowed}."


def default(option: Any) -> str:
    """The default in words; nothing where there is none, or where it is that a flag is not set."""
    return "" if option.default is None or option.is_flag else f"`{option.default}`"


def differing(made: dict[str, str], folder: Path) -> list[str]:
    """Names of pages that are missing, other than they should be, or of verbs that are no more."""
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))


def main(arguments: list[str]) -> int:
    made = pages()
    stale = differing(made, FOLDER)
    if "--check" in arguments:
        for name in stale:
            print(
                f"docs/commands/{name} is not what the code says: run python -m studies.figures.commands",
                file=sys.stderr,
            )
        return int(bool(stale))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in made:
            (FOLDER / name).write_text(made[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
