"""The verbs, each of which imports what it needs when it runs, and help that a person can copy from.

Examples come first and are never wrapped, every verb is told in one sentence.
"""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from arr_coc import __version__
from arr_coc.cli.ask import ask
from arr_coc.cli.batch import batch, with_address
from arr_coc.cli.chat import chat
from arr_coc.cli.compare import compare
from arr_coc.cli.env import env
from arr_coc.cli.eval import bench, evaluate, report
from arr_coc.cli.serve import demo, serve
from arr_coc.cli.show import show, textures
from arr_coc.cli.train import make, selector, tune

MOVED = {
    "arr-coc train mini": "python -m studies.mini.train",
    "arr-coc eval --equal-tokens": "python -m studies.equal_tokens",
    "arr-coc bench --promised": "python -m studies.speed.bench --promised",
    "arr-coc bench --startup": "python -m studies.speed.startup",
    "arr-coc report --failures": "python -m studies.report",
}
"""What is about the project itself, by how it was typed, and where it is now: in a checkout."""
EXAMPLE = re.compile(r"(arr-coc|accelerate launch|printf) ")  # how a line of help begins that can be typed as it is


def split_help(text: str) -> tuple[list[str], str]:
    """(the examples of a docstring, one per line; the rest of it)."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    examples = [part for part in paragraphs if EXAMPLE.match(part)]
    return examples, "\n\n".join(part for part in paragraphs if part not in examples)


def first_sentence(text: str) -> str:
    """What a list of verbs says about one of them."""
    return re.split(r"(?<=\.)\s", " ".join(split_help(text)[1].split("\n\n")[0].split()), maxsplit=1)[0]


def refuse_moved(ctx: Any, word: str, *others: str) -> None:
    """Say where a verb or an option is now, if it is here no more."""
    place = MOVED.get(f"{ctx.command_path} {word.partition('=')[0]}")
    if place is not None:
        ctx.fail(f"this is done in a checkout of the project: {' '.join([place, *others])}")


class Helpful:
    """Of a command: help that begins with examples, and usage as it is typed, arguments before the options."""

    help: Any
    params: Any
    tail: tuple[str, ...] = ()  # what may follow the options

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Examples first, as they stand; then what the verb does, wrapped."""
        examples, rest = split_help(self.help or "")
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{' ' * formatter.current_indent}{example}\n" for example in examples))
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(rest)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.params if one.param_type_name == "argument"]
        return [*(one.metavar or one.name.upper() for one in arguments), "[OPTIONS]", *self.tail]


class Verb(Helpful, TyperCommand):
    """A command whose help begins with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for word in args:
            refuse_moved(ctx, word)
        return super().parse_args(ctx, with_address(args) if self.name == "batch" else args)


class VerbGroup(Helpful, TyperGroup):
    """Verbs under one name; each is listed with its whole first sentence."""

    tail = ("VERB ...",)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        refuse_moved(ctx, *args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, first_sentence(verb.help or "")) for name, verb in self.commands.items()])


class Verbs(typer.Typer):
    """A Typer all of whose commands are such verbs. Docstrings hold the examples as paragraphs of their own."""

    def __init__(self, **settings: Any) -> None:
        plain = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}
        super().__init__(**{"cls": VerbGroup, "no_args_is_help": True, **plain, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Verb, **settings})


VERBS: dict[str, Callable[..., None]] = {
    **{"ask": ask, "chat": chat, "bench": bench, "compare": compare, "demo": demo, "env": env, "eval": evaluate},
    **{"report": report, "serve": serve, "batch": batch, "show": show, "textures": textures, "tune": tune},
}
app, scenes, train = Verbs(add_completion=True), Verbs(), Verbs()
for name, verb in VERBS.items():
    app.command(name)(verb)
app.add_typer(scenes, name="scenes")
app.add_typer(train, name="train")
scenes.command()(make)
train.command()(selector)


@scenes.callback()
def about_scenes() -> None:
    """The synthetic world that mini knows, as files.

    arr-coc scenes make out/scenes --count 20 --split seen --size 512
    """


@train.callback()
def about_train() -> None:
    """Train a selector.

    arr-coc train selector --stage 1 --out runs/one --steps 2000
    """


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"arr-coc {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Ask Qwen3-VL about an image with only the visual tokens that matter for the question.

    arr-coc ask photo.jpg "What colour is the door?"

    arr-coc chat photo.jpg

    arr-coc VERB --help

    The answer goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 unexpected (ARR_COC_DEBUG=1 shows where),
    2 usage, 3 bad input, 4 model not found, 5 out of memory, 130 interrupted.
    """
