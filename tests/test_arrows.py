"""The import graph is the architecture: arrows go one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "arr_coc"
PARTS = {"texture", "knowing", "balancing", "attending"}
CORE = PARTS | {"config", "timing", "layer"}
ALLOWED = {
    "config": set(),
    "timing": set(),
    "texture": {"config"},
    "knowing": {"config", "texture"},
    "balancing": {"config", "texture", "knowing"},
    "attending": {"config"},
    "layer": PARTS | {"config", "timing"},
    "selectors": CORE,
    "qwen": CORE | {"selectors"},
    "scenes": set(),
    "models": set(),
    "training": CORE | {"selectors", "qwen", "scenes", "models", "evaluation"},  # it watches its own progress
    "evaluation": CORE | {"selectors", "qwen", "scenes", "models"},
    "viewing": CORE | {"selectors", "qwen", "scenes"},
}
LEAVES = {"demo", "cli", "serving"}
TORCH_ONLY = {"math", "functools", "collections", "dataclasses", "typing", "torch"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    assert not any(node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), "no relative imports"
    return set(names)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.name.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_the_rooms_below_it(path):
    room = room_of(path)
    used = {name.split(".")[1] for name in imported(path) if name.startswith("arr_coc.")} - {room}
    assert room in ALLOWED or room in LEAVES, f"{room} has no place in the house yet"
    assert not used & LEAVES, "nothing imports a leaf"
    assert room in LEAVES or used <= ALLOWED[room]


@pytest.mark.parametrize("part", sorted(PARTS))
def test_the_four_parts_import_torch_and_config_only(part):
    outside = {name.split(".")[0] for name in imported(PACKAGE / f"{part}.py") if not name.startswith("arr_coc")}
    assert outside <= TORCH_ONLY


def test_importing_the_package_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, arr_coc, arr_coc.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
