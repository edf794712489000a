"""The command line: `arr-coc VERB`. Importing this loads no torch, so that `--help` is instant."""

from arr_coc.cli.run import main

__all__ = ["main"]
