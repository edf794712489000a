"""Settings of the whole suite."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from browser import chromium

# The models here are tiny: threads would spend their time waiting for each other.
torch.set_num_threads(1)

collect_ignore = [] if chromium() else ["test_demo_browser.py"]


def pytest_report_header() -> str:
    found = chromium()
    return f"browser: {found}" if found else "browser: no Chromium here, the demo's browser tests are left out"
