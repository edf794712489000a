"""What only `make serve-test` runs, in an environment that has vLLM: engines live in the process of the tests."""

import os

from arr_coc.vllm import variables

os.environ.update(variables(), VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_WORKER_MULTIPROCESSING_METHOD="spawn")
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import pytest
from engines import Engines, cases_of
from PIL import Image

from arr_coc.qwen import ARRCOCQwen
from arr_coc_scenes import draw_scene, make_scene


@pytest.fixture(scope="session")
def engines():
    """Started once each."""
    return Engines()


@pytest.fixture(scope="session")
def own():
    return ARRCOCQwen.from_pretrained("mini")


@pytest.fixture(scope="session")
def pictures():
    """16 scenes of 512 px."""
    return [Image.fromarray(draw_scene(make_scene(seed, "seen", (512, 512)))) for seed in range(16)]


@pytest.fixture(scope="session")
def cases(pictures):
    """24 questions: three about each of 8 images."""
    return cases_of(pictures[:8])
