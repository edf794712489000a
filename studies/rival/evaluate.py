"""The field with the rival among its methods: `arr-coc eval`, with all its options, and one selector more.

python -m studies.rival.evaluate --selector arr_coc --selector rival:path=configs/rival-mini.safetensors --questions 500
"""

import sys

import studies.rival.selector  # noqa: F401 (known as a selector from here on)
from arr_coc.cli.run import run

if __name__ == "__main__":
    sys.exit(run(["eval", *sys.argv[1:]]))
