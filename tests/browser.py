"""The browser that the demo is tested in: Chromium from the system's packages, driven by Playwright."""

import os
import shutil
from pathlib import Path


def chromium() -> str | None:
    """Where Chromium is, or None. ARR_COC_CHROMIUM names another one, or none at all if it is empty."""
    named = os.environ.get("ARR_COC_CHROMIUM")
    if named is not None:
        return named if named and Path(named).is_file() else None
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
