"""Settings of the whole suite."""

import logging
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from browser import chromium

# The models here are tiny: threads would spend their time waiting for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_cache_of_the_user(tmp_path_factory):
    """What somebody tuned on this machine must not change what is tested."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


# Files that take longest, longest first: begun last, they would leave the other processes without work.
LONG = ("demo_server", "training_team", "demo_browser", "cli", "hostile_images", "demo", "tuning", "training_selector")
LONG += (
    "fast_compiled",
    "space",
    "qwen_equality",
    "evaluation_selector",
    "training_kills",
    "memory_estimate",
    "memory",
)
LONG += ("hostile_folders", "full_disk", "hostile_rows", "serving", "fovea", "chat", "field_eval")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order by file, and as they were within it."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


collect_ignore = [] if chromium() else ["test_demo_browser.py"]


def pytest_report_header() -> str:
    found = chromium()
    return f"browser: {found}" if found else "browser: no Chromium here, the demo's browser tests are left out"


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    """Commands run in this process set up the package's logger for a terminal; the next test finds it untouched."""
    yield
    logger = logging.getLogger("arr_coc")
    logger.propagate, logger.handlers[:], logger.disabled = True, [], False
    logger.setLevel(logging.NOTSET)
