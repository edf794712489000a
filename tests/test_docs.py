"""README and docs/ are true: their Python and their commands run, or are at least read by the code that would run them.

A line of a shell block runs if it is quick and needs no model but mini; else its verb, options and values are parsed.
"""

import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from typer.main import get_command

from arr_coc.cli import chat, run, show
from arr_coc.cli.app import app
from arr_coc.cli.typed import parse_keep
from arr_coc.config import ENCODINGS, SIGHTS
from arr_coc.records import STRATEGIES
from arr_coc.selectors import PLAIN, SELECTORS, settings_of

ROOT = Path(__file__).parent.parent
TYPED = ("README.md", "docs/quickstart.md")  # pages whose blocks are run
COMMANDS = tuple(sorted(f"docs/commands/{path.name}" for path in (ROOT / "docs" / "commands").glob("*.md")))
PAGES = (
    *TYPED,
    "docs/concepts.md",
    "docs/transformers.md",
    "docs/video.md",
    "docs/serving.md",
    "docs/deploying.md",
    "docs/your-model.md",
    *COMMANDS,
)
HUB = "Qwen/Qwen3-VL-2B-Instruct"
QUICK = ("ask", "show", "compare", "textures", "chat", "env", "scenes")  # verbs that answer within a second or two


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)


def shell_lines(*pages: str) -> list[str]:
    """Each line once, in the order of the pages."""
    return list(dict.fromkeys(line for page in pages for block in blocks(page, "sh") for line in block.splitlines()))


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def without_remark(line: str) -> str:
    return line.partition("  #")[0].rstrip()


def arr_coc_words(words: list[str]) -> list[str] | None:
    """What stands behind `arr-coc`, in a pipe or under accelerate; None where it is another command."""
    start = "arr_coc" if words[0] == "accelerate" else "arr-coc"
    return words[words.index(start) + 1 :] if start in words else None


def is_quick(line: str) -> bool:
    words = arr_coc_words(words_of(line))
    return words is not None and words[0] in QUICK and "--model" not in words


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages speak of, to work in."""
    for name in ("arr_coc", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("drawing.png", "photo.jpg"):
        shutil.copy(ROOT / "arr_coc" / "assets" / "sample.png", tmp_path / name)
    for name in ("mini", "one", "three", "2b-1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


# ---------------------------------------------------------------- what is run


@pytest.mark.parametrize("line", [line for line in shell_lines(*TYPED) if is_quick(line)], ids=without_remark)
def test_a_quick_command_runs(line, desk, monkeypatch, capsys):
    words = words_of(line)
    typed = words[1].encode().decode("unicode_escape") if words[0] == "printf" else ""
    piped = (desk / words[1]).read_bytes() if words[0] == "cat" else typed.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
    arguments = arr_coc_words(words)
    if "world/" in line:  # what the line before it on the page makes
        (make,) = [one for one in shell_lines(*TYPED) if one.startswith("arr-coc scenes make world")]
        assert run.run(arr_coc_words(words_of(make))) == 0
    assert run.run(arguments) == 0
    out, _ = capsys.readouterr()
    promised = re.search(r"# prints (.+?)(,|$)", line)
    if promised:
        assert out == f"{promised[1]}\n"
    if "--json" in arguments:
        assert json.loads(out)["answer"]
    if typed:
        assert len(out.splitlines()) == sum(not one.startswith("/") for one in typed.splitlines())
    for option in ("--overlay", "--out"):
        if option in arguments:
            made = desk / arguments[arguments.index(option) + 1]
            assert made.is_file() or any(made.iterdir())


@pytest.mark.parametrize(
    ("page", "number", "prints"),
    [("README.md", 0, "green 128 of 256"), ("docs/quickstart.md", 0, "ZEVORE"), ("docs/quickstart.md", 1, "")],
)
def test_python_runs(page, number, prints, desk, capsys):
    """With mini in the place of a model from the hub."""
    block = blocks(page, "python")[number].replace(HUB, "mini")
    exec(compile(block, page, "exec"), {"__name__": "__main__"})
    out = capsys.readouterr().out
    assert out.strip()
    assert out.startswith(prints)
    for name in re.findall(r'save\("(\S+)"\)', block):
        assert (desk / name).is_file()


def test_no_python_is_left_out():
    assert [len(blocks(page, "python")) for page in TYPED] == [1, 2]
    for page in PAGES:
        kinds = set(re.findall(r"^```(\w*)$", text_of(page), re.MULTILINE))
        # The shell block of the server is run by test_serving, Python that needs vLLM by make serve-test.
        known = {"", "sh", "python", "text"} | ({"bash", "py"} if page == "docs/serving.md" else set())
        assert kinds <= known, "a block of another kind would not be run"


# ---------------------------------------------------------------- what is read


def read_command(arguments: list[str]) -> dict[str, Any]:
    """Parse as the command line would, without running: the verb, every option and every value must be there."""
    command, rest = get_command(app), list(arguments)
    while hasattr(command, "commands"):
        assert rest, f"{arguments} names no verb"
        command = command.commands[rest.pop(0)]
    values: dict[str, Any] = command.make_context("arr-coc", rest).params
    for name in ("keep", "selector"):
        given = values.get(name) or []
        for one in [given] if isinstance(given, str) else given:
            if name == "keep":
                parse_keep(one)
            else:
                assert settings_of(one)[0] in {*SELECTORS, "auto", PLAIN}
    assert set(_several(values.get("encoding"))) <= {*ENCODINGS, "after-vit"}
    return values


def _several(value: Any) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def read_module(module: str, options: list[str]) -> None:
    """`python -m MODULE`: the options must be among those that its help names."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        patch.setattr(sys, "argv", [module, "--help"])
        runpy.run_module(module, run_name="__main__")
    assert set(options) <= set(re.findall(r"--[\w-]+", said.getvalue()))


