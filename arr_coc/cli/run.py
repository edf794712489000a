"""Runs the command line and turns what goes wrong into one line and an exit code."""

import sys

EXIT_OK, EXIT_UNEXPECTED, EXIT_BAD_INPUT, EXIT_NO_MODEL, EXIT_INTERRUPTED = 0, 1, 3, 4, 130


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code: 0 ok, 2 usage, 3 bad input, 4 no model, 130 interrupted."""
    from arr_coc.cli.app import app

    try:
        app(args=arguments, prog_name="arr-coc")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_UNEXPECTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"arr-coc: {error.filename or ''}: {error.strerror or error}".replace(": :", ":"), file=sys.stderr)
        return EXIT_BAD_INPUT
    except ValueError as error:
        print(f"arr-coc: {error}", file=sys.stderr)
        return EXIT_NO_MODEL if type(error).__name__ == "ModelNotFound" else EXIT_BAD_INPUT
    return EXIT_OK
