"""The import graph is the architecture: arrows go one way."""

import ast
from pathlib import Path

import pytest

from arr_coc import _HOMES

PACKAGE = Path(__file__).parent.parent / "arr_coc"
PARTS = {"channels", "texture", "sight", "knowing", "balancing", "attending"}
CORE = PARTS | {"config", "records", "timing", "layer"}
ALLOWED = {
    "config": set(),
    "timing": set(),
    "records": {"config"},
    **{part: {"config", "records"} for part in PARTS},
    "texture": {"config", "records", "channels"},
    "layer": PARTS | {"config", "records", "timing"},
    "selectors": CORE,
    "qwen": CORE | {"selectors"},
    "scenes": set(),
    "models": set(),
    "data": CORE | {"selectors", "qwen", "scenes"},
    "training": CORE
    | {"selectors", "qwen", "scenes", "models", "data", "evaluation", "viewing"},  # it watches its own progress
    "evaluation": CORE | {"selectors", "qwen", "scenes", "models", "data"},
    "viewing": CORE | {"selectors", "qwen", "scenes"},
}
LEAVES = {"demo", "cli", "serving", "lmms"}
DOORS = {"cli": {"demo"}}  # the command line is the door to the demo
TORCH_ONLY = {"math", "functools", "collections", "dataclasses", "typing", "torch"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Modules that a file imports, by their full names, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = ["arr_coc", *path.relative_to(PACKAGE).parts[:-1]]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            # "from arr_coc import x" may name a room or one of the names that the package loads on first use.
            names |= {_HOMES.get(a.name, f"arr_coc.{a.name}") for a in node.names} if base == "arr_coc" else {base}
    return names - {"arr_coc.__version__"}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.name.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_the_rooms_below_it(path):
    room = room_of(path)
    used = {name.split(".")[1] for name in imported(path) if name.startswith("arr_coc.")} - {room}
    assert room in ALLOWED or room in LEAVES, f"{room} has no place in the house yet"
    assert not used & (LEAVES - DOORS.get(room, set())), "nothing imports a leaf but its door"
    assert room in LEAVES or used <= ALLOWED[room]


@pytest.mark.parametrize("part", sorted(PARTS))
def test_the_parts_import_torch_and_shared_records_only(part):
    outside = {name.split(".")[0] for name in imported(PACKAGE / f"{part}.py") if not name.startswith("arr_coc")}
    assert outside <= TORCH_ONLY


def test_the_test_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr("test_arrows.PACKAGE", tmp_path)
    lines = [
        "import arr_coc.qwen",
        "from arr_coc import ARRCOCQwen, qwen",
        "def f():",
        "    from arr_coc.cli import run",
    ]
    (tmp_path / "knowing.py").write_text("\n".join(lines))
    assert imported(tmp_path / "knowing.py") == {"arr_coc.qwen", "arr_coc.cli"}


def test_importing_the_package_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, arr_coc, arr_coc.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
