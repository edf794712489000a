"""lmms-eval plugin: `--model arr_coc`, and the drawn scenes as the task `arr_coc_scenes`. See docs/lmms-eval.md.

lmms-eval finds `manifest` by its entry point. Only `adapter` imports lmms-eval; the rest runs without it.
"""

from pathlib import Path
from typing import Any

TASKS = Path(__file__).parent / "tasks"  # for --include_path; `python -m arr_coc.lmms` prints it


def manifest() -> Any:
    """What lmms-eval registers: the name of the model and the class behind it."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(model_id="arr_coc", chat_class_path="arr_coc.lmms.adapter.ARRCOC")
