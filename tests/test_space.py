"""The Space's folder: it starts by itself, with the package beside it, and answers over HTTP."""

import re
import tomllib
from pathlib import Path

import gradio
from demo_server import free_port, started
from gradio_client import Client, handle_file

ROOT = Path(__file__).parent.parent
SPACE = ROOT / "space"


def test_it_starts_answers_and_ends(tmp_path):
    """As it is put up: its files and the package in one folder, started from there."""
    for file in SPACE.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "arr_coc").symlink_to(ROOT / "arr_coc")
    port = free_port()
    with started(["app.py"], port, tmp_path, GRADIO_SERVER_PORT=str(port)) as (url, process):
        image = handle_file(ROOT / "arr_coc" / "assets" / "sample.png")
        client = Client(url, verbose=False)
        told = client.predict(image, "What colour is the hand?", 0, "mini", api_name="/ask")
        assert told[0] == "green"
        assert list((tmp_path / "temporary").glob("arr-coc-demo-*"))
        process.terminate()
        assert process.wait(30) == 0
    assert not list((tmp_path / "temporary").glob("arr-coc-demo-*"))


def front_matter() -> dict[str, str]:
    _, head, _ = (SPACE / "README.md").read_text().split("---\n", 2)
    return {name: value.strip(' "') for name, value in (line.split(": ", 1) for line in head.splitlines())}


def test_the_front_matter_says_what_is_true():
    head = front_matter()
    assert head["sdk"] == "gradio"
    assert (
        head["sdk_version"] == gradio.__version__
        or head["sdk_version"].split(".")[0] == gradio.__version__.split(".")[0]
    )
    assert (SPACE / head["app_file"]).is_file()
    assert re.fullmatch(r"3\.\d+", head["python_version"])
    assert len(head["short_description"]) <= 60


def test_the_requirements_are_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    assert (SPACE / "requirements.txt").read_text().split() == wanted
