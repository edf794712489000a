"""`python -m arr_coc` is `arr-coc`."""

from arr_coc.cli import main

main()
