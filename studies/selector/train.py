"""Train a selector on a machine without the command line's libraries: `arr-coc train selector`, by argparse.

python -m studies.selector.train --out runs/one --config configs/selector-mini-1.json
"""

import argparse
import sys
from pathlib import Path

from arr_coc.training.config import read_selector_config
from arr_coc.training.main import Places, train_selector


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a selector.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter, metrics and checkpoints")
    parser.add_argument("--config", type=Path, help="JSON file with settings of SelectorTrainConfig")
    parser.add_argument("--init-from", type=Path, help="start from the adapter in this folder")
    parser.add_argument("--stage", type=int)
    parser.add_argument("--model", help="mini, a folder, or shape:qwen3-vl-2b")
    parser.add_argument("--seconds", type=float, help="time budget of training, start-up included")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--strategy", help="stage 2: score, straight_through, gumbel or reinforce")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--seed", type=int)
    a = vars(parser.parse_args())
    places = Places(a.pop("out"), a.pop("init_from"))
    try:
        train_selector(read_selector_config(a.pop("config"), **a), places, lambda line: print(line, flush=True))
    except ValueError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
