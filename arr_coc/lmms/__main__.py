"""python -m arr_coc.lmms prints the folder to give to lmms-eval as --include_path."""

from arr_coc.lmms import TASKS

print(TASKS)