def read_line(line: str) -> None:
    """Whatever a line of a shell block may be; a kind of command that is not here must be added."""
    words = words_of(line)
    arguments = arr_coc_words(words)
    if arguments is not None:
        read_command(arguments)
    elif words[0] == "make":
        assert all(re.search(rf"^{target}:", text_of("Makefile"), re.MULTILINE) for target in words[1:])
    elif words[:2] == ["python", "-m"]:
        read_module(words[2], [word for word in words if word.startswith("--")])
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
        assert words[2:5] == ["-c", "constraints.txt", "-e"]
        assert set(re.findall(r"\w+", words[5])) <= set(extras)
    else:
        assert words == [".", ".venv/bin/activate"], f"no test knows what to do with: {line}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of runpy: the module was imported before
@pytest.mark.parametrize("page", PAGES)
def test_every_command_can_be_read(page, desk):
    for line in shell_lines(page):
        read_line(line)


@pytest.mark.parametrize(
    "line",
    ["arr-coc ask what? --keeps 0.5", "arr-coc ask what? --keep 2.5", "arr-coc eval --selector nobody",
     "arr-coc guess what?", "arr-coc train selector --stage 4", "make tea", "curl example.org",
     "python -m studies.mini.evaluation --answers 5", "pip install -c constraints.txt -e .[tea]"],
)  # fmt: skip
def test_a_wrong_line_would_be_found(line, desk):
    with pytest.raises(Exception):  # noqa: B017, PT011  (of typer, a ValueError, a KeyError, an assertion)
        read_line(line)


# ---------------------------------------------------------------- what is said


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    """To files, and to headings of the page itself."""
    headings = {
        re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in re.findall(r"^#+ (.*)$", text_of(page), re.M)
    }
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", text_of(page)):
        path, _, heading = target.partition("#")
        if path.startswith("http"):
            continue
        assert not path or ((ROOT / page).parent / path).exists(), target
        assert path or heading in headings, target


def test_the_readme_is_short_and_has_its_figures():
    readme = text_of("README.md")
    assert len(readme.splitlines()) <= 250
    names = re.findall(r"<!-- figures: (.+) -->\n[^\n]+\n(?:.*\n)*?<!-- end of figures -->", readme)
    assert sorted(names) == ["equal", "field", "headline", "mini", "selector", "speed"]


