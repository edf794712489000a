"""Runs the command line and turns what goes wrong into one line and an exit code."""

import os
import sys
import traceback
import warnings
from typing import Any

from arr_coc.cli.quick import hold_back, leave
from arr_coc.cli.terminal import DEBUG, is_debugging
from arr_coc.comparing import is_out_of_memory

EXIT_OK, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_BAD_INPUT, EXIT_NO_MODEL, EXIT_NO_MEMORY = 0, 1, 2, 3, 4, 5
EXIT_INTERRUPTED = 130
LONGEST_LINE = 600  # characters of a message
MEMORY_HELP = "keep fewer tokens (--keep 0.1), give a smaller image, or take a smaller model"


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # an answer that the terminal cannot spell is no failure
    warnings.filterwarnings("ignore", module=r"PIL\.")  # damaged EXIF and the like: the picture is good or refused
    hold_back(*sys.argv[1:2] or [""])
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = EXIT_OK
    except OSError as error:
        code = failed(error)
    _forget_unwritten()
    leave(code, at_once=code == EXIT_INTERRUPTED)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; whatever goes wrong is told on stderr in one line."""
    from arr_coc.cli.app import app

    try:
        code = app(args=arguments, prog_name="arr-coc", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader has seen enough
            return EXIT_OK
        return end.code if isinstance(end.code, int) else EXIT_UNEXPECTED
    except (Exception, KeyboardInterrupt) as error:
        return failed(error)
    if code == EXIT_INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else EXIT_OK


def failed(error: BaseException) -> int:
    """Tell what went wrong and return the exit code that stands for it."""
    if is_debugging():
        traceback.print_exception(error)
    if hasattr(error, "exit_code") and hasattr(error, "format_message"):
        return _usage(error)
    if isinstance(error, BrokenPipeError):
        return EXIT_OK
    if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        complain("interrupted")
        return EXIT_INTERRUPTED
    if is_out_of_memory(error):
        complain(f"out of memory: {MEMORY_HELP}")
        return EXIT_NO_MEMORY
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}; check that it is there, may be used, and has room")
        return EXIT_BAD_INPUT
    if isinstance(error, ValueError):
        complain(str(error))
        return {"ModelNotFound": EXIT_NO_MODEL, "NoRoom": EXIT_NO_MEMORY}.get(type(error).__name__, EXIT_BAD_INPUT)
    complain(f"unexpected {type(error).__name__}: {error} (a fault of ours: {DEBUG}=1 shows where)")
    return EXIT_UNEXPECTED


def complain(message: str) -> None:
    """One line on stderr, whatever the message holds: no line breaks, no control characters, no end in sight."""
    line = " ".join("".join(one if one.isprintable() else " " for one in message).split())
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
    try:
        print(f"arr-coc: {line}", file=sys.stderr, flush=True)
    except OSError:
        return  # nobody reads stderr: the exit code must do


def _usage(error: Any) -> int:
    """A command line that cannot be read; without any words at all, the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        path = error.ctx.command_path if getattr(error, "ctx", None) else "arr-coc"
        complain(f"{error.format_message().rstrip('.')}; see {path} --help")
    return int(error.exit_code)


def _forget_unwritten() -> None:
    """What could not be written is dropped, so that Python does not try, and complain, once more at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
