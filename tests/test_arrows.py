"""The import graph is the architecture: arrows go one way, in rooms and in the rooms within them."""

import ast
import itertools
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from arr_coc import _HOMES

ROOT = Path(__file__).parent.parent
PACKAGE, STUDIES, WORLD = ROOT / "arr_coc", ROOT / "studies", ROOT / "arr_coc_scenes"
PARTS = {"texture", "sight", "knowing", "balancing", "attending"}
CORE = PARTS | {"config", "records", "timing", "layer", "files"}
MODEL = CORE | {"selectors", "images", "qwen"}
ALLOWED = {
    "config": set(),
    "timing": set(),
    "files": set(),
    "images": set(),
    "gateway": set(),
    "scenes": set(),  # where the names of the drawn world were
    "models": set(),
    "records": {"config"},
    **{part: {"config", "records"} for part in PARTS},
    "layer": PARTS | {"config", "records", "timing"},
    "selectors": CORE,
    "qwen": MODEL,
    "comparing": {"config", "qwen"},
    "data": {"images"},
    "evaluation": MODEL | {"models", "data"},
    "viewing": MODEL,
    # It watches its own progress, and tells what is out of memory as comparing does.
    "training": MODEL | {"models", "data", "evaluation", "viewing", "comparing"},
}
DRAWING = {
    "scenes",
    "data",
    "evaluation",
    "training",
    "viewing",
    "cli",
    "demo",
    "lmms",
}  # who shows the world
LEAVES = {"demo", "cli", "serving", "lmms", "batch", "vllm"}
# The command line is the door to all; rows of a file stand in the same line as requests, or go to vLLM.
DOORS = {"cli": {"demo", "serving", "batch", "vllm"}, "batch": {"serving", "vllm"}}
TORCH_ONLY = {"math", "functools", "collections", "dataclasses", "typing", "torch"}
# What a part needs beside: the learned saliency is read from a file of the package, text lines are found by a library.
ALSO = {"texture": {"importlib", "safetensors", "logging", "rapidocr"}}

# Inside qwen: from what knows nothing of the others to the class that knows them all.
QWEN = (
    {"family", "tower"},
    {"vision", "answers", "storage", "shapes", "memory", "finding", "clips", "sizes"},
    {"request", "adapting", "streaming", "familiar"},
    {"compact", "moving"},
    {"language", "processor", "periphery"},
    {"first_look", "loading"},
    {"looking"},
    {"eager", "graphs", "tuned", "dropin"},
    {"chooser"},
    {"watching"},
    {"model", "batched"},
)
# Inside other rooms: which sub-room imports which.
SUB_ROOMS = {
    "selectors.field": {"selectors.base"},
    "evaluation.bench": {"evaluation.bench", "evaluation.plotting"},
    "evaluation.field": {"evaluation.field", "evaluation.statistics"},
    "evaluation.report": {
        "evaluation.report",
        "evaluation.field",
        "evaluation.statistics",
        "evaluation.plotting",
    },
    "evaluation.plotting": set(),
    "evaluation.tuning": {"evaluation.field", "evaluation.statistics"},
    "evaluation.advice": {"evaluation.tuning", "evaluation.field", "evaluation.statistics"},
    "evaluation.statistics": set(),
}
# Whoever else may import transformers, and what for.
TRANSFORMERS = {"cli/terminal.py": "its bars and notes are turned off", "demo/models.py": "likewise"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    """Name within the package, such as "qwen.graphs.runner"."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """Modules that a file imports, by their full names, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            base = node.module or ""
            # "from arr_coc import x" may name a room or one of the names that the package loads on first use.
            names |= {_HOMES.get(a.name, f"arr_coc.{a.name}") for a in node.names} if base == "arr_coc" else {base}
            if base.startswith("arr_coc."):
                names |= {f"{base}.{a.name}" for a in node.names if is_module(f"{base}.{a.name}")}
    return names - {"arr_coc.__version__"}


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def inside(path: Path, room: str) -> set[str]:
    """Modules of the same room that a file imports, without the room's name."""
    return {name.split(".", 2)[2] for name in imported(path) if name.startswith(f"arr_coc.{room}.")}


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or not path.name.startswith("__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_the_rooms_below_it(path):
    room, names = room_of(path), imported(path)
    used = {name.split(".")[1] for name in names if name.startswith("arr_coc.")} - {room}
    assert room in ALLOWED or room in LEAVES, f"{room} has no place in the house yet"
    assert not used & (LEAVES - DOORS.get(room, set())), "nothing imports a leaf but its door"
    assert room in LEAVES or used <= ALLOWED[room]
    assert not any(name.split(".")[0] == "studies" for name in names), "the product does without the studies"
    assert room in DRAWING or not any(name.split(".")[0] == WORLD.name for name in names)
    if any(name.split(".")[0] == "transformers" for name in names):
        assert room == "qwen" or str(path.relative_to(PACKAGE)) in TRANSFORMERS


def test_the_drawn_world_knows_nothing_of_the_product():
    """Whoever draws needs no torch; matplotlib brings the fonts."""
    names = {name.split(".")[0] for path in WORLD.glob("*.py") for name in imported(path)}
    assert names - sys.stdlib_module_names == {"numpy", "PIL", "matplotlib", WORLD.name}


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) == "qwen"], ids=module_of)
def test_inside_qwen_arrows_go_down(path):
    floor_of = {name: floor for floor, names in enumerate(QWEN) for name in names}
    own = path.relative_to(PACKAGE / "qwen").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    used = {name.split(".")[0] for name in inside(path, "qwen")} - {own}
    assert used <= set(floor_of), f"{used - set(floor_of)} has no floor yet"
    higher = {name for name in used if floor_of[name] >= floor_of[own]}
    assert not higher, f"{own} imports {higher}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if room_of(path) in ("selectors", "evaluation")], ids=module_of
)
def test_sub_rooms_import_what_is_below_them(path):
    room, sub = room_of(path), ".".join(module_of(path).split(".")[:2])
    used = {f"{room}.{name.split('.')[0]}" for name in inside(path, room)} - {sub}
    if sub in SUB_ROOMS:
        assert used <= SUB_ROOMS[sub]