def test_the_exit_codes_are_those_of_the_command_line():
    codes = {value for name, value in vars(run).items() if name.startswith("EXIT_")}
    told = re.findall(r"^\| (\d+) \|", text_of("README.md").partition("## Exit codes")[2], re.MULTILINE)
    assert [int(code) for code in told] == sorted(codes)


def test_the_tree_is_the_tree():
    (tree,) = [block for block in blocks("README.md", "text") if block.startswith("arr_coc/\n")]
    told, folder = set(), Path()
    for line in tree.splitlines():
        name = line.split()[0]
        folder = folder if line.startswith(" ") else Path(name)
        path = folder / name if line.startswith(" ") else folder
        assert (ROOT / path).exists(), path
        told.add(path.name)
    rooms = {path.parent.name for path in (ROOT / "arr_coc").glob("*/__init__.py")}
    assert rooms <= told


def test_mini_is_as_large_as_the_readme_says():
    parameters = 0
    for shard in (ROOT / "arr_coc" / "models" / "mini").glob("model-*.safetensors"):
        with safe_open(shard, "pt") as tensors:
            parameters += sum(prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    assert f"{parameters / 1e6:.1f} M parameters" in re.sub(r"\s+", " ", text_of("README.md"))


def test_the_quickstart_knows_the_files_of_show_and_the_commands_of_chat():
    quickstart = text_of("docs/quickstart.md")
    rows = quickstart.partition("| file of `show` |")[2].partition("\n\n")[0].splitlines()[2:]
    files = [name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])]
    assert sorted(files) == sorted(map(show.file_name, show.NAMES))
    assert all(f"`{show.file_name(name)}`" in quickstart for name in show.OF_CLIPS)
    assert set(re.findall(r"`(/\w+)`", quickstart)) <= set(chat.COMMANDS)


def test_the_concepts_name_what_there_is():
    concepts = text_of("docs/concepts.md")
    named = set(re.findall(r"`([a-z_]+)`", concepts))
    assert set(SELECTORS) | set(SIGHTS) | set(ENCODINGS) | {name for name, _ in STRATEGIES} <= named
    for part in re.findall(r"\(`(\w+\.py)`\)", concepts):
        assert (ROOT / "arr_coc" / part).is_file()


# ---------------------------------------------------------------- the pages of the commands


@pytest.fixture
def commands() -> Any:
    from studies.figures import commands as module

    return module


def test_the_pages_of_the_commands_are_what_the_code_says(commands):
    assert commands.main(["--check"]) == 0, "run python -m studies.figures.commands"


def test_a_stale_page_is_found_and_mended(commands, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "FOLDER", tmp_path / "pages")
    assert commands.main(["--check"]) == 1
    assert commands.main([]) == 0
    assert commands.main(["--check"]) == 0
    page = tmp_path / "pages" / "ask.md"
    page.write_text(page.read_text().replace("--keep", "--drop"))
    (tmp_path / "pages" / "guess.md").write_text("a verb that is no more")
    capsys.readouterr()
    assert commands.main(["--check"]) == 1
    assert re.findall(r"(\w+\.md)", capsys.readouterr().err) == ["ask.md", "guess.md"]
    assert commands.main([]) == 0
    assert commands.main(["--check"]) == 0


def test_pages_hold_every_option_and_its_default(commands):
    made = commands.pages()
    for name, verb in get_command(app).commands.items():
        for one in (verb, *getattr(verb, "commands", {}).values()):
            for parameter in one.params:
                assert parameter.help.rstrip(".") in made[f"{name}.md"].replace("\\|", "|")
                assert all(spelling in made[f"{name}.md"] for spelling in parameter.opts if spelling.startswith("-"))
    assert "| `--seed N` | Of sampling, and of the selector random; 0 to 2,147,483,647. | `0` |" in made["ask.md"]
    assert "-m arr_coc train selector --stage 1 --out runs/one  # CPUs too" in made["train.md"]
