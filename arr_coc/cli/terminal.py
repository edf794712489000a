"""What is for the person at the terminal and not for the pipe: colour, bars, the prompt, Ctrl-C."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

IMPORTED = time.monotonic()
DEBUG = "ARR_COC_DEBUG"  # set to 1 for tracebacks
PROMPT = "? "


def is_terminal(stream: Any) -> bool:
    """Whether somebody reads this stream as it is written; False too for a stream that was closed or replaced."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def may_colour(stream: Any) -> bool:
    """Colour is for terminals that have it and people who did not set NO_COLOR (to anything)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def note(line: str) -> None:
    """A line beside the answer: on stderr, dim where colour is welcome."""
    typer.echo(typer.style(line, dim=True) if may_colour(sys.stderr) else line, err=True)


def notes(lines: Iterable[str], quiet: bool) -> None:
    for line in () if quiet else lines:
        note(line)


def teller(quiet: bool) -> Callable[[str], None]:
    """What a long run tells its lines to: stderr, or nobody."""
    return (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))


class Notes(logging.Handler):
    """What the library logs, as notes of one line: a traceback in the log is for those who asked for it."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage().partition("\n")[0])
        if record.exc_info and is_debugging():
            note(logging.Formatter().formatException(record.exc_info))


def is_debugging() -> bool:
    """Whether tracebacks are wanted: ARR_COC_DEBUG=1."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def set_verbosity(quiet: bool) -> None:
    """Our own warnings as notes, or errors alone."""
    logger = logging.getLogger("arr_coc")
    logger.setLevel(logging.ERROR if quiet else logging.WARNING)
    if not any(isinstance(one, Notes) for one in logger.handlers):
        logger.addHandler(Notes())


def begin_long_run(quiet: bool) -> None:
    """For verbs that load models by themselves: our warnings as notes, and bars where somebody sees them."""
    set_verbosity(quiet)
    quieten_libraries(bars=not quiet and is_terminal(sys.stderr))


def quieten_libraries(bars: bool) -> None:
    """Only errors from transformers and the hub, whose own lines would stand between ours; bars if wanted."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging as transformers_logging

    hub_logging.set_verbosity(logging.CRITICAL)  # our own line says that a model cannot be reached
    transformers_logging.set_verbosity_error()
    if bars:
        enable_progress_bars()
        transformers_logging.enable_progress_bar()
    else:
        disable_progress_bars()
        transformers_logging.disable_progress_bar()


def waited() -> float:
    """Seconds since this process was started: what a person has waited, imports and loading included."""
    try:
        began = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - began
    except (OSError, ValueError, IndexError, AttributeError):  # a system that does not say
        return time.monotonic() - IMPORTED


def open_file(path: Path) -> None:
    """Show a file in whatever the system shows such files with."""
    if typer.launch(str(path)) != 0:
        note(f"{path}: no program here opens it; it is there to be looked at")


def read_line() -> str:
    """One line of input. The prompt is for a person alone, and never in what stdout carries into a file or a pipe."""
    if not is_terminal(sys.stdin):
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line
    if is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` its arrows and its memory)
        # readline must know which characters take no room, or it loses count of the columns.
        return input(f"\x01\x1b[1m\x02{PROMPT}\x01\x1b[0m\x02" if may_colour(sys.stdout) else PROMPT)
    typer.echo(PROMPT, nl=False, err=True)
    return input()


@contextlib.contextmanager
def stop_at_interrupt() -> Iterator[threading.Event]:
    """At a terminal, Ctrl-C sets the event; a second one, should the first not be enough, interrupts as ever."""
    event = threading.Event()
    if not is_terminal(sys.stdin) or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