@pytest.mark.parametrize("part", sorted(PARTS))
def test_the_parts_import_torch_and_shared_records_only(part):
    used = {name for path in FILES if room_of(path) == part for name in imported(path)}
    outside = {name.split(".")[0] for name in used if not name.startswith("arr_coc")}
    assert outside <= TORCH_ONLY | ALSO.get(part, set())


def test_the_test_sees_every_kind_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr("test_arrows.PACKAGE", tmp_path)
    lines = [
        "import arr_coc.qwen",
        "from arr_coc import ARRCOCQwen, qwen",
        "def f():",
        "    from arr_coc.cli import run",
    ]
    (tmp_path / "knowing.py").write_text("\n".join(lines))
    assert imported(tmp_path / "knowing.py") == {"arr_coc.qwen", "arr_coc.cli", "arr_coc.cli.run"}


def run(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode


def test_importing_the_package_loads_no_torch():
    assert (
        run("import sys, arr_coc, arr_coc.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)") == 0
    )


def test_asking_loads_neither_evaluation_nor_training_nor_studies():
    code = """
import sys
from arr_coc.cli.run import run
assert run(["ask", "What colour is the hand?", "--quiet"]) == 0
wrong = [name for name in sys.modules if name.startswith(("arr_coc.evaluation", "arr_coc.training", "studies"))]
sys.exit(", ".join(wrong) or 0)
"""
    assert run(code) == 0


# ---------------------------------------------------------------- the size of the house

MOST_LINES, MOST_MODULES, MOST_OF_A_FILE = 30_965, 186, 400
WHOLE = sorted(PACKAGE.rglob("*.py"))


def test_the_house_stays_small():
    lines = {path: len(path.read_text().splitlines()) for path in WHOLE}
    assert len(lines) <= MOST_MODULES
    assert sum(lines.values()) <= MOST_LINES
    assert 100 <= statistics.median(lines.values()) <= 220
    for path in [*WHOLE, *STUDIES.rglob("*.py"), *WORLD.rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= MOST_OF_A_FILE, f"{path.name}: split it by idea"


def test_functions_fit_a_screen():
    spans = sorted(
        node.end_lineno - node.lineno + 1
        for path in WHOLE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert spans[int(0.9 * len(spans))] <= 30


def test_no_class_has_the_name_of_another():
    names = [
        node.name for path in WHOLE for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in WHOLE}), ids=lambda path: path.name)
def test_families_are_folders(folder):
    stems = sorted(path.stem for path in folder.glob("*.py") if "_" in path.stem.strip("_"))
    families = {prefix: len(list(members)) for prefix, members in itertools.groupby(stems, lambda s: s.split("_")[0])}
    assert all(count <= 3 for count in families.values()), families
