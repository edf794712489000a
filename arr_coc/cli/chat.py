"""arr-coc chat: several questions about one image or clip. Each question chooses anew; answers alone go to stdout.

Ctrl-C stops an answer and not the chat. At the prompt, twice Ctrl-C leaves with 130 and Ctrl-D with 0.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arr_coc.cli import typed
from arr_coc.cli.answers import harmless, summary, write_overlay
from arr_coc.cli.loading import Asking, asking
from arr_coc.cli.run import EXIT_BAD_INPUT, failed
from arr_coc.cli.terminal import PROMPT, is_terminal, note, notes, read_line, stop_at_interrupt

if TYPE_CHECKING:
    from PIL.Image import Image

    from arr_coc.images.clips import Clip
    from arr_coc.qwen import Answer, ARRCOCQwen

COMMANDS = {
    "/keep": "/keep PART      part KEPT from now on: 0.25, 256 or auto; alone, it says what is in force",
    "/image": "/image FILE...  go on with other images or clips; the conversation begins anew",
    "/overlay": "/overlay FILE   write a picture of what the last answer was made from",
    "/history": "/history        what was asked and answered so far",
    "/reset": "/reset          forget what was asked and answered",
    "/help": "/help           these lines",
    "/quit": "/quit           leave; so does Ctrl-D",
}


@asking
def chat(
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[IMAGE]...", help=f"{typed.KINDS} files, videos; the bundled sample if left out."),
    ] = None,
    keep: typed.KeepDial = None,
    selector: typed.SelectorName = "auto",
    history: Annotated[
        bool | None,
        typer.Option(
            "--history/--no-history",
            help="Whether the model is shown what was said before. If left out: yes, but not mini, which knows single "
            "questions only.",
        ),
    ] = None,
    system: typed.System = "",
    temperature: typed.Temperature = None,
    *,
    how: Asking,
) -> None:
    """Ask several questions about an image or a clip, one line each. /help lists what can be done between them.

    arr-coc chat photo.jpg

    arr-coc chat clip.mp4 --frames 32

    arr-coc chat photo.jpg --model Qwen/Qwen3-VL-2B-Instruct --keep 0.25

    printf 'What colour is the hand?\\nWhich word is blue?\\n' | arr-coc chat --quiet
    """
    dial = None if keep is None else typed.parse_keep(keep)
    sources = images or [typed.sample_image()]
    if typed.STDIN in sources:
        raise ValueError("-: stdin is where chat reads its questions; give the image as a file")
    loaded, pictures = how.open(sources, [selector], selector)
    from arr_coc.qwen.familiar import is_mini

    if history is None:
        history = not is_mini(loaded.processor.tokenizer)
    options: dict[str, Any] = {"max_new_tokens": how.max_new_tokens, "system": system, **typed.sampling(temperature)}
    session = ChatSession(loaded, sources, pictures, loaded.keep if dial is None else dial, history, how, options)
    if not how.quiet and is_terminal(sys.stdin):
        names = ", ".join(source.name for source in sources)
        note(f"{how.model} looks at {names}; /help lists the commands, Ctrl-D leaves")
        if not history:
            note("each question is answered by itself: the model is not shown the ones before (--history shows them)")
    if converse(session):
        raise typer.Exit(EXIT_BAD_INPUT)


@dataclass
class ChatSession:
    """Images and clips, the dial and what was said. Commands and questions change it; it prints, but reads nothing."""

    loaded: "ARRCOCQwen"
    sources: Sequence[Path]
    pictures: Sequence["Image | Clip"]
    keep: float | int | str
    shows_history: bool
    """Whether the model is shown the turns before."""
    how: Asking = field(default_factory=Asking)
    options: dict[str, Any] = field(default_factory=dict)
    """What else `ask` is told: how much at most, the system message, how to sample."""
    turns: list[tuple[str, str]] = field(default_factory=list)
    last: tuple[str, "Answer", list[tuple[str, str]]] | None = None
    """The last question, its answer, and the turns that the model was shown with it."""

    def take(self, line: str) -> bool:
        """Follow a command or answer a question; False when it was the wish to leave."""
        if not line.strip():
            return True
        if not line.startswith("/"):
            self.answer(line.strip())
            return True
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return False
        if command not in COMMANDS:
            raise ValueError(f"no command {command}: /help lists them; a question may begin with a space and a slash")
        getattr(self, f"do_{command[1:]}")(rest.strip())
        return True

    def answer(self, question: str) -> None:
        """Print the answer as it comes. What was said until it was stopped counts as the answer."""
        from arr_coc.qwen.streaming import Stopped, stream_text

        shown = list(self.turns) if self.shows_history else []
        answers: list[Answer] = []
        notes(self.loaded.unfamiliar(self.pictures, question), self.how.quiet)
        with stop_at_interrupt() as stopped:

            def work(streamer: Any, left: Any) -> None:
                options = {"keep": self.keep, "history": shown, "streamer": streamer, **self.options}
                criteria = [left, Stopped(stopped)]
                answers.append(self.loaded.ask(list(self.pictures), question, stopping_criteria=criteria, **options))

            for piece in stream_text(self.loaded.processor.tokenizer, work):
                typer.echo(harmless(piece), nl=False)
        typer.echo()
        (made,) = answers
        self.turns.append((question, made.text))
        self.last = (question, made, shown)
        if stopped.is_set():
            note("stopped")
        notes((summary(made),), self.how.quiet)

    def do_keep(self, rest: str) -> None:
        self.keep = typed.parse_keep(rest) if rest else self.keep
        note(f"keep {self.keep}")

    def do_image(self, rest: str) -> None:
        try:
            sources = [Path(word) for word in shlex.split(rest)]
        except ValueError:
            raise ValueError(f"{rest}: a quotation mark is left open; close it") from None
        if not sources:
            raise ValueError("/image without a file: write /image FILE")
        if typed.STDIN in sources:
            raise ValueError("-: stdin is where chat reads its questions; give the image as a file")
        sampling = (self.how.fps, self.how.frames) if typed.clips_of(sources) else ()
        self.pictures, self.sources = typed.reading(sources, *sampling)(self.loaded), sources
        self.do_reset("")

    def do_overlay(self, rest: str) -> None:
        if self.last is None:
            raise ValueError("nothing was asked yet: ask first, then write /overlay FILE")
        if not rest:
            raise ValueError("/overlay without a file: write /overlay FILE")
        question, made, shown = self.last
        path = Path(rest)
        typed.check_picture(path, self.sources)
        write_overlay(path, self.loaded, self.pictures, question, made, shown)
        note(str(path))

    def do_history(self, rest: str) -> None:
        for question, answered in self.turns:
            note(harmless(f"{PROMPT}{question}\n{answered}"))
        if not self.turns:
            note("nothing was asked yet")

    def do_reset(self, rest: str) -> None:
        self.turns, self.last = [], None
        note(f"a new conversation about {', '.join(source.name for source in self.sources)}")

    def do_help(self, rest: str) -> None:
        notes(COMMANDS.values(), quiet=False)


def converse(session: ChatSession) -> int:
    """Take lines until there are no more. Returns how many failed, where nobody was there to see it: from a pipe."""
    at_terminal, failures, warned = is_terminal(sys.stdin), 0, False
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text spoils its character, not the chat
    while True:
        try:
            line = read_line()
        except EOFError:
            if at_terminal:
                typer.echo(err=True)
            return failures
        except KeyboardInterrupt:
            if warned or not at_terminal:
                raise
            warned = True
            note("\nCtrl-C once more leaves, and so does Ctrl-D")
            continue
        warned = False
        try:
            if not session.take(line):
                return failures
        except BrokenPipeError:
            raise
        except Exception as error:  # told in one line, and the chat goes on
            failed(error)
            failures += not at_terminal
